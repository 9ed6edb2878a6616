"""The text form of work: kernels and collectives of a pass, a few words each."""

from typing import cast, get_args

from fourfold.model.low_precision import MULTIPLES
from fourfold.model.work import (
    Attention,
    Collective,
    CollectiveKind,
    Elementwise,
    ElementwisePart,
    Gemm,
    HostCopy,
    Item,
    Join,
    Start,
    Work,
)


def is_plain(work: Work) -> bool:
    """Whether it is collectives alone that another instruction joins: these stand on the instruction's own line."""
    return all(isinstance(item, Start) and not item.name for item in work.items)


def work_text(work: Work) -> str:
    """Text that `parse_work` reads: `gemm 512 192 1024 | elementwise 100 50 3 | start all_gather tp 100 2 tp.1 | join tp.1`."""
    return " | ".join(map(_format_item, work.items))


def parse_work(text: str) -> Work:
    """Raises `ValueError` or `KeyError` for what `work_text` does not write."""
    work = Work(tuple(_parse(part.split()) for part in text.split(" | ")))
    if work_text(work) != text:
        raise ValueError(f"would be written {work_text(work)!r}")
    return work


def collective_text(collective: Collective) -> str:
    return f"{collective.kind} {collective.axes} {collective.bytes} {collective.group_size}"


def parse_collective(words: list[str]) -> Collective:
    kind, axes, size, group_size = words
    if kind not in get_args(CollectiveKind):
        raise ValueError(f"unknown collective {kind}")
    return Collective(cast(CollectiveKind, kind), axes, int(size), int(group_size))


def _format_item(item: Item) -> str:
    if isinstance(item, Gemm) and item.batch != 1:
        return f"gemms {item.batch} {item.rows} {item.columns} {item.inner}"
    if isinstance(item, Gemm):
        kind = "accumulate" if item.accumulates else "gemm"
        return (
            f"{kind} {item.rows} {item.columns} {item.inner}"
            + (f" {item.groups}" if item.groups != 1 else "")
            + (f" {item.dtype}" if item.dtype else "")
        )
    if isinstance(item, Attention):
        kind = "attention-backward" if item.backward else "attention"
        sizes = (item.sequences, item.queries, item.keys, item.heads, item.kv_heads, item.query_key_dim, item.value_dim)
        return " ".join(map(str, (kind, *sizes)))
    if isinstance(item, Elementwise):
        part = f" {item.part}" if item.part else ""
        return f"elementwise {item.bytes} {item.least_bytes} {item.launches}{part}"
    if isinstance(item, HostCopy):
        return f"copy {'to' if item.to_host else 'from'} {item.bytes} {item.copies}"
    if isinstance(item, Start):
        return f"start {collective_text(item.collective)}" + (f" {item.name}" if item.name else "")
    return f"join {item.name}"


def _parse(words: list[str]) -> Item:
    kind, *rest = words
    if kind in ("gemm", "accumulate"):
        dtype = rest.pop() if rest[-1] in MULTIPLES else ""
        rows, columns, inner, groups = map(int, [*rest, "1"][:4])
        return Gemm(rows, columns, inner, kind == "accumulate", groups, dtype)
    if kind == "gemms":
        batch, rows, columns, inner = map(int, rest)
        return Gemm(rows, columns, inner, batch=batch)
    if kind in ("attention", "attention-backward"):
        sequences, queries, keys, heads, kv_heads, query_key_dim, value_dim = map(int, rest)
        backward = kind == "attention-backward"
        return Attention(sequences, queries, keys, heads, kv_heads, query_key_dim, value_dim, backward)
    if kind == "elementwise":
        size, least, launches, *part = rest
        if part and part[0] not in get_args(ElementwisePart):
            raise ValueError(f"unknown part {part[0]}")
        return Elementwise(int(size), int(least), int(launches), cast(ElementwisePart, part[0] if part else ""))
    if kind == "copy":
        way, size, copies = rest
        return HostCopy(way == "to", int(size), int(copies))
    if kind == "start":
        return Start(parse_collective(rest[:4]), *rest[4:])
    if kind == "join":
        (name,) = rest
        return Join(name)
    raise ValueError(f"unknown work {kind}")
