"""Selects the groups that segments use from those of the rank."""

from collections.abc import Mapping

from fourfold.layout import FlatLayout, Layout
from fourfold.layout.mesh import axes_name
from fourfold.model.footprint import Footprint
from fourfold.model.parallel import ContextParallel, Parallel
from fourfold.program.capabilities import axes
from fourfold.program.reductions import partial_sums
from fourfold.program.spec import StepSpec
from fourfold.program.totals import data_axes, loss_axes, norm_axes, router_axes
from fourfold.program.view import rank_views, ties_stages
from fourfold.runtime.collectives import AxisGroup


def bind_parallel(layout: Layout, groups: Mapping[str, AxisGroup]) -> Parallel:
    """The groups of this rank's segments."""

    def group(axis: str) -> AxisGroup | None:
        return groups[axis] if layout.degree(axis) > 1 else None

    context = None
    if layout.cp > 1:
        context = ContextParallel(group("cp_ring"), group("cp_ulysses"), layout.cp_method == "all_gather")
    return Parallel(
        tp=group("tp"),
        sequence=layout.sequence_parallel,
        tp_copies=layout.tp_copy,
        scales=groups.get(axes_name(layout.active(("cp", "tp")))),
        context=context,
        ep=group("ep"),
        etp=group("etp"),
    )


def segment_axes(layout: Layout) -> set[str]:
    """Names of the groups that `bind_parallel` picks."""
    return {axis for axis in ("tp", "cp", "cp_ring", "cp_ulysses", "ep", "etp") if layout.degree(axis) > 1}


def groups_of(spec: StepSpec) -> set[str]:
    """Names of all groups over whose ranks the programs of any rank have a collective. They are the same on every rank, because all
    make groups in one order. Transfers between stages need no name."""
    layout = spec.layout
    names = segment_axes(layout)
    for view in rank_views(spec):
        names.update(map(axes_name, axes(spec, view.flats.values())))
        names.update(*(_reduction_axes(spec, flat) for flat in view.flats.values()))
        names.update(*(_traffic_axes(view.footprint(segment)) for segment in view.segments))
    routers = router_axes(layout) if spec.model.num_experts else ()
    names.update(map(axes_name, (data_axes(layout), loss_axes(spec), norm_axes(layout), routers)))
    if ties_stages(spec):
        names.add("tied")
    return names - {""}


def _reduction_axes(spec: StepSpec, flat: FlatLayout) -> set[str]:
    """Axes of the sums that complete a unit's gradient."""
    partial = {collective.axes for collective in partial_sums(spec, flat)}
    if flat.zero == 0:
        return partial | {axes_name(flat.gradient_axes)}
    return partial | {axes_name(flat.shard_axes), axes_name(spec.layout.active(("dp_replicate",)))}


def _traffic_axes(footprint: Footprint) -> set[str]:
    """Axes of a segment's own collectives. The halves of a split backward have those of the full backward."""
    return {traffic.axes for traffic in (*footprint.forward.collectives, *footprint.backward.collectives)}
