"""Whether a checkpoint is of this model, layout and precision; where it is not, which key to set back."""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from torch import Tensor

from fourfold.checkpoint.manifest import Manifest, PartRecord, UnitRecord
from fourfold.checkpoint.tensor_file import dtype_name
from fourfold.checkpoint.unit_shard import UnitShard
from fourfold.config import RunFailure
from fourfold.layout import Layout

DEGREES = ("dp_replicate", "dp_shard", "cp", "tp", "ep", "etp", "zero")
"""The degrees that decide which part and shard a rank holds. `pp` may differ: a unit is saved alike on every stage."""


def check_fits(
    path: Path,
    manifest: Manifest,
    shards: Mapping[str, UnitShard],
    units: AbstractSet[str],
    layout: Layout | None,
) -> None:
    """Raises `RunFailure` where the checkpoint is not of this model, layout or precision."""
    if lost := sorted(set(manifest.units) ^ units):
        where = "the checkpoint" if lost[0] in units else "this model"
        raise _other_model(path, f"{where} has no unit {lost[0]!r}")
    for unit, shard in shards.items():
        record = manifest.units[unit]
        _check_parameters(path, unit, record, shard)
        part = record.parts.get(shard.part)
        if part is None or not _same_layout(part, shard):
            raise RunFailure(_other_layout(path, unit, manifest, part, shard, layout))
        for role, tensor in shard.tensors.items():
            dtype = dtype_name(tensor.dtype)
            if record.dtypes.get(role) != dtype:
                raise RunFailure(
                    f"{path}: {role} of unit {unit} was saved as {record.dtypes.get(role)}, this run holds {dtype}; "
                    f"resume with the same precision.master"
                )


def check_extras(path: Path, manifest: Manifest, extras: Mapping[str, Tensor]) -> None:
    """Raises `RunFailure` where an extra tensor that is asked for was not saved, or saved otherwise."""
    for name, tensor in extras.items():
        record = manifest.extras.get(name)
        if record is None:
            raise _other_model(path, f"the checkpoint has no extra tensor {name!r}")
        found, wanted = (record.shape, record.dtype), (tuple(tensor.shape), dtype_name(tensor.dtype))
        if found != wanted:
            raise _other_model(path, f"the extra tensor {name!r} is {found} there and {wanted} in this one")


def _check_parameters(path: Path, unit: str, record: UnitRecord, shard: UnitShard) -> None:
    saved = [(p.name, p.shape) for p in record.parameters]
    wanted = [(p.name, p.spec.shape) for p in shard.flat.parameters]
    if saved != wanted:
        ours, theirs = next((w, s) for w, s in zip([*wanted, None], [*saved, None], strict=False) if w != s)
        raise _other_model(path, f"in unit {unit} it has {_show(theirs)} where this model has {_show(ours)}")


def _same_layout(part: PartRecord, shard: UnitShard) -> bool:
    flat = shard.flat
    boxes = tuple(p.box for p in part.parameters)
    return (part.num_shards, part.padded_numel, boxes) == (flat.num_shards, flat.padded_numel, shard.boxes)


def _other_layout(
    path: Path, unit: str, manifest: Manifest, part: PartRecord | None, shard: UnitShard, layout: Layout | None
) -> str:
    """Names the setting to change back: the degrees that differ if both layouts are known, else the parts and shards."""
    end = "and restoring under another layout is not supported"
    if layout is not None and manifest.layout:
        own = {key: int(getattr(layout, key)) for key in DEGREES}
        differ = [key for key in DEGREES if manifest.layout.get(key, own[key]) != own[key]]
        if "zero" in differ and own["zero"] and manifest.layout["zero"]:
            differ.remove("zero")  # stages 1 to 3 shard alike
        if differ:
            saved = ", ".join(f"layout.{key} = {manifest.layout[key]}" for key in differ)
            here = ", ".join(str(own[key]) for key in differ)
            return f"{path} was saved under {saved}, this run has {here}, {end}; set {saved} to resume it"
    record, flat = manifest.units[unit], shard.flat
    theirs, ours = _degrees_of(record), {axis: degree for p in flat.parameters for _, axis, degree in p.splits}
    for axis in ("tp", "ep", "etp"):
        if theirs.get(axis, 1) != ours.get(axis, 1):
            saved = f"layout.{axis} = {theirs.get(axis, 1)}"
            return f"{path} was saved under {saved}, this run has {ours.get(axis, 1)}, {end}; set {saved} to resume it"
    some = part if part is not None else next(iter(record.parts.values()))
    if some.num_shards != flat.num_shards:
        what = (
            f"layout.dp_shard = {some.num_shards} and the same layout.zero"
            if flat.domain == "dense"
            else "the same layout.dp_shard, cp, tp, ep and zero"
        )
        return (
            f"{path} was saved in {some.num_shards} shards a unit, this run has {flat.num_shards}, {end}; set {what} to "
            f"resume it"
        )
    return (
        f"{path}: unit {unit} was saved padded to {some.padded_numel} elements, this run pads to {flat.padded_numel}, {end}; "
        f"resume with the layout that saved it"
    )


def _degrees_of(record: UnitRecord) -> dict[str, int]:
    """The degrees of the axes in the names of a unit's parts."""
    degrees: dict[str, int] = {}
    for name in record.parts:
        for axis, coordinate in re.findall(r"([a-z]+)(\d+)", name):
            degrees[axis] = max(degrees.get(axis, 1), int(coordinate) + 1)
    return degrees


def _other_model(path: Path, what: str) -> RunFailure:
    return RunFailure(
        f"{path} was saved by another model: {what}; resume with the run file that saved it, or state another "
        f"checkpoint.directory"
    )


def _show(parameter: tuple[str, tuple[int, ...]] | None) -> str:
    return f"{parameter[0]} {list(parameter[1])}" if parameter else "nothing"
