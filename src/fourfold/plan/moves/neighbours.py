"""The neighbours of a layout: those that a person would try next, one change away.

A change is another value of one key, or of two where one alone leaves devices unused: a degree divided and another multiplied by
the same number. A key that no longer means anything beside the change goes back to its default (the schedule of one stage), and
what would no longer be legal to the nearest that is (virtual stages, experts' tensor parallelism).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from fourfold.layout.divisibility import max_stages, splits_experts, splits_tensors, spreads_experts
from fourfold.layout.mesh import ORDERS
from fourfold.plan.candidate import Candidate
from fourfold.plan.request import Request
from fourfold.plan.space import RECOMPUTE, SEARCHED, context_methods, divides_microbatch, divides_sequence, most_stages
from fourfold.program.schedule import find_schedule, usual_schedule

DEGREES = ("tp", "pp", "cp", "dp_shard", "dp_replicate")
"""The keys whose product is the number of devices."""
FACTORS = (2, 3, 5, 7)
"""By what a degree is divided or multiplied."""
Changes = Iterator[dict[str, Any]]
"""Fields with other values."""


def neighbours(request: Request, layout: Candidate) -> list[Candidate]:
    """The legal layouts one change away that keep to the request's constraints, each once. Whether they fit is not looked at."""
    found = dict.fromkeys(
        each for of in CHANGES for change in of(request, layout) for each in _settled(request, layout, change)
    )
    found.pop(layout, None)
    return [each for each in found if is_legal(request, each)]


def is_legal(request: Request, layout: Candidate) -> bool:
    """Whether a layout keeps to the constraints, and its degrees divide what they must. A step's own checks say the rest."""
    model = request.model
    if layout.dp * layout.tp * layout.cp * layout.pp != request.devices or layout.pp > max_stages(model):
        return False
    if request.global_sequences % (layout.dp * layout.microbatch_sequences):
        return False
    splits = splits_tensors(model, layout.tp) and divides_sequence(request, layout.tp, layout.cp)
    splits = splits and divides_microbatch(request, layout.tp, layout.cp, layout.microbatch_sequences)
    if model.num_experts:
        ranks = layout.dp_shard * layout.cp * layout.tp
        splits = (
            splits and splits_experts(model, layout.ep, layout.etp) and spreads_experts(ranks, layout.ep, layout.etp)
        )
    return splits and request.permits(layout)


def _degrees(request: Request, layout: Candidate) -> Changes:
    """A degree divided, another multiplied."""
    for factor, less, more in product(FACTORS, DEGREES, DEGREES):
        if getattr(layout, less) % factor == 0 and more != less:
            yield {less: getattr(layout, less) // factor, more: getattr(layout, more) * factor}


def _sizes(request: Request, layout: Candidate) -> Changes:
    """A smaller or larger microbatch; fewer or more ranks that share the experts."""
    for key in ("microbatch_sequences", "ep") if request.model.num_experts else ("microbatch_sequences",):
        value = getattr(layout, key)
        yield from ({key: value // factor} for factor in FACTORS if value % factor == 0)
        yield from ({key: value * factor} for factor in FACTORS)


def _same_tokens(request: Request, layout: Candidate) -> Changes:
    """More data-parallel ranks, with as many tokens of a microbatch on every rank."""
    for factor, less in product(FACTORS, ("tp", "cp")):
        if getattr(layout, less) % factor == 0 and layout.microbatch_sequences % factor == 0:
            same = {
                less: getattr(layout, less) // factor,
                "microbatch_sequences": layout.microbatch_sequences // factor,
            }
            yield from (same | {more: getattr(layout, more) * factor} for more in ("dp_shard", "dp_replicate"))


def _experts_split(request: Request, layout: Candidate) -> Changes:
    """Experts whole, or split like the rest."""
    if request.model.num_experts:
        yield {"etp": 1 if layout.etp > 1 else layout.tp}


def _zero(request: Request, layout: Candidate) -> Changes:
    """Another ZeRO stage."""
    yield from ({"zero": zero} for zero in range(4))


def _axes(request: Request, layout: Candidate) -> Changes:
    """Another order of the mesh's axes, with replicas or without."""
    for outermost in ORDERS:
        yield {"outermost": outermost}
        yield {"outermost": outermost, "dp_replicate": 1, "dp_shard": layout.dp}


def _context(request: Request, layout: Candidate) -> Changes:
    """Another method of context parallelism."""
    yield from ({"cp_method": method} for method in context_methods(request, layout.tp, layout.cp))


def _schedules(request: Request, layout: Candidate) -> Changes:
    """Another schedule, with as many stages a rank as it can; and the same with one more or fewer, half or twice as many, or as
    many as blocks divide into."""
    if layout.pp == 1:
        return
    for schedule in SEARCHED:
        yield {"schedule": schedule.name}
        yield {"schedule": schedule.name, "virtual_stages": schedule.min_virtual_stages}
    stages = layout.virtual_stages
    blocks = request.model.num_layers
    even = [each for each in range(1, blocks // layout.pp + 1) if blocks % (layout.pp * each) == 0]
    near = [*[each for each in even if each < stages][-1:], *[each for each in even if each > stages][:1]]
    for other in (stages - 1, stages + 1, stages // 2, 2 * stages, *near):
        if other < 1:
            continue
        taken = [each.name for each in SEARCHED if _takes(request, each.name, layout.pp, other)]
        yield from ({"virtual_stages": other, "schedule": name} for name in taken)


def _takes(request: Request, schedule: str, pp: int, stages: int) -> bool:
    """Whether a schedule runs so many stages a rank, and the model has as many segments."""
    record = find_schedule(schedule)
    return record.min_virtual_stages <= stages <= most_stages(request, record, pp)


def _activations(request: Request, layout: Candidate) -> Changes:
    """Other policies for all blocks; of the first blocks alone, half or twice as many; and what is offloaded kept instead."""
    policies = RECOMPUTE if request.model.block is None else ("none", "full")
    yield from ({"recompute": policy, "activations": ()} for policy in policies)
    policy, _, blocks = layout.recompute.partition(":")
    if layout.activations or policy == "none" or not request.permits(replace(layout, recompute=f"{policy}:1")):
        return
    number, most = int(blocks or request.model.num_layers), request.model.num_layers
    for other in {number // 2, number - 1, number + 1, 2 * number}:
        if 1 <= other < most:
            yield {"recompute": f"{policy}:{other}"}


def _states(request: Request, layout: Candidate) -> Changes:
    """Optimizer states in the host's memory, or on the device."""
    if request.offload_optimizer is None and request.can_offload:
        yield {"offload_optimizer": not layout.offload_optimizer}


def _overlap(request: Request, layout: Candidate) -> Changes:
    """All-to-alls of experts behind another microbatch, or not."""
    if request.overlap_is_open:
        yield {"overlap_experts": not layout.overlap_experts}


CHANGES = (
    _degrees,
    _sizes,
    _same_tokens,
    _experts_split,
    _zero,
    _axes,
    _context,
    _schedules,
    _activations,
    _states,
    _overlap,
)
"""The changes that are tried, each a function from a layout to fields with other values."""


def _settled(request: Request, layout: Candidate, change: Mapping[str, Any]) -> Iterator[Candidate]:
    """The layouts with a change, the rest of which means something beside it."""
    new = replace(layout, **change)
    moved = (new.tp, new.cp) != (layout.tp, layout.cp)
    if moved and new.cp_method not in (methods := context_methods(request, new.tp, new.cp)):
        for method in methods:
            yield from _settled(request, replace(new, cp_method=method), {})
        return
    if new.tp != layout.tp and layout.etp == layout.tp > 1:
        new = replace(new, etp=new.tp)
    if new.zero and new.dp_shard * new.cp == 1:
        new = replace(new, zero=0)
    if not new.zero and new.dp_replicate > 1 and not request.constraints.states("dp_shard", "dp_replicate"):
        new = replace(new, dp_replicate=1, dp_shard=new.dp)  # without ZeRO the division means nothing
    if new.overlap_experts and not request.can_overlap(new):
        new = replace(new, overlap_experts=False)
    if new.pp == 1:
        yield replace(new, schedule=usual_schedule(1).name, virtual_stages=1, outermost="pp")
    elif layout.pp == 1:
        several = [each for each in SEARCHED if _takes(request, each.name, new.pp, each.min_virtual_stages)]
        yield from (replace(new, schedule=each.name, virtual_stages=each.min_virtual_stages) for each in several)
    elif _takes(request, new.schedule, new.pp, new.virtual_stages):
        yield new
    else:
        record = find_schedule(new.schedule)
        most = most_stages(request, record, new.pp)
        if most >= record.min_virtual_stages:
            yield replace(new, virtual_stages=min(most, max(record.min_virtual_stages, new.virtual_stages)))
