"""How many communicators a rank has over NCCL, from its layout alone: one for every set of ranks that its program sums over, one of
all ranks, and for a pipeline one for each neighbour and direction.

`runtime/parallel.py` names the groups that a run makes; planners price thousands of layouts, and count here. Two groups are one
where they have the same ranks, whatever axes name them: `cp` and `cp_ring` where nothing else divides `cp`.
"""

from itertools import pairwise
from typing import Any

from fourfold.layout import Layout
from fourfold.layout.mesh import VIEWS
from fourfold.model.spec import Domain
from fourfold.program.spec import StepSpec, Transport
from fourfold.program.totals import data_axes, loss_axes, norm_axes, router_axes
from fourfold.program.view import ties_stages

_Extents = tuple[tuple[int, int], ...]
"""(stride, ranks) of each run of evenly spaced ranks, outermost first: the same for every group along some axes."""


def num_communicators(spec: StepSpec, pp_rank: int) -> int:
    """The number of a rank of that pipeline coordinate; 0 where transfers and sums go over gloo, or there is one rank."""
    layout = spec.layout
    if spec.transport != "native" or layout.world_size == 1:
        return 0
    groups = {_extents(layout, axes) for axes in _summed(spec)} | {((1, layout.world_size),)}
    tied = ties_stages(spec) and pp_rank in layout.tied_ranks and layout.pp > 2
    pairs = {frozenset(pair) for pair in pairwise(layout.stage_ranks) if pair[0] != pair[1] and pp_rank in pair}
    return len(groups - {()}) + tied + 2 * len(pairs)


def fewest_communicators(transport: Transport, devices: int, pp: Any, tp: int) -> Any:
    """The fewest that a layout of these degrees may have, for a number of stages or an array of them: of all ranks, of tp, of the
    ranks that read different tokens, and to one neighbour either way."""
    inner, is_connected = pp * tp, transport == "native" and devices > 1
    return is_connected * (1 + (1 < tp < devices) + ((inner > 1) & (inner < devices)) + 2 * (pp > 1))


def _summed(spec: StepSpec) -> set[tuple[str, ...]]:
    """Axes over which a step sums, gathers or exchanges something."""
    layout = spec.layout
    found = {data_axes(layout), loss_axes(spec), norm_axes(layout)}
    found.update(
        (axis,) for axis in ("tp", "tp_copy", "cp", "cp_ring", "cp_ulysses", "ep", "etp") if layout.degree(axis) > 1
    )
    if ties_stages(spec) and layout.pp == 2:
        found.add(("pp",))
    if spec.model.num_experts:
        found.add(router_axes(layout))
    domains: tuple[Domain, ...] = ("dense", "expert") if spec.model.num_experts else ("dense",)
    for domain in domains:
        if layout.zero:
            found.update((layout.shard_axes(domain), layout.active(("dp_replicate",))))
        else:
            found.add(layout.gradient_axes(domain))
    return found


def _extents(layout: Layout, axes: tuple[str, ...]) -> _Extents:
    """Adjacent axes are one run of ranks."""
    view = next(view for view in VIEWS if set(axes) <= {*view})
    stride, found = 1, list[tuple[int, int]]()
    for axis in reversed(view):
        degree = layout.degree(axis)
        if axis in axes and degree > 1:
            if found and found[-1][0] * found[-1][1] == stride:
                found[-1] = (found[-1][0], found[-1][1] * degree)
            else:
                found.append((stride, degree))
        stride *= degree
    return tuple(reversed(found))
