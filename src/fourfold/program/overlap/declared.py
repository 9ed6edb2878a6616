"""The declarations of passes over routed blocks in parts, and of the all-to-alls between them."""

from fourfold.model.spec import Segment
from fourfold.program import buffers as name
from fourfold.program.declared import Declared
from fourfold.program.instruction import Instruction, Op
from fourfold.program.overlap.rows import OverlapOp
from fourfold.program.view import RankView


def declared(step: Instruction, kind: str, view: RankView, allowed: list[Declared]) -> list[Declared]:
    """A part of a pass over a routed block, or one of its all-to-alls, where the step overlaps them."""
    op, m, me = step.op, step.microbatch, view.stages.segments.get(step.segment or "")
    if kind != "train" or not view.spec.overlaps_experts or m is None or me is None or not me.moe:
        return allowed
    if op not in (Op.FORWARD, Op.BACKWARD) and not isinstance(op, OverlapOp):
        return allowed
    backward, place = (op.info.part_of or op.info.letter) == Op.BACKWARD.value, op.info.place
    footprint = view.parts(me)[backward]
    prefix = "d" * backward
    sent = [f"{prefix}dispatched/{me.name}/m{m}", f"{prefix}combined/{me.name}/m{m}"]
    if op.is_all_to_all:
        return [Declared((sent[place],), (sent[place],), footprint.all_to_alls[place])]
    reads, writes = (_backward if backward else _forward)(place, me, m, view)
    reads += sent[place - 1 : place]
    writes += sent[place : place + 1]
    work, workspace = footprint.parts[place], footprint.workspace_bytes[place]
    return [*allowed, Declared(tuple(sorted(reads)), tuple(sorted(writes)), work, workspace)]


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
