"""torch's pipeline schedules lowered to their sends and receives and stepped through by torch's own simulator, for `planner.py`.

The simulator gives who does what in each step, every action one step long: no times and no bytes. It raises on the gathers and
reductions of its own lowering (`Unsupported action type UNSHARD`), so they are left out.
"""

from types import SimpleNamespace
from typing import Any

from torch.distributed.pipelining import schedules

REFUSED = (schedules.UNSHARD, schedules.RESHARD, schedules.REDUCE_GRAD)
Actions = dict[int, list[Any]]
"""By rank."""


def stepped(ranks: int, virtual_stages: int, microbatches: int) -> tuple[Actions, Actions]:
    """1F1B, or interleaved 1F1B of two or more stages a rank: what was lowered, and what every rank does step by step."""
    schedule = _lowered(ranks, virtual_stages, microbatches)
    place = schedule.stage_index_to_group_rank
    orders = schedule.pipeline_order_with_comms.items()
    kept = {rank: [a for a in actions if a.computation_type not in REFUSED] for rank, actions in orders}
    return kept, schedules._simulate_comms_compute(kept, lambda stage: place[stage], schedule._num_stages)


def computed(actions: Actions) -> list[list[tuple[bool, int, int]]]:
    """Whether it is a forward, stage and microbatch of all that each rank computes."""
    compute = (schedules.F, schedules.FULL_BACKWARD)
    return [
        [(a.computation_type == schedules.F, a.stage_index, a.microbatch_index) for a in own if a[1] in compute]
        for _, own in sorted(actions.items())
    ]


def _lowered(ranks: int, virtual_stages: int, microbatches: int) -> Any:
    size = {"group_size": ranks, "group_rank": 0, "num_stages": ranks * virtual_stages}
    stages: list[Any] = [SimpleNamespace(stage_index=chunk * ranks, **size) for chunk in range(virtual_stages)]
    if virtual_stages > 1:
        return schedules.ScheduleInterleaved1F1B(stages, microbatches)
    table: Any = schedules.Schedule1F1B(stages[0], microbatches).pipeline_order
    order = {rank: [a for a in own if a is None or a.is_compute_op] for rank, own in table.items()}
    # The table's last rank counts its forwards from 1, which cannot be lowered; the runtime does not use that table.
    last = ranks - 1
    if next(a for a in order[last] if a is not None).microbatch_index == 1:
        order[last] = [_one_less(a) for a in order[last]]
    schedule = schedules._PipelineScheduleRuntime(stages, microbatches)
    schedule._prepare_schedule_with_comms(order)
    return schedule


def _one_less(action: Any) -> Any:
    if action is None or action.computation_type != schedules.F:
        return action
    return action._replace(microbatch_index=action.microbatch_index - 1)
