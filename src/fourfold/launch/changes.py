"""A repeated command on a run's folder: what may differ from the run that stands there, and what makes it another run."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fourfold.config import RunConfig, RunFailure, UserError, num_steps
from fourfold.config.beside import place_of_text
from fourfold.config.errors import unwritable
from fourfold.config.stages import course_of
from fourfold.launch.run_folder import LOGS, RunFolder
from fourfold.runtime.progress import FILES as POSITIONS
from fourfold.train.measured import FOLDER as MEASUREMENTS

_ORDER = (
    "data",
    "batch",
    "layout",
    "precision",
    "optimizer",
    "model",
    "checkpoint",
    "cluster",
    "run",
    "faults",
    "spikes",
    "published",
)
_FREE = (
    "layout.",
    "run.",
    "checkpoint.",
    "cluster.",
    "faults.",
    "spikes.",
    "published.",
    "batch.steps",
    "batch.tokens",
    "optimizer.horizon_steps",
    "stage",
    "data.document_tokens",
    "model.as_nearest",
)
_ON_REQUEST = ("optimizer.", "precision.compute", "precision.gradients")
_PATHS = ("data.corpus", "data.tokenizer", "data.directory", "model.hf", "model.initial", "run.validation")
"""Keys that hold paths, or tables of them."""
_FIXED = ("run.seed", "optimizer.name", "checkpoint.start_from")
"""Keys that make another run although their section may change."""


@dataclass(frozen=True)
class Change:
    """A key of the run file, its value in the run that stands in the folder, and its value from now on."""

    key: str
    before: Any
    now: Any

    @property
    def is_free(self) -> bool:
        return self.key not in _FIXED and self.key.startswith(_FREE)

    @property
    def is_allowed_on_request(self) -> bool:
        return self.key not in _FIXED and self.key.startswith(_ON_REQUEST)

    def __str__(self) -> str:
        if self.key == "stage":
            return f"stages: {_stages(self.now)} (were {_stages(self.before)})"
        return f"{self.key} = {_show(self.now)} (was {_show(self.before)})"


def allowed_changes(path: Path, old: RunConfig, new: RunConfig, change: bool, saved: int = 0) -> tuple[Change, ...]:
    """The keys in which a repeated command differs from the run that stands in `path`; the run goes on under them.

    `change`: whether the optimizer and the number formats of compute may differ, as `--change` says. `saved`: the step of its
    newest checkpoint, at which it may end; stages that begin there or later may be any. Raises `UserError` naming the first key
    that makes it another run."""
    found = _differences(old, new, saved)
    for each in found:
        if each.is_free or (change and each.is_allowed_on_request):
            continue
        asked = "add --change to go on with it, or " if each.is_allowed_on_request else ""
        raise UserError(
            f"--out {path}: holds another run: {each.key} = {_show(each.now)} here, {_show(each.before)} there; {asked}name "
            f"another folder, for example --out {path}-2{_how_to_agree(each)}"
        )
    if (steps := num_steps(new)) < saved:
        raise UserError(
            f"--out {path}: batch.steps = {steps}, and the run that stands there has {saved} behind it; allowed: at least "
            f"{saved}, or another folder with --out"
        )
    return tuple(found)


def begin_changes(folder: RunFolder, changes: Sequence[Change], step: int, is_other_stage: bool = False) -> None:
    """Adds the event `change` to `events.jsonl`: the step that the run goes on from, and each key's values. Under another layout,
    or in another stage, what the ranks before left of themselves (positions, measurements, logs) goes."""
    if is_other_stage or any(each.key.startswith("layout.") for each in changes):
        for pattern in (POSITIONS, f"{MEASUREMENTS}/rank-*.json", f"{LOGS}/rank-*"):
            for path in folder.path.glob(pattern):
                path.unlink()
    if not changes:
        return
    event = {
        "time": time.time(),
        "event": "change",
        "step": step,
        "message": ", ".join(map(str, changes)),
        "keys": {each.key: [each.before, each.now] for each in changes},
    }
    try:
        with open(folder.events, "a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
    except OSError as error:
        raise RunFailure(unwritable(folder.events, error)) from None


def forget_ranks(folder: RunFolder, ranks: int) -> None:
    """Removes what ranks that are no more measured, where the run goes on with `ranks` of them."""
    for path in folder.path.glob(f"{MEASUREMENTS}/rank-*.json"):
        if not path.stem.removeprefix("rank-").isdecimal() or int(path.stem.removeprefix("rank-")) >= ranks:
            path.unlink(missing_ok=True)


def _differences(old: RunConfig, new: RunConfig, saved: int) -> list[Change]:
    """Differences of the stages that the run has behind it, and of the one that goes on; then of the list of stages."""
    before, now = course_of(old), course_of(new)
    starts = {stage.begin for course in (before, now) for stage in course.stages if stage.begin < saved}
    found: dict[str, Change] = {}
    for step in sorted({0, *starts}):
        for change in _between(before.stage_at(step).config, now.stage_at(step).config):
            found.setdefault(change.key, change)
    if old.stage != new.stage:
        was, is_now = (config.model_dump(mode="json", exclude_defaults=True).get("stage") for config in (old, new))
        found["stage"] = Change("stage", was, is_now)
    was_begun, is_begun = ([s.begin for s, _ in course.schedules if s.begin < saved] for course in (before, now))
    if was_begun != is_begun:
        found.setdefault(
            "optimizer.schedule", Change("optimizer.schedule", f"from steps {was_begun}", f"from steps {is_begun}")
        )
    if (was_left := _left_out(old, saved)) != (is_left := _left_out(new, saved)):
        found["data.skip_sequences"] = Change("data.skip_sequences", was_left, is_left)
    if saved and "batch.ramp" not in found and before.samples_before(saved) != now.samples_before(saved):
        found["batch.ramp"] = Change("batch.ramp", before.samples_before(saved), now.samples_before(saved))
    order = [*_ORDER, "stage"]
    return sorted(found.values(), key=lambda each: order.index(each.key.partition(".")[0]))


def _left_out(config: RunConfig, saved: int) -> list[dict[str, int]]:
    """The data that the run left out before a step: what it leaves out later may still be decided."""
    return [skip.model_dump() for skip in config.data.skip_sequences if skip.step < saved]


def _between(old: RunConfig, new: RunConfig) -> list[Change]:
    before, now = (config.model_dump(mode="json", exclude={"data": {"skip_sequences"}}) for config in (old, new))
    return [
        Change(f"{section}.{key}", before[section].get(key), value)
        for section in _ORDER
        for key, value in now[section].items()
        if value != before[section].get(key) and not _is_same_place(f"{section}.{key}", value, before[section].get(key))
    ]


def _is_same_place(key: str, value: Any, other: Any) -> bool:
    """Whether two values name the same files by different paths."""
    return key in _PATHS and place_of_text(value) == place_of_text(other)


def _show(value: Any) -> str:
    return "not stated" if value is None else json.dumps(value)


def _stages(value: list[dict[str, Any]] | None) -> str:
    """Names or numbers of stages, and their ends."""
    told = [
        f"{each.get('name') or number} to {each.get('until_steps') or each.get('until_tokens') or 'the end'}"
        for number, each in enumerate(value or [], 1)
    ]
    return ", ".join(told) or "none"


def _how_to_agree(change: Change) -> str:
    value = change.before
    if value is None or isinstance(value, (list, dict)):
        return ""
    return f", or state {change.key}={value if isinstance(value, str) else json.dumps(value)} to go on with that run"
