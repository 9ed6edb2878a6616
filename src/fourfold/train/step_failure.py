"""A rank whose step fails: the message names where it stands, and whom it waits for in vain."""

from pathlib import Path

from fourfold.config import RunConfig, RunFailure
from fourfold.program import Program, lower_pipeline
from fourfold.program.spec import StepSpec
from fourfold.rendezvous.barrier import StoreBarrier
from fourfold.runtime.progress import describe_save_wait, describe_wait, read_positions
from fourfold.runtime.step import StepFailure, StepOutOfMemory
from fourfold.train.out_of_memory import out_of_memory
from fourfold.train.session import RankContext


def explained(
    error: StepFailure,
    program: Program,
    config: RunConfig,
    spec: StepSpec,
    context: RankContext,
    step: int,
    out: Path,
) -> RunFailure:
    """The failure of a rank in step `step` of a program of `spec`: a collective that did not finish, or too little memory."""
    if isinstance(error, StepOutOfMemory):
        return out_of_memory(error, program, config, spec, context, step)
    programs = lower_pipeline(spec, program.kind)
    where = describe_wait(context.rank, error.index, step, programs, spec.layout, read_positions(out))
    cause = str(error).splitlines()[0]
    return RunFailure(f"{where} [{cause}]; run.timeout_seconds = {config.run.timeout_seconds:g}")


def save_barrier(barrier: StoreBarrier, rank: int, step: int, out: Path) -> None:
    """Waits for all ranks within the save of step `step`, as long as somebody writes on. Raises `RunFailure` that names those that
    did not come."""
    try:
        barrier.meet()
    except (RunFailure, RuntimeError) as error:
        where = describe_save_wait(rank, step, read_positions(out))
        raise RunFailure(f"{where} [{str(error).splitlines()[0]}]") from error
