"""Operations that the runtime gives a device for an instruction beside those of its work, and the host's waits for the device.

They are small, and take the device no time to speak of; the host starts each of them all the same. A rehearsed step counts them.
"""

from fourfold.model.work import Elementwise, HostCopy, Item, Join, Start, Work
from fourfold.program.capabilities import launches
from fourfold.program.instruction import Instruction, Op
from fourfold.program.pattern import Pattern
from fourfold.program.program import Program
from fourfold.program.spec import StepSpec
from fourfold.program.view import RankView

_ONCE = 3
"""The count of targets goes to the device; a step's results are read in one copy."""
_NORM, _NORM_OF_UNIT = 14, 8
_BALANCE, _BALANCE_OF_ROUTER, _BIAS = 6, 1, 5


def work_launches(work: Work) -> int:
    """Kernels of some work, as the runtime's own, and copies to its host and back."""
    return sum(map(_launches, work.items))


def _launches(item: Item) -> int:
    if isinstance(item, Start | Join):
        return 0
    return item.launches if isinstance(item, Elementwise) else item.copies if isinstance(item, HostCopy) else 1


def launches_beside(step: Instruction | Pattern, view: RankView) -> int:
    """Copies of a microbatch, sums for the record, the norm's parts, what the optimizer does beside its kernel; and what
    capabilities add."""
    return _launches_beside(step, view) + launches(step, view)


def _launches_beside(step: Instruction | Pattern, view: RankView) -> int:
    spec, op = view.spec, step.op
    if op is Op.LOAD:
        if spec.layout.cp > 1 or spec.document_mask:
            return 5  # positions, and the rotary tables at them
        return 3 if spec.model.family == "gpt2" else 2
    if step.segment == "head" and (op is Op.FORWARD or op.is_backward):
        return 1 + (spec.model.mtp_layers > 0)
    if op is Op.CLIP_NORM:
        return _NORM + _NORM_OF_UNIT * len(view.flats) - 1
    if op is Op.BALANCE:
        of_router = _BALANCE_OF_ROUTER + (_BIAS if spec.model.balance_bias_speed else 0)
        return _BALANCE + of_router * len(view.moe_segments)
    if op is Op.UPDATE and step.segment is not None:
        flat = view.flats[step.segment]
        rates = len({p.spec.lr_scale for p in flat.parameters if p.weight_decay})
        return int(spec.mixed) + (0 < flat.decayed_numel < flat.shard_numel) + max(0, rates - 1)
    if op is Op.REDUCE:
        return int(any(str(name).startswith("reduce/") for name in step.writes))
    return 0


def step_launches(program: Program, view: RankView) -> int:
    """All of a training step: what is issued for each of its instructions, and once."""
    issued = sum(work_launches(each.work) + launches_beside(each, view) for each in program.instructions)
    cleared = (program.kind == "train") * any(segment.kind == "embedding" for segment in view.segments)
    return issued + _ONCE + cleared


def waits_of_host(step: Instruction | Pattern, view: RankView) -> int:
    """A dispatcher must know how many rows each rank gets before it goes on: once in a forward that routes tokens, unless they stay
    where they are and a grouped kernel multiplies them."""
    forward = step.op.info.computes in ("forward", "recomputation") and "router" in step.op.info.reads
    routes = forward and any(s.name == step.segment for s in view.moe_segments)
    return int(routes and not _counts_on_device(view.spec))


def _counts_on_device(spec: StepSpec) -> bool:
    """Whether the device counts the rows of experts, as `model.experts.dispatch.plan_route` and `model.torch_grouped` have it."""
    model, layout = spec.model, spec.layout
    fits = spec.compute == "bf16" and not model.hidden_size % 8 and not model.moe_ffn_size // layout.etp % 8
    return layout.ep == 1 and model.capacity_factor is None and fits
