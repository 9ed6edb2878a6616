"""The reduction pass: each unit's gradients are summed as soon as their last contribution is there, while backward goes on.

ZeRO-0 and 1 keep whole gradients and reduce once a step; ZeRO-2 and 3 reduce every microbatch into the shard and drop the rest.
With HSDP the shards are summed over the replicas once a step. A reduction that holds buffers is joined before later ones
start, so that as many exist as it has phases; one that works in place is joined at the end.
"""

from fourfold.layout.mesh import axes_name
from fourfold.program.buffers import Lowering
from fourfold.program.instruction import Collective, Instruction, Op


def insert_reductions(steps: list[Instruction], facts: Lowering) -> list[Instruction]:
    """Reduce after the last writer of `grad/U` (of the step, or of each microbatch), Wait as soon as overlap allows."""
    if not facts.data_axes:
        return steps
    last_writer = _last_writers(steps, each_microbatch=facts.zero >= 2)
    last_microbatch = facts.layout.num_microbatches - 1
    result: list[Instruction] = []
    in_flight: list[tuple[Instruction, Instruction]] = []
    for index, step in enumerate(steps):
        while any(f"grad/{reduce.segment}" in step.writes for reduce, _ in in_flight):
            result.append(in_flight.pop(0)[1])
        result.append(step)
        for unit in last_writer.get(index, ()):
            assert step.microbatch is not None
            reduce, wait = _reduction(facts, unit, step.microbatch, final=step.microbatch == last_microbatch)
            while wait.frees and len(in_flight) >= len(reduce.collectives):
                result.append(in_flight.pop(0)[1])
            result.append(reduce)
            in_flight.append((reduce, wait))
    return result + [wait for _, wait in in_flight]


def _last_writers(steps: list[Instruction], each_microbatch: bool) -> dict[int, list[str]]:
    """Index of an instruction -> the units whose gradient is complete after it."""
    last: dict[tuple[str, int | None], int] = {}
    for index, step in enumerate(steps):
        for written in step.writes:
            if written.startswith("grad/"):
                last[written.removeprefix("grad/"), step.microbatch if each_microbatch else None] = index
    result: dict[int, list[str]] = {}
    for (unit, _), index in last.items():
        result.setdefault(index, []).append(unit)
    return result


def _reduction(facts: Lowering, unit: str, microbatch: int, final: bool) -> tuple[Instruction, Instruction]:
    layout = facts.layout
    whole, landing, shard = f"grad/{unit}", f"reduce/{unit}", f"grad_shard/{unit}"
    reads: tuple[str, ...] = (whole,)
    writes: tuple[str, ...] = (whole, landing)
    frees: tuple[str, ...] = (landing,)
    replicas = layout.active(("dp_replicate",))
    collectives: tuple[Collective, ...]
    if facts.zero == 0:
        axes = facts.data_axes
        collectives = (_collective(facts, "all_reduce", axes, facts.buffer_bytes(whole)),)
    else:
        axes = ("dp_shard",)
        collectives = (_collective(facts, "reduce_scatter", axes, facts.buffer_bytes(whole)),)
        if final and replicas:
            collectives += (_collective(facts, "all_reduce", replicas, facts.buffer_bytes(shard)),)
    if facts.zero >= 2:
        writes, frees = (shard, landing), (whole, landing)
    if facts.buffer_bytes(landing) == 0:
        writes, frees = writes[:1], frees[:-1]
    reduce = Instruction(
        Op.REDUCE, unit, microbatch, reads=reads, writes=writes, collectives=collectives, stream=axes_name(axes)
    )
    return reduce, Instruction(Op.WAIT, handle=reduce.short, frees=frees)


def _collective(facts: Lowering, kind: str, axes: tuple[str, ...], size: int) -> Collective:
    return Collective(kind, axes_name(axes), size, facts.layout.group_size(axes))  # type: ignore[arg-type]
