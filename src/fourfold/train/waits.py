"""A rank that waits in vain: the message names where it stands, and whom it waits for."""

from pathlib import Path

import torch.distributed as dist

from fourfold.config import RunFailure
from fourfold.config.schema import RunSection
from fourfold.program import lower_pipeline
from fourfold.program.spec import StepSpec
from fourfold.runtime.progress import describe_save_wait, describe_wait, read_positions
from fourfold.runtime.step import StepFailure


def explained(
    error: StepFailure,
    kind: str,
    spec: StepSpec,
    rank: int,
    step: int,
    out: Path,
    section: RunSection,
) -> RunFailure:
    """The failure of a rank whose collective did not finish in step `step` of programs of `spec`."""
    where = describe_wait(rank, error.index, step, lower_pipeline(spec, kind), spec.layout, read_positions(out))
    cause = str(error).splitlines()[0]
    return RunFailure(f"{where} [{cause}]; run.timeout_seconds = {section.timeout_seconds:g}")


def save_barrier(rank: int, step: int, out: Path) -> None:
    """Waits for all ranks within the save of step `step`. Raises `RunFailure` that names those that did not come."""
    try:
        dist.barrier()
    except RuntimeError as error:
        where = describe_save_wait(rank, step, read_positions(out))
        raise RunFailure(f"{where} [{str(error).splitlines()[0]}]") from error
