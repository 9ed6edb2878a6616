"""The groups that segments use, picked from those of the rank."""

from collections.abc import Iterable, Mapping

from fourfold.layout import Layout
from fourfold.layout.mesh import axes_name
from fourfold.model.parallel import ContextParallel, Parallel
from fourfold.program import Program
from fourfold.program.buffers import Lowering
from fourfold.runtime.collectives import Group


def bind_parallel(layout: Layout, groups: Mapping[str, Group]) -> Parallel:
    """What segments know of other ranks."""

    def group(axis: str) -> Group | None:
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
    """Names of the groups that `bind_parallel` picks."""
    return {axis for axis in ("tp", "cp", "cp_ring", "cp_ulysses", "ep", "etp") if layout.degree(axis) > 1}


def groups_of(programs: Iterable[Program], facts: Lowering) -> set[str]:
    """Names of all groups that these programs of one rank, and its segments, use."""
    names = {c.axes for program in programs for step in program.instructions for c in step.collectives}
    shards = {axes_name(facts.shard_axes(unit)) for unit in facts.flats if facts.zero_of(unit) > 0}
    return names | shards | segment_axes(facts.layout)
