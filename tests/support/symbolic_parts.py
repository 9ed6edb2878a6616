"""Passes in parts on symbols: rows set out, travel, and are there, for each exchange once, before the part that reads them."""

from typing import Any

from fourfold.program import Instruction, Op
from fourfold.program.overlap.rows import OverlapOp
from tests.support.symbolic_values import Parameters, need

ALL_TO_ALLS = {
    OverlapOp.DISPATCH_TOKENS: "dispatched",
    OverlapOp.COMBINE_TOKENS: "combined",
    OverlapOp.DISPATCH_GRADIENT: "ddispatched",
    OverlapOp.COMBINE_GRADIENT: "dcombined",
}
BETWEEN = {
    OverlapOp.EXPERTS_FORWARD: ("dispatched", "combined"),
    OverlapOp.EXPERTS_BACKWARD: ("ddispatched", "dcombined"),
}
PARTS = (*BETWEEN, OverlapOp.FINISH_FORWARD, OverlapOp.FINISH_BACKWARD)
READY, ARRIVED = "ready to set out", "arrived"


def begins_parts(rank: Any, step: Instruction) -> bool:
    """Whether a forward or backward ends at its dispatch: it does where the list has one of its rows."""
    start = {Op.FORWARD: OverlapOp.DISPATCH_TOKENS, Op.BACKWARD: OverlapOp.DISPATCH_GRADIENT}.get(step.op)
    return start is not None and (start, step.segment, step.microbatch) in rank.exchanged


def exchanged(instructions: Any) -> frozenset[tuple[Op, str | None, int | None]]:
    """The exchanges of a list."""
    return frozenset((s.op, s.segment, s.microbatch) for s in instructions if s.op in ALL_TO_ALLS)


def buffer(step: Instruction, kind: str) -> str:
    return f"{kind}/{step.segment}/m{step.microbatch}"


def set_out(rank: Any, step: Instruction) -> str:
    """The rows of an exchange that begins."""
    name = buffer(step, ALL_TO_ALLS[step.op])
    need(rank.get(name) == READY, f"{step.short} sends rows that are not ready")
    rank.settled(name)
    return name


def part(rank: Any, segment: Any, step: Instruction, following: str, parameters: Parameters) -> None:
    """The experts' part of a pass, or its end."""
    own, m = f"{segment.name}/m{step.microbatch}", step.microbatch or 0
    before, after = BETWEEN.get(step.op, ("combined" if step.op is OverlapOp.FINISH_FORWARD else "dcombined", None))
    need(rank.get(f"{before}/{own}") == ARRIVED, f"{step.short} computes on rows that are not there")
    if after is not None:
        for unit in segment.units:
            parameters.read(rank, unit)
        rank.put(f"{after}/{own}", READY)
    if step.op is OverlapOp.EXPERTS_BACKWARD:
        need(rank.loads is None, "tokens are routed after the loads are summed")
        rank.losses[rank.number, segment.name, m] += 1
        parameters.add(rank, segment, m, Op.BACKWARD_INPUT)
    if step.op is OverlapOp.FINISH_FORWARD:
        if rank.view.stages.policies[segment.name] != "full":
            rank.put(f"saved/{own}", True)
        rank.get(f"hidden/{own}")
        rank.put(f"hidden/{following}", f"output of {segment.name} for m{m}")
    if step.op is OverlapOp.FINISH_BACKWARD:
        rank.get(f"batch/m{m}")
        rank.get(f"hidden/{own}")
        rank.get(f"dhidden/{following}")
        for unit in segment.units:
            if rank.view.flats[unit].domain == "dense":
                parameters.read(rank, unit)
        rank.put(f"dhidden/{own}", f"gradient of {segment.name} for m{m}")
        parameters.add(rank, segment, m, Op.BACKWARD_WEIGHT)
