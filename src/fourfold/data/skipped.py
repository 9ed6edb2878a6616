"""Data that a run leaves out where it goes back from a spike: sequences before a step, in the order in which it would have read
them.

A return is begun by an intent on disk, which whoever starts next brings to its end: it is made in full or not at all.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from fourfold.config import RunConfig, RunFailure
from fourfold.config.errors import unwritable
from fourfold.config.schema import SkippedData
from fourfold.config.section import Section
from fourfold.config.whole_file import bounded, write_whole

FILE = "skipped_data.json"
"""In a run's folder: what its rollbacks left out."""
LEFT_OUT = "left_out"
"""The key of what is saved beside the tensors that lists the data which the run had left out before."""
INTENT = ".rollback.json"
"""In a run's folder while it goes back: to which step, and what it has left out then."""


class LeftOut(Section):
    """How often a run went back, and the data that it leaves out for it. `to`: in an intent, the step that it goes back to."""

    rollbacks: int = 0
    skipped: list[SkippedData] = Field(default_factory=list)
    to: int | None = None


def skipped_data(config: RunConfig, out: Path) -> list[SkippedData]:
    """The data that a run leaves out: those of its file, and of its rollbacks. Raises `RunFailure`."""
    return [*config.data.skip_sequences, *left_out_by(out).skipped]


def left_out_by(out: Path) -> LeftOut:
    """The rollbacks of the run in a folder. Raises `RunFailure`."""
    path = out / FILE
    return _read(path) if path.exists() else LeftOut()


def left_out_since(
    target: int,
    step: int,
    border: int,
    trained: Callable[[int], int],
    before: Sequence[SkippedData],
    stated: Sequence[SkippedData],
) -> list[SkippedData]:
    """The data that a run's rollbacks leave out in all once it has gone back from before `step` to `target`: all that it had come
    to since then, trained on or not. `border`: the step from which data are of the present blend and length; those before it are
    left out there. `trained`: sequences of all steps before one; `before`: what its rollbacks left out so far; `stated`: what its
    file does."""
    found = [skip for skip in before if skip.step <= target]
    again = [skip for skip in before if skip.step > target]
    for first, behind in ((target, border), (border, step)) if border > target else ((target, step),):
        passed = [skip.sequences for skip in again if first <= skip.step < behind]
        passed += [skip.sequences for skip in stated if first < skip.step < behind]
        found.append(SkippedData(step=first, sequences=trained(behind) - trained(first) + sum(passed)))
    return found


def inherit(out: Path, skipped: Sequence[SkippedData]) -> None:
    """Notes the data that a branch leaves out since the run before it did, where nothing is noted. Raises `RunFailure`."""
    if skipped and not (out / FILE).exists():
        _write(out / FILE, LeftOut(skipped=list(skipped)))


def begin_rollback(out: Path, target: int, skipped: Sequence[SkippedData]) -> None:
    """Notes that the run goes back to step `target`, and what its rollbacks leave out then in all. From here on it goes back,
    whatever ends it. Raises `RunFailure`."""
    _write(out / INTENT, LeftOut(rollbacks=left_out_by(out).rollbacks + 1, skipped=list(skipped), to=target))


def pending_rollback(out: Path) -> int | None:
    """The step that the run goes back to, where that was begun and not ended. Raises `RunFailure`."""
    path = out / INTENT
    return _read(path).to if path.exists() else None


def end_rollback(out: Path) -> None:
    """Leaves the data out from now on: the checkpoints behind the target are gone. Raises `RunFailure`."""
    _write(out / FILE, _read(out / INTENT).model_copy(update={"to": None}))
    (out / INTENT).unlink()


def _read(path: Path) -> LeftOut:
    try:
        return LeftOut.model_validate_json(bounded(path))
    except (OSError, ValidationError) as error:
        raise RunFailure(
            f"{path}: cannot be read ({str(error).splitlines()[0]:.80}); it lists the data that the run left out: put it back "
            f"as it "
            f"was"
        ) from None


def _write(path: Path, content: LeftOut) -> None:
    try:
        write_whole(path, content.model_dump_json(exclude_none=True) + "\n")
    except OSError as error:
        raise RunFailure(unwritable(path, error)) from None
