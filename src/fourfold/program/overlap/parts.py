"""A routed block's pass in three parts, with dispatch and combine as instructions of their own between them."""

from fourfold.model.spec import Segment
from fourfold.model.work import Work
from fourfold.program import buffers as name
from fourfold.program.instruction import Instruction, Op
from fourfold.program.overlap import rows
from fourfold.program.overlap.rows import OverlapOp
from fourfold.program.schedule import Compute
from fourfold.program.view import RankView


def in_parts(view: RankView, segment: Segment, compute: Compute) -> list[Instruction] | None:
    """The parts of a pass over a routed block; None of another pass."""
    if segment.moe and compute.op is Op.FORWARD:
        return forward_in_parts(view, segment, compute.microbatch)
    return backward_in_parts(view, segment, compute.microbatch) if segment.moe and compute.op is Op.BACKWARD else None


def forward_in_parts(view: RankView, segment: Segment, m: int) -> list[Instruction]:
    """FORWARD up to the dispatch, the experts, the rest; what its backward needs is complete with the last."""
    footprint, _ = view.parts(segment)
    dispatched, combined = rows.dispatched(segment.name, m), rows.combined(segment.name, m)
    own, every = _parameters(view, segment)
    x, out = name.hidden(segment.name, m), name.hidden(view.stages.following[segment.name], m)
    saved = [name.saved(segment.name, m)] if view.stages.policies[segment.name] != "full" else []
    first, experts, last = footprint.parts
    before, within, after = footprint.workspace_bytes
    return [
        Instruction(
            Op.FORWARD,
            segment.name,
            m,
            reads=(*own, x, name.batch(m), "rope", f"router/{segment.name}"),
            writes=(dispatched,),
            work=first,
            workspace_bytes=before,
        ),
        *_all_to_all(OverlapOp.DISPATCH_TOKENS, segment, m, dispatched, footprint.all_to_alls[0]),
        Instruction(
            OverlapOp.EXPERTS_FORWARD,
            segment.name,
            m,
            reads=(*every, dispatched),
            writes=(combined,),
            frees=(dispatched,),
            work=experts,
            workspace_bytes=within,
        ),
        *_all_to_all(OverlapOp.COMBINE_TOKENS, segment, m, combined, footprint.all_to_alls[1]),
        Instruction(
            OverlapOp.FINISH_FORWARD,
            segment.name,
            m,
            reads=(combined, x),
            writes=(out, *saved),
            frees=(combined,),
            work=last,
            workspace_bytes=after,
        ),
    ]


def backward_in_parts(view: RankView, segment: Segment, m: int) -> list[Instruction]:
    """BACKWARD up to the dispatch of the output's gradient, the experts with the shared ones, the rest."""
    _, footprint = view.parts(segment)
    dispatched, combined = rows.dispatched(segment.name, m, True), rows.combined(segment.name, m, True)
    own, every = _parameters(view, segment)
    x, upstream = name.hidden(segment.name, m), name.dhidden(view.stages.following[segment.name], m)
    saved, router = name.saved(segment.name, m), f"router/{segment.name}"
    grads = tuple(f"grad/{unit}" for unit in segment.units)
    first, experts, last = footprint.parts
    before, within, after = footprint.workspace_bytes
    return [
        Instruction(
            Op.BACKWARD,
            segment.name,
            m,
            reads=(upstream, saved),
            writes=(dispatched,),
            frees=(saved,),
            work=first,
            workspace_bytes=before,
        ),
        *_all_to_all(OverlapOp.DISPATCH_GRADIENT, segment, m, dispatched, footprint.all_to_alls[0]),
        Instruction(
            OverlapOp.EXPERTS_BACKWARD,
            segment.name,
            m,
            reads=(*every, dispatched, upstream, router),
            writes=(*grads, combined, router),
            frees=(dispatched,),
            work=experts,
            workspace_bytes=within,
        ),
        *_all_to_all(OverlapOp.COMBINE_GRADIENT, segment, m, combined, footprint.all_to_alls[1]),
        Instruction(
            OverlapOp.FINISH_BACKWARD,
            segment.name,
            m,
            reads=(*own, combined, upstream, x, name.batch(m), router),
            writes=(*grads, name.dhidden(segment.name, m), router),
            frees=(combined, x, upstream),
            work=last,
            workspace_bytes=after,
        ),
    ]


def _parameters(view: RankView, segment: Segment) -> tuple[list[str], list[str]]:
    """The parameters that a pass reads beside its experts', and all."""
    dense = [f"params/{unit}" for unit in segment.units if view.flats[unit].domain == "dense"]
    return dense, [f"params/{unit}" for unit in segment.units]


def _all_to_all(op: OverlapOp, segment: Segment, m: int, buffer: str, work: Work) -> list[Instruction]:
    start = Instruction(op, segment.name, m, reads=(buffer,), writes=(buffer,), work=work, stream="ep")
    return [start, Instruction(Op.WAIT, handle=start.short)]
