"""A program as rows, totals and a proof, with what its letters mean: the text and the JSON of `fourfold show`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fourfold.program import Op, Program, digest, memory_curve, memory_peak
from fourfold.program.capabilities import OPCODES
from fourfold.program.instruction import Opcode
from fourfold.program.liveness import host_peak_bytes, host_traffic, ledger, peak_bytes
from fourfold.report.format_simulation import KINDS
from fourfold.report.units import format_bytes, format_flops, table

_PEAK_BUFFERS = 6
_HEADINGS = ("#", "instruction", "sent", "live memory", "compute", "")


def program_rows(program: Program) -> list[dict[str, Any]]:
    """One object an instruction. `live_bytes`: while it runs, its workspace included."""
    return [
        {
            "index": index,
            "instruction": step.short,
            "operation": step.op.name.lower(),
            "stream": step.stream,
            "sent_bytes": sum(c.sent_bytes for c in step.collectives) + step.work.host_bytes,
            "live_bytes": live,
            "flops": step.flops,
        }
        for index, (step, live) in enumerate(zip(program.instructions, memory_curve(program), strict=True))
    ]


def program_totals(program: Program) -> dict[str, Any]:
    """Sums over one rank's step. `sent_bytes`: by the axes of the group."""
    peak = memory_peak(program)
    operations = Counter(step.op for step in program.instructions)
    return {
        "instructions": len(program.instructions),
        "operations": {op.name.lower(): operations[op] for op in OPCODES if operations[op]},
        "sent_bytes": ledger(program),
        "flops": sum(step.flops for step in program.instructions),
        "peak_memory": {
            "bytes": peak.bytes,
            "index": peak.index,
            "instruction": program.instructions[peak.index].short,
            "by_kind_bytes": peak.by_kind(),
            "largest_buffers_bytes": dict(peak.buffers[:_PEAK_BUFFERS]),
        },
        "host": {"peak_memory_bytes": host_peak_bytes(program), "copied_bytes": host_traffic(program)},
        "digest": digest(program),
    }


def table_lines(program: Program, limit: int) -> list[str]:
    """The rows as aligned text. More than `limit` (0: no limit) are shortened in the middle; the peak is marked."""
    rows = program_rows(program)
    peak = memory_peak(program).index
    cells = [_cells(row, row["index"] == peak) for row in rows]
    hidden = len(cells) - limit if limit else 0
    if hidden > 0:
        first = (limit + 1) // 2
        shown = [*cells[:first], *cells[first + hidden :]]
    else:
        first, shown = len(cells), cells
    lines = table(_HEADINGS, shown, left=(1,))
    if hidden > 0:
        width = max(len(row[0]) for row in shown)
        note = f"{'...':>{width}}  {hidden} more instructions: --limit 0 lists all, --full gives the text form"
        lines.insert(1 + first, note)
    return lines


def _cells(row: dict[str, Any], is_peak: bool) -> tuple[str, ...]:
    return (
        str(row["index"]),
        row["instruction"],
        format_bytes(row["sent_bytes"]) if row["sent_bytes"] else "",
        format_bytes(row["live_bytes"]),
        format_flops(row["flops"]) if row["flops"] else "",
        "<- peak" if is_peak else "",
    )


def totals_lines(program: Program) -> list[str]:
    """The totals of one rank's step."""
    totals = program_totals(program)
    peak = totals["peak_memory"]
    operations = Counter(step.op for step in program.instructions)
    named = [f"{operations[op]} {op.words} ({op.value})" for op in OPCODES if operations[op]]
    sent = [f"{axes} {format_bytes(size)}" for axes, size in totals["sent_bytes"].items()]
    kinds = [
        f"{KINDS.get(kind, kind)} {format_bytes(size)}" for kind, size in peak["by_kind_bytes"].items() if size > 0
    ]
    host = totals["host"]
    copied = [f"{way} {format_bytes(size)}" for way, size in host["copied_bytes"].items()]
    offloaded = wrapped("host memory", f"{format_bytes(host['peak_memory_bytes'])}: copied ", copied) if copied else []
    total_sent = sum(totals["sent_bytes"].values())
    return [
        *wrapped("instructions", f"{totals['instructions']}: ", named),
        *wrapped("communication", f"{format_bytes(total_sent)}: " if sent else "nothing", sent),
        *wrapped("arithmetic", format_flops(totals["flops"]), []),
        *wrapped("peak memory", f"{format_bytes(peak['bytes'])} at #{peak['index']} `{peak['instruction']}`: ", kinds),
        *offloaded,
    ]


def proof(programs: dict[int, Program]) -> dict[str, Any]:
    """The extent of a verification: counts over the distinct programs, and the number of ranks that run them."""
    distinct = distinct_programs(programs)
    patterns = [(pattern, len(found)) for program in distinct for pattern, found in program.steps.microbatches.items()]
    operations: Counter[Opcode] = Counter()
    for pattern, times in patterns:
        operations[pattern.op] += times
    return {
        "kind": distinct[0].kind,
        "ranks": len(programs),
        "distinct_programs": len(distinct),
        "instructions": sum(times for _, times in patterns),
        "buffers": sum(len(program.buffers) for program in distinct),
        "buffer_accesses": sum((len(p.reads) + len(p.writes) + len(p.frees)) * times for p, times in patterns),
        "collectives": sum(len(p.work.collectives) * times for p, times in patterns),
        "waits": operations[Op.WAIT],
        "reductions": sum(times for op, times in operations.items() if op.is_reduction),
        "peak_memory_bytes": max(map(peak_bytes, distinct)),
    }


def distinct_programs(programs: dict[int, Program]) -> list[Program]:
    """Every program once, in the order of the ranks."""
    return list({id(program): program for program in programs.values()}.values())


def proof_lines(found: dict[str, Any]) -> list[str]:
    """The proof in words."""
    lists = "one program" if found["distinct_programs"] == 1 else f"{found['distinct_programs']} distinct programs"
    count = found["reductions"]
    gradients = f"; every gradient reduced once over every axis ({count:,} reductions)" if count else ""
    return [
        f"sound: {found['kind']}: {lists} for {found['ranks']:,} rank{'s' if found['ranks'] > 1 else ''}",
        f"  {found['instructions']:,} instructions, {found['buffers']:,} buffers: {found['buffer_accesses']:,} reads, writes "
        f"and frees in a legal order, nothing leaks",
        f"  {found['collectives']:,} collectives in the same order on every member of their groups, {found['waits']:,} waits "
        f"joined, nobody waits for ever{gradients}",
        f"  peak memory {format_bytes(found['peak_memory_bytes'])} a rank",
    ]


_SEGMENTS = {
    "embed": "embed = embedding",
    "b": "b3 = block 3",
    "b.experts": "b3.experts = its experts",
    "mtp": "mtp0 = first MTP module",
    "mtp.experts": "mtp0.experts = its experts",
    "head": "head = final norm + unembedding + loss",
}


def legend_lines(program: Program) -> list[str]:
    """The operations that occur in `program`, then its segments and numbers, as aligned text."""
    used = {step.op for step in program.instructions}
    names = {step.segment or "" for step in program.instructions}
    words = [f"{op.value} = {op.info.meaning}" for op in OPCODES if op in used]
    kinds = {"".join(c for c in name if not c.isdigit()) for name in names}
    parts = [meaning for kind, meaning in _SEGMENTS.items() if kind in kinds]
    if any(step.microbatch is not None for step in program.instructions):
        parts.append("m0 = microbatch 0")
    if any(step.peer is not None for step in program.instructions):
        parts.append("r1 = rank 1")
    return [*wrapped("letters", "", words), *wrapped("names", "", parts)]


def wrapped(name: str, head: str, items: Sequence[str], width: int = 78) -> list[str]:
    """`name  head item, item, ...`, continued under the first item where the line is full."""
    indent = " " * 18
    lines, line = [], f"{name:<16}  {head}"
    for index, item in enumerate(items):
        text = item + (", " if index + 1 < len(items) else "")
        if len(line) + len(text.rstrip()) > width:
            lines.append(line.rstrip())
            line = indent
        line += text
    return [*lines, line.rstrip()]
