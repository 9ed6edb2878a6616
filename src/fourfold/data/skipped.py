"""Data that a run left out when it went back from a spike: sequences before a step, in the order in which it would have read
them."""

import json
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from fourfold.config import RunConfig, RunFailure
from fourfold.config.errors import unwritable
from fourfold.config.schema import SkippedData
from fourfold.config.whole_file import bounded, write_whole

FILE = "skipped_data.json"
"""In a run's folder: what its rollbacks left out, one entry each."""
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


def note_rollback(out: Path, target: int, sequences: int) -> None:
    """Adds the data since a checkpoint to those that the run leaves out. Raises `RunFailure`."""
    entries: list[dict[str, int]] = [entry.model_dump() for entry in read_skipped(out)]
    entries.append({"step": target, "sequences": sequences})
    try:
        write_whole(out / FILE, json.dumps(entries) + "\n")
    except OSError as error:
        raise RunFailure(unwritable(out / FILE, error)) from None
