"""The tensors of a Hugging Face folder that make up each of our parameters.

In memory a block's experts are stacked, gate_up_proj [experts, 2, ffn, hidden] and down_proj [experts, hidden, ffn]. On disk each
expert has tensors of its own (transformers 4, released files, and what transformers 5 writes), or they are stacked too, gate above
up (transformers 5 in memory), or with their dims in another order (gpt-oss, Llama 4). Where a family has other names, fuses
tensors or transposes them, its record says so (`TensorNames`).
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from math import prod

from fourfold.huggingface.families import FAMILIES
from fourfold.huggingface.family import EqualParts, Rename, Stacked, TensorNames

Shapes = Mapping[str, tuple[int, ...]]
"""Every parameter of a model, by name."""


@dataclass(frozen=True)
class TensorSlice:
    """Elements [start, end) of a parameter laid flat, as tensor `name` of `shape` on disk holds them: from its element `offset` on;
    or, where `columns` is stated, as its columns [columns, columns + rows of the parameter), transposed; or, where `axes` is, as
    those elements, of shape `part`, with their dims in that order."""

    name: str
    shape: tuple[int, ...]
    start: int
    end: int
    offset: int = 0
    columns: int | None = None
    part: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()


Form = list[TensorSlice]


def written_forms(shapes: Shapes, family: str) -> dict[str, Form]:
    """Every parameter as the family is released, and written here."""
    names = FAMILIES[family].tensors if family in FAMILIES else TensorNames()
    return {name: _renamed(names, name, shapes) or _own(name, shapes[name]) for name in shapes}


def present_forms(shapes: Shapes, present: Shapes, family: str) -> dict[str, Form]:
    """The accepted form of every parameter of which most tensors are present in their shape, then in another; where none is, the
    one that the family has. `present`: tensors on disk."""

    def share(form: Form) -> tuple[float, float]:
        fitting = sum(present.get(piece.name) == piece.shape for piece in form)
        return fitting / len(form), sum(piece.name in present for piece in form) / len(form)

    usual = written_forms(shapes, family)
    prefix = FAMILIES[family].tensors.optional_prefix if family in FAMILIES else ""
    if prefix and not any(name.startswith(prefix) for name in present):
        usual = {name: [replace(p, name=p.name.removeprefix(prefix)) for p in form] for name, form in usual.items()}
    return {name: max((usual[name], *_accepted(name, shapes)), key=share) for name in shapes}


def _accepted(name: str, shapes: Shapes) -> list[Form]:
    """The forms in which a parameter is accepted on disk: ours first, then those of any family."""
    forms = [_own(name, shapes[name])]
    for names in (family.tensors for family in FAMILIES.values()):
        if names.stacked is not None and _STACKED.fullmatch(name):  # under names that others give stacked experts too
            continue
        if names.read_too and (other := _renamed(replace(names, modules=names.read_too), name, shapes)) is not None:
            forms.append(other)
        forms += [form for parts in names.equal_parts if (form := _in_equal_parts(parts, name, shapes)) is not None]
        renamed = _renamed(names, name, shapes)
        if renamed is not None:
            forms.append(renamed)
            if names.optional_prefix:
                forms.append([replace(p, name=p.name.removeprefix(names.optional_prefix)) for p in renamed])
    if _EXPERTS.fullmatch(name):
        shape = shapes[name]
        stacked = shape if len(shape) == 3 else (shape[0], 2 * shape[2], shape[3])
        forms.append([TensorSlice(name, stacked, 0, prod(shape))])
    return forms


_EXPERTS = re.compile(r"(.+)\.mlp\.experts\.(gate_up|down)_proj")
_STACKED = re.compile(r"(.+)\.mlp\.experts\.((?:gate_up|down)_proj(?:_bias)?)")
_SEPARATE = ("mlp.experts", "gate_proj", "up_proj", "down_proj")


def _own(name: str, shape: tuple[int, ...]) -> Form:
    if _EXPERTS.fullmatch(name):
        return _each_expert(name, shape, _SEPARATE)
    return [TensorSlice(name, shape, 0, prod(shape))]


def _each_expert(name: str, shape: tuple[int, ...], names: tuple[str, str, str, str]) -> Form:
    folder, gate, up, down = names
    prefix = name.partition("mlp.experts")[0] + folder
    kinds = (gate, up) if name.endswith("gate_up_proj") else (down,)
    size = prod(shape[-2:])
    pieces: Form = []
    for expert in range(shape[0]):
        for kind in kinds:
            start = len(pieces) * size
            pieces.append(TensorSlice(f"{prefix}.{expert}.{kind}.weight", shape[-2:], start, start + size))
    return pieces


def _stacked(name: str, shape: tuple[int, ...], stacked: Stacked) -> Form:
    """Experts in one tensor, [experts, in, out], gates beside ups or between them."""
    match = _STACKED.fullmatch(name)
    assert match is not None
    prefix, kind = match.groups()
    part = shape[1:]
    axes = tuple(reversed(range(len(part))))  # [2, ffn, hidden] -> [hidden, ffn, 2]
    if kind == "gate_up_proj" and not stacked.interleaved:
        axes = (2, 0, 1)
    elif kind == "gate_up_proj_bias" and not stacked.interleaved:
        axes = (0, 1)
    sizes, size = [part[axis] for axis in axes], prod(part)
    on_disk = (shape[0], *sizes) if "gate_up" not in kind else (shape[0], *sizes[:-2], sizes[-2] * sizes[-1])
    theirs = f"{prefix}.{stacked.folder}.{kind}"
    starts = range(0, prod(shape), size)
    return [TensorSlice(theirs, on_disk, at, at + size, offset=at, part=part, axes=axes) for at in starts]


_MODULE = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


def _renamed(names: TensorNames, name: str, shapes: Shapes) -> Form | None:
    """A parameter under a family's own names; None where the family calls it as we do."""
    for ours, theirs in names.outside:
        if name == ours:
            return [TensorSlice(theirs, shapes[name], 0, prod(shapes[name]))]
    if names.stacked is not None and _STACKED.fullmatch(name):
        return _stacked(name, shapes[name], names.stacked)
    if names.experts is not None and _EXPERTS.fullmatch(name):
        return _each_expert(name, shapes[name], names.experts)
    match = _MODULE.fullmatch(name)
    if match is None:
        return None
    layer, module, kind = match.groups()
    rename = next((rename for rename in names.modules if module in rename.ours), None)
    if rename is None or (rename.beside and f"model.layers.{layer}.{rename.beside}.weight" not in shapes):
        return None
    fused = [f"model.layers.{layer}.{ours}.{kind}" for ours in rename.ours]
    if any(other not in shapes for other in fused):
        return None
    before = fused.index(name)
    rows = [shapes[other][0] for other in fused]
    theirs = f"{names.block.format(layer)}{rename.theirs}.{kind}"
    return [_part(theirs, shapes[name], sum(rows[:before]), sum(rows), rename)]


def _in_equal_parts(parts: EqualParts, name: str, shapes: Shapes) -> Form | None:
    """The rows of a parameter in the parts that hold them; None where these are of others."""
    match = _MODULE.fullmatch(name)
    if match is None or match[2] not in parts.ours:
        return None
    layer, module, kind = match.groups()
    prefix = f"model.layers.{layer}."
    rows = [shapes[f"{prefix}{each}.{kind}"][0] for each in parts.ours]
    before = sum(rows[: parts.ours.index(module)])
    rest, size = shapes[name][1:], -(-sum(rows) // len(parts.theirs))
    row, form = prod(rest), Form()
    for number, theirs in enumerate(parts.theirs):
        start, end = number * size, min((number + 1) * size, sum(rows))
        first, last = max(start, before), min(end, before + shapes[name][0])
        if first < last:
            piece = TensorSlice(
                f"{prefix}{theirs}.{kind}", (end - start, *rest), (first - before) * row, (last - before) * row
            )
            form.append(replace(piece, offset=(first - start) * row))
    return form


def _part(theirs: str, shape: tuple[int, ...], first: int, rows: int, rename: Rename) -> TensorSlice:
    """Rows [first, first + shape[0]) of a fused tensor of `rows` rows."""
    if rename.transposed and len(shape) == 2:
        return TensorSlice(theirs, (shape[1], rows), 0, prod(shape), columns=first)
    return TensorSlice(theirs, (rows, *shape[1:]), 0, prod(shape), offset=first * prod(shape[1:]))


def balance_bias(layer: int) -> str:
    """The name of the balancing bias of a block's router, [experts], fp32, as DeepSeek-V3 has it on disk."""
    return f"model.layers.{layer}.{_ROUTER}.e_score_correction_bias"


def written_balance_bias(layer: int, family: str) -> str:
    """The name of the bias in what is written of the family."""
    modules = FAMILIES[family].tensors.modules
    router = next((rename.theirs for rename in modules if rename.ours == (_ROUTER,)), _ROUTER)
    return balance_bias(layer).replace(_ROUTER, router)


def balance_biases(layer: int) -> list[str]:
    """Names of the bias in folders of any family."""
    return [written_balance_bias(layer, name) for name, family in FAMILIES.items() if family.balance_bias]


_ROUTER = "mlp.gate"


def has_balance_bias(family: str) -> bool:
    """Whether the family's routers have such a bias on disk."""
    return family in FAMILIES and FAMILIES[family].balance_bias


_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def module_of(name: str, num_layers: int) -> int | None:
    """Which MTP module a tensor on disk would be of, from 0: they are numbered on from the last block. None: of no module."""
    match = _LAYER.match(name)
    return int(match[1]) - num_layers if match is not None and int(match[1]) >= num_layers else None


def num_modules(present: Container[str], num_layers: int) -> int:
    """The MTP modules of which a folder has tensors."""
    count = 0
    while f"model.layers.{num_layers + count}.eh_proj.weight" in present:
        count += 1
    return count
