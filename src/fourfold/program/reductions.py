"""The reduction pass: each unit's gradients are summed as soon as their last contribution is there, while backward goes on.

ZeRO-0 and 1 keep whole gradients and reduce once a step; ZeRO-2 and 3 reduce every microbatch into the shard and drop the rest.
With HSDP the shards are summed over the replicas once a step. What tensor-parallel ranks have partial sums of is summed over them
first. A reduction that holds buffers is joined before later ones start, so that as many exist as it has phases; one that works in
place is joined at the end.
"""

from fourfold.config import DTYPE_BYTES
from fourfold.layout.mesh import axes_name
from fourfold.program.facts import Lowering
from fourfold.program.instruction import BACKWARD_OPS, Collective, Instruction, Op
from fourfold.program.update import over


def insert_reductions(steps: list[Instruction], facts: Lowering) -> list[Instruction]:
    """Reduce after the last writer of `grad/U` (of the step, or of each microbatch), Wait as soon as overlap allows."""
    last_writer = _last_writers(steps, facts)
    result: list[Instruction] = []
    in_flight: list[tuple[Instruction, Instruction]] = []
    for index, step in enumerate(steps):
        while in_flight and any(reduce.reads[0] in step.writes for reduce, _ in in_flight):
            result.append(in_flight.pop(0)[1])
        result.append(step)
        for unit, final in last_writer.get(index, ()):
            assert step.microbatch is not None
            started = _reduction(facts, unit, step.microbatch, final)
            if started is None:
                continue
            reduce, wait = started
            while wait.frees and len(in_flight) >= len(reduce.collectives):
                result.append(in_flight.pop(0)[1])
            result.append(reduce)
            in_flight.append((reduce, wait))
    return result + [wait for _, wait in in_flight]


def _last_writers(steps: list[Instruction], facts: Lowering) -> dict[int, list[tuple[str, bool]]]:
    """Index of an instruction -> the units whose gradient is complete after it, of a microbatch or (True) of the step."""
    last: dict[tuple[str, int | None], int] = {}
    final: dict[str, int] = {}
    each = {f"grad/{unit}": (unit, facts.zero_of(unit) >= 2) for unit in facts.flats}
    for index, step in enumerate(steps):
        if step.op in BACKWARD_OPS:
            for written in step.writes:
                if written in each:
                    unit, is_sharded = each[written]
                    last[unit, step.microbatch if is_sharded else None] = index
                    final[unit] = index
    result: dict[int, list[tuple[str, bool]]] = {}
    for (unit, _), index in last.items():
        result.setdefault(index, []).append((unit, final[unit] == index))
    return result


def _reduction(facts: Lowering, unit: str, microbatch: int, final: bool) -> tuple[Instruction, Instruction] | None:
    """The Reduce and its Wait; None where no other rank has a part of this gradient."""
    whole, landing, shard = f"grad/{unit}", f"reduce/{unit}", f"grad_shard/{unit}"
    zero = facts.zero_of(unit)
    collectives = partial_sums(facts, unit)
    if zero == 0 and facts.gradient_axes(unit):
        collectives += (over(facts, "all_reduce", facts.gradient_axes(unit), facts.buffer_bytes(whole)),)
    elif zero > 0:
        collectives += (over(facts, "reduce_scatter", facts.shard_axes(unit), facts.buffer_bytes(whole)),)
        replicas = facts.layout.active(("dp_replicate",))
        if final and replicas:
            collectives += (over(facts, "all_reduce", replicas, facts.buffer_bytes(shard)),)
    if not collectives:
        return None
    writes: tuple[str, ...] = (shard, landing) if zero >= 2 else (whole, landing)
    frees: tuple[str, ...] = (whole, landing) if zero >= 2 else (landing,)
    if facts.buffer_bytes(landing) == 0:
        writes, frees = writes[:1], frees[:-1]
    stream = axes_name(facts.shard_axes(unit)) if zero > 0 else collectives[-1].axes
    reduce = Instruction(
        Op.REDUCE, unit, microbatch, reads=(whole,), writes=writes, collectives=collectives, stream=stream
    )
    return reduce, Instruction(Op.WAIT, handle=reduce.short, frees=frees)


def partial_sums(facts: Lowering, unit: str) -> tuple[Collective, ...]:
    """The sums over tensor-parallel ranks of the unit's gradients that are partial on each of them."""
    size = DTYPE_BYTES[facts.gradients]
    return tuple(
        over(facts, "all_reduce", (axis,), (end - start) * size) for axis, start, end in facts.flats[unit].sums
    )
