"""The end of a step: tied gradients, loads of experts, norm, optimizer, parameter all-gather; and the sums that the loss needs."""

from fourfold.config import DTYPE_BYTES
from fourfold.layout.mesh import axes_name
from fourfold.model.work import NOTHING, Collective, Elementwise, Work, sends, touches
from fourfold.program import totals
from fourfold.program.buffers import gradient, values
from fourfold.program.instruction import Instruction
from fourfold.program.ops import Op
from fourfold.program.pattern import Pattern, Step
from fourfold.program.sizes import core_unit_bytes, fewest_matrix_elements
from fourfold.program.spec import StepSpec
from fourfold.program.totals import over
from fourfold.program.view import RankView


def append_update(steps: list[Step], view: RankView) -> list[Step]:
    """Norm, optimizer unit by unit, and for ZeRO-1 and 2 the parameter all-gather of each unit, behind the next update."""
    spec, layout = view.spec, view.spec.layout
    grads, axes = tuple(map(gradient, view.flats.values())), totals.norm_axes(layout)
    summed = sends(over(layout, "all_reduce", axes, totals.SCALAR_BYTES)) if axes else NOTHING
    read = sum(core_unit_bytes(spec, gradient(flat).partition("/")[0], flat) for flat in view.flats.values())
    norm = Instruction(Op.CLIP_NORM, reads=grads, work=Work((Elementwise(read, read), *summed.items)))
    result = [*_reduce_tied(view), *_balance(view), norm]
    waits = []
    for unit, flat in view.flats.items():
        state = (values(flat), f"optimizer/{unit}", *((f"master/{unit}",) if spec.mixed else ()))
        converted = flat.shard_numel * DTYPE_BYTES[spec.master] if spec.gradients != spec.master else 0
        update = Instruction(
            Op.UPDATE,
            unit,
            reads=(gradient(flat), *state),
            writes=state,
            frees=(gradient(flat),),
            work=touches(spec.update_bytes(flat.shard_numel, fewest_matrix_elements(flat))),
            workspace_bytes=converted,
        )
        result.append(update)
        if flat.zero in (1, 2):
            params = (values(flat),)
            gather = over(layout, "all_gather", flat.shard_axes, core_unit_bytes(spec, "params", flat))
            stream = axes_name(flat.shard_axes)
            all_gather = Instruction(
                Op.PARAMETER_ALL_GATHER, unit, reads=params, writes=params, work=sends(gather), stream=stream
            )
            result.append(all_gather)
            waits.append(Instruction(Op.WAIT, handle=all_gather.short))
    return steps + [(Pattern.of_first(each), None) for each in result + waits]


def _reduce_tied(view: RankView) -> list[Instruction]:
    """Stages that hold the tied embedding add their gradients of it, once a step, after their own reductions."""
    if view.tied_unit is None:
        return []
    flat = view.flats[view.tied_unit]
    kept = flat.shard_numel * DTYPE_BYTES[view.spec.gradients]
    tied = Instruction(
        Op.REDUCE_TIED,
        flat.unit,
        reads=(gradient(flat),),
        writes=(gradient(flat),),
        work=sends(over(view.spec.layout, "all_reduce", ("tied",), kept)),
        stream="tied",
    )
    return [tied, Instruction(Op.WAIT, handle=tied.short)]


def _balance(view: RankView) -> list[Instruction]:
    """Sums the loads of all routers' experts over all ranks; the balancing biases move by them at the end of the step."""
    spec = view.spec
    if not spec.model.num_experts:
        return []
    routers = tuple(f"router/{segment.name}" for segment in view.moe_segments)
    size, axes = totals.router_loads_bytes(spec), totals.router_axes(spec.layout)
    loads = sends(over(spec.layout, "all_reduce", axes, size)) if axes else NOTHING
    return [Instruction(Op.BALANCE, reads=routers, writes=routers, work=loads, workspace_bytes=size)]


def sum_counts(steps: list[Step], spec: StepSpec) -> list[Step]:
    """Adds the sum of valid targets before the first loss that is divided by it, and the sum of losses after the last loss."""
    layout, model = spec.layout, spec.model
    computing = {pattern for pattern, _ in steps if (pattern.op.is_forward or pattern.op.is_backward)}
    losing = {pattern for pattern in computing if pattern.segment == "head"}
    heads = [i for i, (pattern, _) in enumerate(steps) if pattern in losing] if losing else []
    has_all_losses = layout.pp == 1 and not model.num_experts
    closing = losing if has_all_losses else computing
    last = next((i for i in reversed(range(len(steps))) if steps[i][0] in closing), len(steps) - 1)
    if axes := totals.loss_axes(spec):
        loss = _sum(Op.SUM_LOSS, over(layout, "all_reduce", axes, totals.loss_bytes(model)))
        steps = [*steps[: last + 1], (loss, None), *steps[last + 1 :], (loss.joined(), None)]
    if axes := totals.data_axes(layout):
        first = heads[0] if heads else len(steps)
        count = _sum(Op.COUNT, over(layout, "all_reduce", axes, totals.count_bytes(model)))
        steps = [(count, None), *steps[:first], (count.joined(), None), *steps[first:]]
    return steps


def _sum(op: Op, total: Collective) -> Pattern:
    return Pattern.of_first(Instruction(op, work=sends(total), stream=total.axes))
