"""The groups that segments use, picked from those of the rank."""

from collections.abc import Mapping

from fourfold.layout import Layout
from fourfold.layout.mesh import axes_name
from fourfold.model.footprint import Footprint
from fourfold.model.parallel import ContextParallel, Parallel
from fourfold.program.facts import Lowering
from fourfold.program.reductions import partial_sums
from fourfold.runtime.collectives import AxisGroup


def bind_parallel(layout: Layout, groups: Mapping[str, AxisGroup]) -> Parallel:
    """What segments know of other ranks."""

    def group(axis: str) -> AxisGroup | None:
        return groups[axis] if layout.degree(axis) > 1 else None

    context = None
    if layout.cp > 1:
        context = ContextParallel(group("cp_ring"), group("cp_ulysses"), layout.cp_method == "all_gather")
    return Parallel(
        tp=group("tp"),
        sequence=layout.sequence_parallel,
        tp_copies=layout.tp_copy,
        context=context,
        ep=group("ep"),
        etp=group("etp"),
    )


def segment_axes(layout: Layout) -> set[str]:
    """Names of the groups that `bind_parallel` picks, and that transfers between stages travel on."""
    return {axis for axis in ("pp", "tp", "cp", "cp_ring", "cp_ulysses", "ep", "etp") if layout.degree(axis) > 1}


def groups_of(facts: Lowering) -> set[str]:
    """Names of all groups that the programs of any rank use: the same on every rank, for torch names a group by its ranks and by
    how many groups there are already."""
    names = segment_axes(facts.layout)
    for pp_rank in range(facts.layout.pp):
        seen_there = facts.at(pp_rank)
        names.update(*(_reduction_axes(seen_there, unit) for unit in seen_there.flats))
    names.update(*(_traffic_axes(facts.footprint(segment)) for segment in facts.segments))
    names.update(map(axes_name, (facts.data_axes, facts.loss_axes, facts.norm_axes, facts.router_axes)))
    if facts.ties_embedding and facts.layout.degree("tied") > 1:
        names.add("tied")
    return names - {""}


def _reduction_axes(facts: Lowering, unit: str) -> set[str]:
    """Of the sums that make a unit's gradient whole."""
    partial = {collective.axes for collective in partial_sums(facts, unit)}
    if facts.zero_of(unit) == 0:
        return partial | {axes_name(facts.gradient_axes(unit))}
    return partial | {axes_name(facts.shard_axes(unit)), axes_name(facts.layout.active(("dp_replicate",)))}


def _traffic_axes(footprint: Footprint) -> set[str]:
    """Of a segment's own collectives. The two halves of a backward have those of the whole."""
    return {traffic.axes for traffic in (*footprint.forward.collectives, *footprint.backward.collectives)}
