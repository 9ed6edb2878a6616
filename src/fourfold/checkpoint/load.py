"""Loading under any layout: everything is checked, names, shapes, formats and digests, before the first element is copied."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fourfold.checkpoint.boxes import box_numel
from fourfold.checkpoint.file_bytes import ByteSource
from fourfold.checkpoint.fit import check_extras, check_fits
from fourfold.checkpoint.manifest import Manifest, read_manifest
from fourfold.checkpoint.saved_state import SavedState, TensorRead
from fourfold.checkpoint.unit_shard import UnitShard


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
    reads = [read for shard in shards.values() for read in shard_reads(saved, shard)]
    reads += [saved.extra(name, tensor) for name, tensor in (extras or {}).items()]
    saved.fill(reads, advance)
    for shard in shards.values():
        for start, end in padding(shard):
            for role in shard.tensors:
                shard.held(role, start, end).zero_()


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
