"""The declarations of passes over routed blocks in parts, and of the all-to-alls between them: see `declared`."""

from collections.abc import Sequence

from fourfold.model.spec import Segment
from fourfold.model.work import Work
from fourfold.program import buffers as name
from fourfold.program.ops import ALL_TO_ALLS, BY_LETTER, PART_OPS, Op
from fourfold.program.view import RankView

Declaration = tuple[Sequence[str], Sequence[str], Work, int]
"""Names read and written, work, workspace."""
_IN_PARTS = PART_OPS | {BY_LETTER[op.info.part_of or ""] for op in PART_OPS}


def declared_in_parts(op: Op, me: Segment, m: int, view: RankView) -> list[Declaration]:
    """The declaration of such an instruction, where the step has any."""
    if not view.spec.overlaps_experts or not me.moe or op not in _IN_PARTS:
        return []
    backward, place = BY_LETTER[op.info.part_of or op.info.letter] is Op.BACKWARD, op.info.place
    footprint = view.parts(me)[backward]
    prefix = "d" * backward
    sent = [f"{prefix}dispatched/{me.name}/m{m}", f"{prefix}combined/{me.name}/m{m}"]
    if op in ALL_TO_ALLS:
        return [([sent[place]], [sent[place]], footprint.all_to_alls[place], 0)]
    reads, writes = (_backward if backward else _forward)(place, me, m, view)
    reads += sent[place - 1 : place]
    writes += sent[place : place + 1]
    return [(reads, writes, footprint.parts[place], footprint.workspace_bytes[place])]


def _forward(place: int, me: Segment, m: int, view: RankView) -> tuple[list[str], list[str]]:
    """Names read and written beside the rows on their way."""
    x, following = name.hidden(me.name, m), name.hidden(view.stages.following[me.name], m)
    if place == 0:
        return [*_parameters(me, view, False), f"router/{me.name}", x, name.batch(m), "rope"], []
    if place == 1:
        return _parameters(me, view, True), []
    return [x], [following, *([name.saved(me.name, m)] if view.stages.policies[me.name] != "full" else [])]


def _backward(place: int, me: Segment, m: int, view: RankView) -> tuple[list[str], list[str]]:
    upstream = name.dhidden(view.stages.following[me.name], m)
    if place == 0:
        return [upstream, name.saved(me.name, m)], []
    router, grads = f"router/{me.name}", [f"grad/{unit}" for unit in me.units]
    if place == 1:
        return [*_parameters(me, view, True), upstream, router], [*grads, router]
    reads = [*_parameters(me, view, False), upstream, router, name.hidden(me.name, m), name.batch(m)]
    return reads, [*grads, router, name.dhidden(me.name, m)]


def _parameters(me: Segment, view: RankView, experts: bool) -> list[str]:
    """Parameters of its experts too, or of its other half alone."""
    return [f"params/{unit}" for unit in me.units if experts or view.flats[unit].domain != "expert"]
