"""A run's state as checkpoints hold it: every unit's master shard and optimizer states, the cursor, and the counters."""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fourfold.checkpoint import (
    Manifest,
    UnitShard,
    WeightFolder,
    fill_from_folder,
    is_first_of_stage,
    load_checkpoint,
    read_manifest,
    save_checkpoint,
    step_folders,
    step_of,
    unit_shard,
)
from fourfold.checkpoint.commit import rank_tensors
from fourfold.checkpoint.file_bytes import ByteSource
from fourfold.checkpoint.folders import MANIFEST, Retention, most_of, remove_checkpoint
from fourfold.checkpoint.unit_shard import balance_bias_extra
from fourfold.checkpoint.waiting import best_step, retention_for, waits
from fourfold.config import FinalFailure, RunConfig, RunFailure, load_run
from fourfold.config.remote_path import place
from fourfold.config.schema import CheckpointSection
from fourfold.config.stages import STAGE, Course, Stage, course_of
from fourfold.data.skipped import end_rollback, pending_rollback
from fourfold.layout import FlatLayout, Layout
from fourfold.program.spec import StepSpec
from fourfold.program.view import RankView
from fourfold.rendezvous.fence import fenced
from fourfold.rendezvous.ownership import run_in, still_own
from fourfold.runtime.initialize import initialize_shard
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import FillShard, Unit

COPIES = "copies"
"""The key of a run's `data.json` that says where its copies are, while its disk holds no checkpoint."""
_OPTIMIZER = "optimizer"
"""The key of the optimizer's name in what is saved beside the tensors."""


def initial_folder(config: RunConfig, spec: StepSpec) -> WeightFolder | None:
    """The weights in `model.initial`, fitting this model."""
    if config.model.initial is None:
        return None
    folder = WeightFolder(Path(config.model.initial))
    folder.check_against(spec.model)
    return folder


def initial_fill(
    folder: WeightFolder | None, seed: int, layout: Layout, rank: int, advance: Callable[[], None]
) -> FillShard:
    """Where parameters come from at step 0: the released weights, or else the seed. `advance` is called as they come."""
    coordinates = layout.coordinates(rank)
    if folder is None:
        return lambda flat, index, out: initialize_shard(flat, index, seed, coordinates, out, advance)
    return lambda flat, index, out: fill_from_folder(folder, flat, index, coordinates, out, advance)


def no_fill(flat: FlatLayout, index: int, out: Tensor) -> None:
    """Zeros, where a checkpoint is loaded next."""
    out.zero_()


def initial_biases(folder: WeightFolder | None, view: RankView, routers: Routers) -> None:
    """Balancing biases of the released weights, where they have them."""
    if folder is None or view.spec.model.router != "sigmoid":
        return
    for segment in view.moe_segments:
        bias = folder.balance_bias(segment.layer or 0)
        if bias is not None:
            routers.biases[segment.name].copy_(bias)


def unit_shards(layout: Layout, units: Mapping[str, Unit], rank: int) -> dict[str, UnitShard]:
    """The tensors that a checkpoint saves, sharing memory with the units."""
    return {
        name: unit_shard(
            unit.flat,
            unit.index,
            unit.states,
            layout,
            rank,
            {each.name: unit.flat.num_matrices for each in unit.optimizer.partial},
        )
        for name, unit in units.items()
    }


def extra_tensors(view: RankView, routers: Routers) -> dict[str, Tensor]:
    """Tensors of a checkpoint beside the units: the balancing biases of routers that read them."""
    if view.spec.model.router != "sigmoid":
        return {}
    return {balance_bias_extra(s.layer or 0): routers.biases[s.name] for s in view.moe_segments}


def checkpoint_root(config: RunConfig, out: Path) -> Path:
    """Where a run's checkpoints lie."""
    return place(config.checkpoint.directory) if config.checkpoint.directory else out / "checkpoints"


def saved_steps(config: RunConfig, out: Path) -> list[Path]:
    """The folders of saved steps, newest first, where the run saves and where it saved before; of a run without any those that it
    begins from, and of a replay its one."""
    table = run_data(out)
    if "restore_from" in table:  # a replay
        return [place(table["restore_from"])]
    start = config.checkpoint.start_from
    return _own_steps(config, out, table) or (start_paths(place(start)) if start is not None else [])


def own_steps(config: RunConfig, out: Path) -> list[Path]:
    """The folders of steps that the run itself has saved, newest first, or their copies where its disk has none."""
    return _own_steps(config, out, run_data(out))


def kind_of_place(path: Path, table: Mapping[str, Any]) -> str:
    """Where a checkpoint that a run goes on from lies: `copy` or `disk`. `table`: its `data.json`."""
    return "copy" if COPIES in table and path.parent == place(table[COPIES]) else "disk"


def run_data(out: Path) -> dict[str, Any]:
    """The content of a run's `data.json`. Raises `RunFailure`."""
    file = out / "data.json"
    try:
        table = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunFailure(f"{file}: cannot be read ({error!s:.80}); train the run on, which mends it") from None
    if not isinstance(table, dict):
        raise RunFailure(f"{file}: holds no table; train the run on, which mends it")
    return table


def run_stage(out: Path) -> tuple[Course, Stage]:
    """The course of the run in `out`, and the stage that its launch, or its last one, trains. Raises `RunFailure`."""
    course = course_of(load_run(out / "run.toml", as_written=True))
    number = run_data(out).get(STAGE, 0)
    if type(number) is not int or not 0 <= number < len(course.stages):
        raise RunFailure(
            f"{out / 'data.json'}: {STAGE} = {number!r} is none of the run; train the run on, which mends it"
        )
    return course, course.stages[number]


def start_paths(path: Path) -> list[Path]:
    """The checkpoints of a run's folder, of a folder of checkpoints, or the one that `path` is; newest first."""
    if (path / MANIFEST).is_file():
        return [path]
    if (path / "run.toml").is_file():
        try:
            table = run_data(path)
        except RunFailure:
            table = {}
        return _own_steps(load_run(path / "run.toml", as_written=True), path, table)
    return step_folders(path)[::-1]


def _own_steps(config: RunConfig, out: Path, table: Mapping[str, Any]) -> list[Path]:
    roots = [checkpoint_root(config, out), *map(place, table.get("former_checkpoints", []))]
    found = [path for root in roots for path in step_folders(root)]
    if not found and COPIES in table:
        found = step_folders(place(table[COPIES]))
    return sorted(found, key=lambda path: step_of(path) or 0, reverse=True)


def forget_after(config: RunConfig, out: Path, step: int) -> None:
    """Removes the run's checkpoints of later steps. Raises `RunFailure` where one stays."""
    for path in own_steps(config, out):
        if (step_of(path) or 0) > step:
            try:
                remove_checkpoint(path)
            except OSError as error:
                raise RunFailure(
                    f"{path}: cannot be removed ({error.strerror}), and is of a step that the run went back from"
                ) from None


def finish_rollback(config: RunConfig, out: Path) -> int | None:
    """Removes the checkpoints that a run goes back from, where it does, and leaves the data out; the step that it goes back to. May
    be called again where it was cut short. Raises `RunFailure`."""
    target = pending_rollback(out)
    if target is not None:
        forget_after(config, out, target)
        end_rollback(out)
    return target


def save(
    config: RunConfig,
    out: Path,
    view: RankView,
    units: Mapping[str, Unit],
    routers: Routers,
    step: int,
    info: Mapping[str, Any],
    rank: int,
    synchronize: Callable[[], None],
    tensors: Mapping[str, Tensor] | None = None,
    check: Callable[[], None] | None = None,
    advance: Callable[[], None] = lambda: None,
    ends: Collection[int] = (),
) -> Path:
    """Saves the state before step `step`. Called by every rank. `ends`: of the run's stages. `tensors`: copies of
    `written_tensors`, to be saved instead. `check`, `advance`: as in `save_checkpoint`."""
    number = int(os.environ["FOURFOLD_FENCE"]) if "FOURFOLD_FENCE" in os.environ else None
    root = checkpoint_root(config, out)
    return save_checkpoint(
        root,
        step,
        unit_shards(view.spec.layout, units, rank),
        {**full_info(info, view, number), **run_in(out)},
        rank=rank,
        synchronize=synchronize,
        keep=retention_of(config.checkpoint, view.spec, info, ends),
        units=unit_names(view.spec),
        extras=extra_tensors(view, routers) if is_first_of_stage(view.spec.layout, rank) else None,
        layout=view.spec.layout,
        total_bytes=view.spec.checkpoint_bytes,
        tensors=tensors,
        check=check,
        advance=advance,
        fence=partial(_guarded, out, root, number),
        waits=waits(config.checkpoint, ends, out),
    )


def retention_of(
    section: CheckpointSection, spec: StepSpec, info: Mapping[str, Any], ends: Collection[int]
) -> Retention:
    """Which checkpoints of a run stay, once that with `info` is saved."""
    most = most_of(section.max_bytes, spec.checkpoint_bytes)
    return replace(retention_for(section, ends, best_step(info)), most=most)


@contextmanager
def _guarded(out: Path, root: Path, number: int | None) -> Iterator[None]:
    """A commit that only the ranks started last make, of the run that the folder of checkpoints belongs to."""
    with fenced(out, number):
        still_own(root, out)
        yield


def full_info(info: Mapping[str, Any], view: RankView, fence: int | None) -> dict[str, Any]:
    """The values that are saved beside the tensors."""
    return {**info, _OPTIMIZER: view.spec.optimizer.name, **({"fence": fence} if fence is not None else {})}


def written_tensors(view: RankView, units: Mapping[str, Unit], routers: Routers, rank: int) -> dict[str, Tensor]:
    """The tensors that this rank writes to a checkpoint, by their names there, sharing memory with the state."""
    layout = view.spec.layout
    shards = {name: shard for name, shard in unit_shards(layout, units, rank).items() if shard.is_writer}
    return rank_tensors(shards, extra_tensors(view, routers) if is_first_of_stage(layout, rank) else {})


def unit_names(spec: StepSpec) -> list[str]:
    """Names of all units of the model, whichever stage holds them."""
    return [unit.name for segment in spec.segments for unit in segment.own]


def restore(
    path: Path,
    view: RankView,
    units: Mapping[str, Unit],
    routers: Routers,
    rank: int,
    manifest: Manifest | None = None,
    sources: Mapping[str, ByteSource] | None = None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Fills the units and biases from a checkpoint and returns what was saved beside them. `manifest`, `sources`: of a state in
    memory. `advance` is called as parts of it are read. Raises `FinalFailure` for the state of another optimizer."""
    saved, own = (manifest or read_manifest(path)).info.get(_OPTIMIZER), view.spec.optimizer.name
    if saved != own:
        raise FinalFailure(
            f"{path} was saved with optimizer.name = {saved!r}, this run has {own!r}; set optimizer.name = {saved!r} to resume "
            f"it, or take its weights alone: model.initial = a folder that fourfold export wrote"
        )
    return load_checkpoint(
        path,
        unit_shards(view.spec.layout, units, rank),
        units=unit_names(view.spec),
        extras=extra_tensors(view, routers),
        manifest=manifest,
        sources=sources,
        advance=advance,
    )
