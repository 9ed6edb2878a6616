"""All schedules by name, and what the rest of fourfold asks of them: placement, legality, orders."""

from collections.abc import Sequence

from fourfold.config import RunFailure, UserError, did_you_mean, nearest
from fourfold.program.schedule.auto import AUTO
from fourfold.program.schedule.built_in import BUILT_IN, usual_schedule
from fourfold.program.schedule.compute import FORWARD, Compute, Orders
from fourfold.program.schedule.record import MemoryLimit, Schedule
from fourfold.program.schedule.times import StageTimes
from fourfold.program.schedule.user import is_user_schedule, user_schedule

SCHEDULES = (*BUILT_IN, AUTO)
_BY_NAME = {schedule.name: schedule for schedule in SCHEDULES}


def find_schedule(name: str) -> Schedule:
    """The record of a built-in schedule, or of a person's own (`file:PATH`, `python:MODULE:FUNCTION`). Raises `UserError` for
    any other name."""
    found = _BY_NAME.get(name)
    if found is not None:
        return found
    if is_user_schedule(name):
        return user_schedule(name)
    raise UserError(
        f"layout.schedule = {name!r} is unknown; {did_you_mean(name, _BY_NAME)}allowed: {', '.join(_BY_NAME)}, file:PATH, "
        f"python:MODULE:FUNCTION; a value that works: {nearest(name, _BY_NAME) or '1f1b'!r}"
    )


def stage_ranks(name: str, num_ranks: int, virtual_stages: int) -> tuple[int, ...]:
    """The rank of every stage. Raises `UserError`."""
    return find_schedule(name).placement(num_ranks, virtual_stages)


def check_schedule(name: str, num_ranks: int, virtual_stages: int, num_microbatches: int) -> None:
    """Raises `UserError` where the schedule is unknown or cannot do it."""
    schedule = find_schedule(name)
    if num_microbatches < 1:
        raise UserError(
            f"batch: {num_microbatches} microbatches a step; allowed: 1 or more; a value that works: {num_ranks}"
        )
    if not schedule.takes(virtual_stages):
        instead = "" if schedule.is_v else f", or layout.schedule = {usual_schedule(virtual_stages).name!r}"
        raise UserError(
            f"layout.virtual_stages = {virtual_stages}: the schedule {name!r} has {_allowed_stages(schedule)} a rank; "
            f"a value that works: {schedule.min_virtual_stages}{instead}"
        )
    if schedule.check_size is not None:
        schedule.check_size(num_ranks, virtual_stages, num_microbatches)


def _allowed_stages(schedule: Schedule) -> str:
    least, most = schedule.min_virtual_stages, schedule.max_virtual_stages
    words = {1: "one", 2: "two"}.get(least, str(least))
    more = " or more" if most is None else "" if most == least else f" to {most}"
    return f"{words}{more} stage{'' if most == 1 else 's'}"


def schedule_orders(
    name: str,
    num_ranks: int,
    virtual_stages: int,
    num_microbatches: int,
    times: StageTimes | None = None,
    memory_limit: MemoryLimit = None,
) -> Orders:
    """The compute order of every rank; a person's own is proved by `check_orders` first.

    `times` and `memory_limit` matter to `auto` alone: what a stage takes (default: F = I = W = 1), and the most live
    activations, of every rank or of each, in the units of `times`. Default: what the plain schedule on that placement needs
    at most (1f1b, interleaved_1f1b; zb_v on a V); `math.inf`: no limit. Raises `UserError`.
    """
    check_schedule(name, num_ranks, virtual_stages, num_microbatches)
    try:
        return find_schedule(name).orders(num_ranks, virtual_stages, num_microbatches, times, memory_limit)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        size = f"{num_ranks} ranks of {virtual_stages} stages and {num_microbatches} microbatches"
        raise RunFailure(
            f"layout.schedule = {name!r}: gives no orders for {size}: {type(error).__name__}: {error}; the schedule's record is "
            "wrong, another schedule may work"
        ) from error


def forward_orders(stage_ranks: Sequence[int], num_microbatches: int) -> Orders:
    """Evaluation, whatever the placement: the order of every rank. In groups of P microbatches a rank takes its stages in
    turn, each through the full group; all ranks follow the one order (group, stage, microbatch), so none can deadlock."""
    num_ranks = max(stage_ranks) + 1
    orders: list[list[Compute]] = [[] for _ in range(num_ranks)]
    for first in range(0, num_microbatches, num_ranks):
        for stage, rank in enumerate(stage_ranks):
            group = range(first, min(first + num_ranks, num_microbatches))
            orders[rank] += [Compute(FORWARD, stage, m) for m in group]
    return tuple(map(tuple, orders))
