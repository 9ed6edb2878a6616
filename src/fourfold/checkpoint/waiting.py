"""Checkpoints that wait on the disk for their copy or export, which a process beside the run makes (`fourfold.upkeep`).

That process writes what it has done and is at; whoever deletes old checkpoints reads it."""

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fourfold.checkpoint.folders import MANIFEST, Retention, stages_end, step_of
from fourfold.config.schema import CheckpointSection
from fourfold.config.whole_file import bounded, write_whole

FILE = ".upkeep.json"
BEST = "best"
"""The key of the step whose validation loss was the least of those that were saved, and of that loss."""
_MANIFEST_BYTES = 1 << 27


@dataclass
class Done:
    """The work that was done on a run's checkpoints. `copied`, `exported`: the name of the save by step; `busy`: steps that are
    read now, by the work that reads them."""

    copied: dict[int, str] = field(default_factory=dict)
    exported: dict[int, str] = field(default_factory=dict)
    busy: dict[str, int] = field(default_factory=dict)

    def write(self, out: Path) -> None:
        """Leaves it in the run's folder. Raises `OSError`."""
        write_whole(out / FILE, json.dumps(vars(self)) + "\n")


def read_done(out: Path) -> Done:
    """The work that was done on the checkpoints of the run in `out`; none where nobody wrote it."""
    with suppress(OSError, ValueError, RecursionError, TypeError, AttributeError):
        table = json.loads(bounded(out / FILE))
        copied, exported = (
            {int(step): str(name) for step, name in table[key].items()} for key in ("copied", "exported")
        )
        return Done(copied, exported, {str(work): int(step) for work, step in table["busy"].items()})
    return Done()


def attempt_at(checkpoint: Path) -> str | None:
    """The name of the save that wrote a checkpoint; None where it is none, or not to be read now."""
    with suppress(OSError, ValueError, RecursionError):
        document: Any = json.loads(bounded(checkpoint / MANIFEST, _MANIFEST_BYTES))
        return str(document["attempt"]) if isinstance(document, Mapping) and "attempt" in document else None
    return None


def is_exported(section: CheckpointSection, ends: Collection[int], step: int) -> bool:
    """Whether a run writes an export of the checkpoint of a step. `ends`: of its stages."""
    every = section.export_every_steps
    return (every is not None and step % every == 0) or (section.export_stage_ends and step in ends)


def best_step(info: Mapping[str, Any]) -> int | None:
    """The step of the best validation loss so far, as a checkpoint's `info` has it."""
    found = info.get(BEST)
    return found[0] if isinstance(found, list | tuple) and found and type(found[0]) is int else None


def retention_for(section: CheckpointSection, ends: Collection[int], best: int | None) -> Retention:
    """Which checkpoints of a run stay, on the disk and elsewhere, whatever their bytes. `best`: the step that is best."""
    steps = stages_end(ends, section.keep_stage_ends)
    return Retention(section.keep, section.keep_every_steps, steps, best if section.keep_best else None)


def waits(section: CheckpointSection, ends: Collection[int], out: Path) -> Callable[[Path], bool]:
    """Whether a checkpoint that would be deleted now waits for its copy or export."""

    def waits_now(path: Path) -> bool:
        step, done = step_of(path) or 0, read_done(out)
        if step in done.busy.values():
            return True
        is_copied = section.copy_to is None or not section.copy_all or done.copied.get(step) == attempt_at(path)
        return not is_copied or (is_exported(section, ends, step) and done.exported.get(step) != attempt_at(path))

    return waits_now
