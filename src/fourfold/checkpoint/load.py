"""Loading under any layout: everything is checked, names, shapes, formats and digests, before the first element is copied.

`check_fits` says whether a checkpoint is of this model and precision, whatever its layout; where it is not, which key to set back.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from torch import Tensor

from fourfold.checkpoint.boxes import box_numel
from fourfold.checkpoint.file_bytes import ByteSource
from fourfold.checkpoint.formats import as_saved, converts
from fourfold.checkpoint.manifest import Manifest, UnitRecord, read_manifest
from fourfold.checkpoint.saved_state import SavedState, TensorRead
from fourfold.checkpoint.tensor_file import dtype_name
from fourfold.checkpoint.unit_shard import MASTER, UnitShard
from fourfold.config import FinalFailure
from fourfold.model.halves import WEIGHTS


def check_fits(
    path: Path,
    manifest: Manifest,
    shards: Mapping[str, UnitShard],
    units: AbstractSet[str],
) -> None:
    """Raises `FinalFailure` where the checkpoint is not of this model or precision."""
    if lost := sorted(set(manifest.units) ^ units):
        where = "the checkpoint" if lost[0] in units else "this model"
        raise _other_model(path, f"{where} has no unit {lost[0]!r}")
    for unit, shard in shards.items():
        record = manifest.units[unit]
        _check_parameters(path, unit, record, shard)
        if lacking := [role for role, count in record.without.items() if count > shard.without.get(role, 0)]:
            raise _other_model(path, f"unit {unit} has no {lacking[0]} of its matrices there")
        for role, tensor in shard.tensors.items():
            dtype = dtype_name(tensor.dtype)
            if not converts(record.dtypes, role, dtype):
                saved = record.dtypes.get(role, "halves" if role == MASTER and WEIGHTS in record.dtypes else None)
                raise FinalFailure(
                    f"{path}: {role} of unit {unit} was saved as {saved}, this run holds {dtype}; "
                    f"resume with the same precision.master"
                )


def check_extras(path: Path, manifest: Manifest, extras: Mapping[str, Tensor]) -> None:
    """Raises `FinalFailure` where an extra tensor that is asked for was not saved, or saved otherwise."""
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


def _other_model(path: Path, what: str) -> FinalFailure:
    return FinalFailure(
        f"{path} was saved by another model: {what}; resume with the run file that saved it, or state another "
        f"checkpoint.directory"
    )


def _show(parameter: tuple[str, tuple[int, ...]] | None) -> str:
    return f"{parameter[0]} {list(parameter[1])}" if parameter else "nothing"


def load_checkpoint(
    path: Path,
    shards: Mapping[str, UnitShard],
    *,
    units: Collection[str] | None = None,
    extras: Mapping[str, Tensor] | None = None,
    manifest: Manifest | None = None,
    sources: Mapping[str, ByteSource] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Fills the tensors of `shards` and `extras` in place and returns the `info` that was saved.

    `shards`: this rank's shard of its part of every unit that it holds, under whatever layout; replicas load the same shard. Only
    the chunks of 256 KiB that hold some of them are read. The roles asked for may be fewer than those saved. `units`: the names of
    all units of the model; by default those in `shards`. `manifest`, `sources`: of a state that
    lies in no folder. `advance` is called as parts are checked and read. Raises, with the tensors untouched, `DamagedCheckpoint`
    when the checkpoint is not whole, and another `RunFailure` when it was saved by another model.
    """
    manifest = manifest or read_manifest(path)
    extras = extras or {}
    check_fits(path, manifest, shards, set(shards) if units is None else set(units))
    check_extras(path, manifest, extras)
    saved = SavedState(path, manifest, sources)
    fill_shards(saved, shards, extras, advance)
    return manifest.info


def fill_shards(
    saved: SavedState,
    shards: Mapping[str, UnitShard],
    extras: Mapping[str, Tensor] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Fills the shards of a rank of any layout, and tensors beside the units. Raises `RunFailure`, with the tensors untouched."""
    given = [as_saved(shard, saved.manifest.units[name].dtypes) for name, shard in shards.items()]
    reads = [read for shard, _ in given for read in shard_reads(saved, shard)]
    reads += [saved.extra(name, tensor) for name, tensor in (extras or {}).items()]
    saved.fill(reads, advance)
    for shard, convert in given:
        for start, end in padding(shard):
            for role in shard.tensors:
                shard.held(role, start, end).zero_()
        convert()


def shard_reads(saved: SavedState, shard: UnitShard) -> Iterator[TensorRead]:
    """How every parameter's elements come to the shard, each role of it."""
    low, high = shard.flat.shard_range(shard.index)
    for (parameter, start, _), box in zip(shard.flat.ranges(), shard.boxes, strict=True):
        first, last = max(start, low), min(start + box_numel(box), high)
        if first < last:
            for role in shard.tensors:
                out = shard.held(role, first, last)
                if out.numel():
                    yield from saved.reads(parameter.name, role, box, first - start, out)


def padding(shard: UnitShard) -> Iterator[tuple[int, int]]:
    """Elements [start, end) of the unit's part, in the shard, that belong to no parameter, which are zero under every layout."""
    low, high = shard.flat.shard_range(shard.index)
    edge = low
    for (_, start, _), box in zip(shard.flat.ranges(), shard.boxes, strict=True):
        if edge < min(start, high):
            yield edge, min(start, high)
        edge = max(edge, start + box_numel(box))
    if edge < high:
        yield edge, high
