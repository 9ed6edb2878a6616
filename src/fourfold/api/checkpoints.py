"""Checkpoints of a run: found, verified, resharded, and replayed, all from what their manifests say."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fourfold.config import RunConfig, RunFailure, UserError, parse_run
from fourfold.config.remote_path import is_remote
from fourfold.config.run_file import apply_override, require_trust
from fourfold.config.run_rows import step_rows
from fourfold.config.schema import FaultsSection
from fourfold.launch.machine import threads_per_rank
from fourfold.launch.resolve import resolve_run
from fourfold.launch.run_folder import RUN_FILE, RunFolder
from fourfold.supervise.supervisor import supervise

_COMPARED = ("loss", "grad_norm")


@dataclass(frozen=True)
class SavedCheckpoint:
    """A complete checkpoint. `folder`: that of its run, None where it lies elsewhere. `config`: the run that saved it,
    which may name code where `trust` says so."""

    path: Path
    step: int
    size_bytes: int
    layout: Mapping[str, int]
    info: Mapping[str, Any]
    folder: RunFolder | None
    trust: bool = False

    @property
    def config(self) -> RunConfig:
        """The run that saved it. Raises `UserError` where the checkpoint does not say it, or names code without `trust`."""
        if "config" in self.info:
            return require_trust(parse_run(self.info["config"], source=str(self.path)), self.trust)
        if self.folder is not None:
            return self.folder.stage_config(self.trust)
        raise UserError(f"{self.path}: does not say which run saved it; name the run's folder")

    def to_json(self) -> dict[str, Any]:
        """Step, place, size, layout, chain, and where it comes from: versions, code, data, lineage."""
        told = {
            key: self.info.get(key) for key in ("tokens", "chain", "program", "versions", "code", "data", "lineage")
        }
        return {
            "step": self.step,
            "path": str(self.path),
            "size_bytes": self.size_bytes,
            "layout": dict(self.layout),
            **told,
        }


def saved_checkpoint(path: Path, folder: RunFolder | None = None, trust: bool = False) -> SavedCheckpoint:
    """A checkpoint's manifest. `trust`: its run may name code. Raises `RunFailure`."""
    from fourfold.checkpoint import read_manifest

    manifest = read_manifest(path)
    size_bytes = sum(file.size_bytes for file in manifest.files.values())
    if folder is None and not is_remote(path) and (path.absolute().parent.parent / RUN_FILE).is_file():
        folder = RunFolder(path.absolute().parent.parent)
    return SavedCheckpoint(path, manifest.step, size_bytes, manifest.layout, manifest.info, folder, trust)


def checkpoint_paths(path: Path) -> tuple[list[Path], RunFolder | None]:
    """The checkpoints of a run's folder, of a folder of checkpoints, or the one that `path` is; rising steps. Raises `UserError`
    where there is none."""
    from fourfold.checkpoint import checkpoints
    from fourfold.checkpoint.folders import MANIFEST

    if (path / RUN_FILE).is_file():
        folder = RunFolder(path)
        found = list(folder.saved_checkpoints(folder.require_config(trust=True)).values())
        if not found:
            raise UserError(
                f"{path}: this run has saved no checkpoint yet; let it finish, or save more often "
                f"(checkpoint.every_steps=100)"
            )
        return found, folder
    if (path / MANIFEST).is_file():
        return [path], None
    if found := checkpoints(path):
        return found, None
    raise UserError(
        f"{path}: holds no {RUN_FILE} and no checkpoint; a path that works: runs/tiny, or runs/tiny/checkpoints/step-000100"
    )


def chosen_checkpoint(path: Path, step: int | None, trust: bool = False) -> SavedCheckpoint:
    """The newest checkpoint at `path`, or that of `step`. `trust`: its run may name code. Raises `UserError`."""
    paths, folder = checkpoint_paths(path)
    by_step = {int(each.name.removeprefix("step-")): each for each in paths}
    if step is not None and step not in by_step:
        raise UserError(
            f"--step {step}: the checkpoints are of steps {', '.join(map(str, by_step))}; allowed: one of these"
        )
    return saved_checkpoint(by_step[step] if step is not None else paths[-1], folder, trust)


def verify_checkpoint(path: Path) -> None:
    """Reads every byte and compares it with its digest. Raises `RunFailure` naming the file and the bytes that differ."""
    from fourfold.checkpoint import read_manifest
    from fourfold.checkpoint.saved_state import SavedState

    SavedState(path, read_manifest(path)).verify_all()


def reshard(found: SavedCheckpoint, overrides: Sequence[str], ranks: int | None, out: Path) -> tuple[Path, RunConfig]:
    """Writes a checkpoint below `out` as a layout would have saved it; `overrides` state the layout, `layout.tp=2` and so on.
    Returns its folder and the run under that layout. Raises `UserError` and `RunFailure`."""
    from fourfold.checkpoint import reshard_checkpoint

    table = {**found.config.model_dump(mode="json", exclude_none=True), "layout": {}}
    for override in overrides:
        if not override.startswith("layout."):
            raise UserError(f"{override}: only the layout changes; what works: layout.tp=2 layout.zero=1")
        apply_override(table, override)
    resolved = resolve_run(parse_run(table), ranks, None)
    info = {"config": resolved.config.model_dump(mode="json")}
    return reshard_checkpoint(found.path, out, resolved.spec, info), resolved.config


@dataclass(frozen=True)
class Replay:
    """Steps that were run again. `differences`: the first step and value that are not equal, in words; empty where all are.
    `state_compared`: whether the run has a checkpoint after them, whose every tensor was compared too."""

    first: int
    last: int
    differences: tuple[str, ...]
    state_compared: bool


def replay(found: SavedCheckpoint, steps: int) -> Replay:
    """Runs `steps` steps from a checkpoint again, with as many ranks as saved it, and compares losses, gradient norms and, where
    the run has a checkpoint after them, the state, bit for bit. Raises `UserError` and `RunFailure`."""
    folder, config = found.folder, found.config
    if folder is None:
        raise UserError(f"{found.path}: lies in no run's folder, which knows the data; name the run's folder")
    course, _ = folder.course(found.trust)
    stage = course.stage_at(found.step)
    end = min(found.step + steps, stage.end)
    recorded = step_rows(folder.metrics, found.step, end)
    wanted = [step for step in range(found.step, end) if step in recorded]
    if steps < 1 or not wanted:
        raise UserError(
            f"--replay {steps}: {folder.path} has no steps after {found.path.name} to compare with; name an earlier "
            f"checkpoint with --step, or let the run go on"
        )
    end = wanted[-1] + 1
    quiet = {
        "checkpoint": config.checkpoint.model_copy(update={"directory": None, "every_steps": None}),
        "run": config.run.model_copy(update={"evaluate_every": None, "sample_tokens": 0, "log": []}),
    }
    with tempfile.TemporaryDirectory(prefix="replay-", dir=folder.path) as place:
        scratch, ranks = RunFolder(Path(place) / "run"), resolve_run(config, None, None).layout.world_size
        data = {**folder.data(), **folder.stage_data(stage.number)}
        table = {**data, "restore_from": str(found.path.absolute()), "stop_at": end}
        scratch.write(folder.require_config(found.trust).model_copy(update=quiet), table)
        outcome = supervise(scratch, ranks, threads_per_rank(config, ranks), FaultsSection(attempts=1))
        if outcome.message:
            raise RunFailure(f"the replay failed: {outcome.message}")
        again = step_rows(scratch.metrics)
        if wanted[-1] not in again:
            raise RunFailure(f"the replay stopped before step {wanted[-1]}; try again")
        different = [
            f"step {step}: {key} is {again[step].get(key)!r} now, {recorded[step].get(key)!r} was recorded"
            for step in wanted
            for key in _COMPARED
            if again[step].get(key) != recorded[step].get(key)
        ]
        after = folder.saved_checkpoints(folder.require_config(found.trust)).get(end)
        if after is not None:
            different += _state_differences(after, scratch.saved_checkpoints(config.model_copy(update=quiet))[end])
        return Replay(found.step, end, tuple(different[:1]), after is not None)


def _state_differences(recorded: Path, again: Path) -> list[str]:
    """The first difference between two checkpoints of one step: a digest of a rank's file, or the chain."""
    from fourfold.checkpoint import read_manifest

    one, other = read_manifest(recorded), read_manifest(again)
    if one.layout != other.layout:
        return []
    files = [f"step {one.step}: {name} is not equal" for name in one.files if one.files[name] != other.files.get(name)]
    if one.info.get("chain") != other.info.get("chain"):
        files.append(f"step {one.step}: the chain of losses and gradient norms is not equal")
    return files
