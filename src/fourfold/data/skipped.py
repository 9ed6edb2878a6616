"""Data that a run left out when it went back from a spike: sequences before a step, in the order in which it would have read
them."""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fourfold.config import RunConfig, RunFailure
from fourfold.config.errors import unwritable
from fourfold.config.schema import SkippedData
from fourfold.config.section import Section
from fourfold.config.whole_file import bounded, write_whole

FILE = "skipped_data.json"
"""In a run's folder: what its rollbacks left out, one entry each."""
INTENT = ".rollback.json"
"""In a run's folder while it goes back: to which step, and what it has left out then."""
_SKIPS: TypeAdapter[list[SkippedData]] = TypeAdapter(list[SkippedData])


def skipped_data(config: RunConfig, out: Path) -> list[SkippedData]:
    """The data that a run leaves out: those of its file, and of its rollbacks. Raises `RunFailure`."""
    return [*config.data.skip_sequences, *read_skipped(out)]


def read_skipped(out: Path) -> list[SkippedData]:
    """The entries of a run's folder. Raises `RunFailure`."""
    path = out / FILE
    if not path.exists():
        return []
    try:
        return _SKIPS.validate_json(bounded(path))
    except (OSError, ValidationError) as error:
        raise RunFailure(
            f"{path}: cannot be read ({str(error).splitlines()[0]:.80}); it lists the data that the run left out, as "
            f"a list of steps and sequences: put it back as it was"
        ) from None


def begin_rollback(out: Path, target: int, entries: Sequence[SkippedData]) -> None:
    """Notes that the run goes back to step `target`, and what it then has left out in all. From here on it does, whatever ends it:
    `finish_rollback` does the rest, once more where it was cut short. Raises `RunFailure`."""
    _write(out / INTENT, {"to": target, "skipped": [entry.model_dump() for entry in entries]})


def pending_rollback(out: Path) -> int | None:
    """The step that the run goes back to, where that was begun and not ended. Raises `RunFailure`."""
    path = out / INTENT
    return _Intent.model_validate_json(bounded(path)).to if path.exists() else None


def end_rollback(out: Path) -> None:
    """Leaves the data out from now on: the checkpoints behind the target are gone. Raises `RunFailure`."""
    intent = _Intent.model_validate_json(bounded(out / INTENT))
    _write(out / FILE, [entry.model_dump() for entry in intent.skipped])
    (out / INTENT).unlink()


class _Intent(Section):
    to: int
    skipped: list[SkippedData]


def _write(path: Path, content: object) -> None:
    try:
        write_whole(path, json.dumps(content) + "\n")
    except OSError as error:
        raise RunFailure(unwritable(path, error)) from None
