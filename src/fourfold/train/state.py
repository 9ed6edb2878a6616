"""A run's state as checkpoints hold it: every unit's master shard and moments, the cursor, and the counters."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fourfold.checkpoint import UnitShard, WeightFolder, load_checkpoint, save_checkpoint
from fourfold.config import RunConfig
from fourfold.layout import FlatLayout
from fourfold.program.buffers import Lowering
from fourfold.runtime.initialize import initialize_shard
from fourfold.runtime.units import FillShard, Unit


def initial_fill(config: RunConfig, facts: Lowering) -> FillShard:
    """Where parameters come from at step 0: the weights in `model.initial`, or the seed."""
    if config.model.initial is None:
        return lambda flat, index, out: initialize_shard(flat, index, config.run.seed, out)
    folder = WeightFolder(Path(config.model.initial))
    folder.check_against(facts.segments)
    return lambda flat, index, out: _fill_from_folder(folder, flat, index, out)


def no_fill(flat: FlatLayout, index: int, out: Tensor) -> None:
    """Zeros, where a checkpoint is loaded next."""
    out.zero_()


def _fill_from_folder(folder: WeightFolder, flat: FlatLayout, index: int, out: Tensor) -> None:
    out.zero_()
    shard_start, shard_end = flat.shard_range(index)
    for spec, start, end in flat.ranges():
        low, high = max(start, shard_start), min(end, shard_end)
        if low < high:
            out[low - shard_start : high - shard_start] = folder.range(spec.name, low - start, high - start).to(out)


def unit_shards(units: Mapping[str, Unit]) -> dict[str, UnitShard]:
    """The tensors that a checkpoint saves, sharing memory with the units."""
    return {
        name: UnitShard(
            unit.flat,
            unit.index,
            {"master": unit.master, "exp_avg": unit.optimizer.exp_avg, "exp_avg_sq": unit.optimizer.exp_avg_sq},
        )
        for name, unit in units.items()
    }


def checkpoint_root(config: RunConfig, out: Path) -> Path:
    """Where a run's checkpoints lie."""
    return Path(config.checkpoint.directory) if config.checkpoint.directory else out / "checkpoints"


def is_writer(facts: Lowering, rank: int) -> bool:
    """Of the ranks that hold the same shard, the first writes it."""
    own = facts.layout.coordinates(rank)
    return own["dp_replicate"] == 0 and (facts.zero > 0 or own["dp_shard"] == 0)


def save(
    config: RunConfig,
    out: Path,
    facts: Lowering,
    units: Mapping[str, Unit],
    step: int,
    info: Mapping[str, Any],
    rank: int,
    synchronize: Callable[[], None],
) -> Path:
    """Saves the state before step `step`. Called by every rank."""
    return save_checkpoint(
        checkpoint_root(config, out),
        step,
        unit_shards(units),
        info,
        rank=rank,
        is_writer=is_writer(facts, rank),
        synchronize=synchronize,
        keep=config.checkpoint.keep,
    )


def restore(path: Path, units: Mapping[str, Unit]) -> dict[str, Any]:
    """Fills the units from a checkpoint and returns what was saved beside them."""
    return load_checkpoint(path, unit_shards(units))
