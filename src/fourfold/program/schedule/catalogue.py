"""The schedules by name: where each puts the stages, what it can do, and the order of every rank."""

from collections.abc import Sequence

from fourfold.config import UserError, nearest
from fourfold.program.schedule.auto import auto_orders
from fourfold.program.schedule.compute import Orders
from fourfold.program.schedule.fixed import FIXED, INTERLEAVED, ONE_STAGE, V_SHAPED, fixed_orders
from fourfold.program.schedule.placement import loop_placement, v_placement
from fourfold.program.schedule.times import StageTimes
from fourfold.program.schedule.user import is_user_schedule, user_orders, user_stage_ranks

AUTO = "auto"
SCHEDULES = (*FIXED, AUTO)
"""Names; beside them `file:PATH` and `python:MODULE:FUNCTION`."""
SPLIT_BACKWARD = ("zb_h1", "zb_h2", *V_SHAPED, AUTO)
"""Those that run weight gradients apart from input gradients."""


def stage_ranks(schedule: str, num_ranks: int, virtual_stages: int) -> tuple[int, ...]:
    """The rank of every stage: a V for `zb_v`, `dualpipe_v`, and `auto` with two stages a rank (it then needs the memory of
    1F1B); a loop otherwise; what it states for a person's own."""
    _check_name(schedule)
    if is_user_schedule(schedule):
        return user_stage_ranks(schedule, num_ranks, virtual_stages)
    if schedule in V_SHAPED or (schedule == AUTO and virtual_stages == 2):
        return v_placement(num_ranks)
    return loop_placement(num_ranks, virtual_stages)


def check_schedule(schedule: str, num_ranks: int, virtual_stages: int, num_microbatches: int) -> None:
    """Raises `UserError` where the schedule is unknown or cannot do it. Every named one does any number of microbatches."""
    _check_name(schedule)
    if num_microbatches < 1:
        raise UserError(
            f"batch: {num_microbatches} microbatches a step; allowed: 1 or more; a value that works: {num_ranks}"
        )
    if schedule in ONE_STAGE and virtual_stages != 1:
        raise UserError(
            f"layout.virtual_stages = {virtual_stages}: the schedule {schedule!r} has one stage a rank; a value that works: 1, "
            f"or layout.schedule = {INTERLEAVED!r}"
        )
    if schedule in V_SHAPED and virtual_stages != 2:
        raise UserError(
            f"layout.virtual_stages = {virtual_stages}: the schedule {schedule!r} has two stages a rank; a value that works: 2"
        )
    if schedule == INTERLEAVED and virtual_stages < 2:
        raise UserError(
            f"layout.virtual_stages = {virtual_stages}: the schedule {schedule!r} has two or more stages a rank; a value that "
            f"works: 2, or layout.schedule = '1f1b'"
        )
    if is_user_schedule(schedule):
        user_orders(schedule, num_ranks, virtual_stages, num_microbatches)


def schedule_orders(
    schedule: str,
    num_ranks: int,
    virtual_stages: int,
    num_microbatches: int,
    times: StageTimes | None = None,
    memory_limit: float | Sequence[float] | None = None,
) -> Orders:
    """The compute order of every rank; a person's own is proved by `check_orders` first.

    `times` and `memory_limit` matter to `auto` alone: what a stage takes (default: F = I = W = 1), and the most live
    activations, of every rank or of each, in the units of `times`. Default: what the plain schedule on that placement needs
    at most (1f1b, interleaved_1f1b; zb_v on a V); `math.inf`: no limit. Raises `UserError`.
    """
    check_schedule(schedule, num_ranks, virtual_stages, num_microbatches)
    if is_user_schedule(schedule):
        return user_orders(schedule, num_ranks, virtual_stages, num_microbatches)
    if schedule == AUTO:
        ranks = stage_ranks(schedule, num_ranks, virtual_stages)
        times = times or StageTimes.uniform(len(ranks))
        return auto_orders(ranks, num_microbatches, times, memory_limit)
    return fixed_orders(schedule, num_ranks, virtual_stages, num_microbatches)


def _check_name(schedule: str) -> None:
    if schedule in SCHEDULES or is_user_schedule(schedule):
        return
    works = nearest(schedule.lower().replace("-", "_"), SCHEDULES) or "1f1b"
    raise UserError(
        f"layout.schedule = {schedule!r} is unknown; allowed: {', '.join(SCHEDULES)}, file:PATH, python:MODULE:FUNCTION; "
        f"a value that works: {works!r}"
    )
