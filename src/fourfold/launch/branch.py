"""`--from RUN@STEP`: the checkpoint from which a new run branches, and the data that its run had left out by then."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fourfold.config import RunConfig, UserError
from fourfold.config.errors import shortened
from fourfold.config.remote_path import is_remote, place
from fourfold.config.schema import SkippedData
from fourfold.config.stages import course_of
from fourfold.data.skipped import LEFT_OUT
from fourfold.launch.copied import copies_of
from fourfold.launch.run_folder import RUN_FILE, RunFolder, checkpoints_in

_MANIFEST, _NAME = "manifest.json", "step-"
_MOST_TOLD = 12


def with_branch(config: RunConfig, folder: RunFolder, start: str | None) -> RunConfig:
    """The run, beginning at the checkpoint that `--from` names. A branch that stands in its folder keeps the one that it began
    with, whatever became of that run since. Raises `UserError`."""
    if start is None:
        return config
    if config.checkpoint.start_from is not None:
        raise UserError(
            f"--from {start} and checkpoint.start_from = {config.checkpoint.start_from} are both stated; keep one of them"
        )
    old = folder.launched()
    begun = old.checkpoint.start_from if old is not None else None
    try:
        found, is_newest = branch_point(start)
    except UserError:
        step = start.rpartition("@")[2].removeprefix(_NAME)
        if begun is None or (step.isdecimal() and place(begun).name != f"{_NAME}{int(step):06d}"):
            raise
        found, is_newest = place(begun), False
    if begun is not None and is_newest and place(begun).parent == found.parent:  # that run has gone on since
        found = place(begun)
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"start_from": str(found)})})


def branch_point(start: str) -> tuple[Path, bool]:
    """The checkpoint that a text names, and whether as the newest: RUN@STEP, RUN@NAME of a stage, whose end it is, RUN or a folder
    of checkpoints, the newest, or a checkpoint. A path may hold an @. Raises `UserError`."""
    as_path = place(start)
    if (as_path / _MANIFEST).is_file():
        return (as_path if is_remote(as_path) else as_path.absolute()), False
    if as_path.is_dir() and (saved := _kept(as_path)):
        return saved[max(saved)], True
    places = [number for number, letter in enumerate(start) if letter == "@" and number]
    cut = next((number for number in reversed(places) if place(start[:number]).is_dir()), None)
    if cut is None:
        raise UserError(
            f"--from {start}: is no run's folder, no folder of checkpoints and no checkpoint; what works: --from runs/main@120000"
        )
    run, name = start[:cut], start[cut + 1 :]
    kept = _kept(path := place(run))
    if not kept:
        raise UserError(
            f"--from {start}: {run} holds no checkpoint; what works: a run that has saved one, such as runs/main"
        )
    ends = _stage_ends(path)
    text = name.removeprefix(_NAME).replace("_", "")
    if not text.isdecimal() and name not in ends:
        stages = f", or a stage, whose end it is: {', '.join(ends)}" if ends else ""
        raise UserError(
            f"--from {start}: {shortened(name)} is no step{' and no stage' if ends else ''} of {run}; allowed: a step that is kept "
            f"({_listed(kept)}){stages}; what works: --from {run}@{max(kept)}"
        )
    step = int(text) if text.isdecimal() else ends[name]
    if step not in kept:
        near = min(kept, key=lambda each: (abs(each - step), each))
        of = "" if text.isdecimal() else f" (the end of {name})"
        raise UserError(
            f"--from {start}: {run} keeps no checkpoint of step {step}{of}; allowed: one that is kept ({_listed(kept)}); what "
            f"works: --from {run}@{near}"
        )
    return kept[step], False


def _kept(path: Path) -> dict[int, Path]:
    """The checkpoints of a run's folder, its copies too, or of a folder of checkpoints, by step, rising."""
    absolute = path if is_remote(path) else path.absolute()
    if not (path / RUN_FILE).is_file():
        return checkpoints_in([absolute])
    folder = RunFolder(absolute)
    config = folder.require_config(trust=True)
    found, copies = folder.checkpoints_on_disk(config), copies_of(config)
    if copies is not None:
        with suppress(UserError, OSError):  # a place that does not answer has none to offer
            found = {**checkpoints_in([copies]), **found}
    return dict(sorted(found.items()))


def _stage_ends(path: Path) -> dict[str, int]:
    """The ends of a run's stages by name."""
    if not (path / RUN_FILE).is_file():
        return {}
    course = course_of(RunFolder(path).require_config(trust=True))
    return {stage.name: stage.end for stage in course.stages if stage.name}


def _listed(steps: Iterable[int]) -> str:
    every = list(steps)
    shown = every if len(every) <= _MOST_TOLD else [*every[: _MOST_TOLD // 2], *every[-_MOST_TOLD // 2 :]]
    more = f"; {len(every) - len(shown)} in between" if len(every) > len(shown) else ""
    return ", ".join(map(str, shown)) + more


def inherited(config: RunConfig, info: Mapping[str, Any], step: int) -> tuple[SkippedData, ...]:
    """The data that a branch leaves out before its first step, because the run that it branches from did, and its own file does
    not say so. `info`: that was saved beside the tensors of step `step`."""
    try:
        left_out = TypeAdapter(list[SkippedData]).validate_python(info.get(LEFT_OUT, []))
    except ValidationError:
        return ()
    own = Counter((skip.step, skip.sequences) for skip in config.data.skip_sequences if skip.step < step)
    theirs = Counter((skip.step, skip.sequences) for skip in left_out)
    return tuple(SkippedData(step=at, sequences=size) for at, size in sorted((theirs - own).elements()))
