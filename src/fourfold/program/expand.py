"""From the compute order of stages to the instructions of their segments, with recomputation and the batches they read."""

from collections.abc import Callable, Iterable

from fourfold.model.spec import Segment
from fourfold.program import buffers as name
from fourfold.program.instruction import Instruction, Op
from fourfold.program.pattern import Name, Pattern, Step
from fourfold.program.schedule import Compute
from fourfold.program.view import RankView

RoutedPass = Callable[[RankView, Segment, Compute], list[Instruction] | None]
"""The instructions of a pass over a segment; None of one that stays in one piece."""


def expand_segments(
    order: Iterable[Compute], view: RankView, training: bool = True, routed: RoutedPass | None = None
) -> list[list[Step]]:
    """Stage -> its segments; backward in reverse. One list of steps for every entry of the order.

    `routed`: the instructions of passes over routed blocks, where these run in parts; halves of a backward stay whole.

    The head has no forward of its own in training: its backward does both, the weight gradient too, whole even where the schedule
    takes the halves apart (its input gradient is made from the logits' gradient chunk by chunk, which nobody keeps). The
    embedding has no input gradient: its backward stands where the weight gradients do.
    """
    patterns: dict[tuple[Op, int], list[Pattern]] = {}
    groups: list[list[Step]] = []
    for op, stage, m in order:
        found = patterns.get((op, stage))
        if found is None:
            first = _expand(view, Compute(op, stage, 0), training, routed)
            found = patterns[op, stage] = list(map(Pattern.of_first, first))
        groups.append([(pattern, m) for pattern in found])
    return groups


def _expand(view: RankView, compute: Compute, training: bool, routed: RoutedPass | None) -> list[Instruction]:
    op, stage, m = compute
    segments = view.stages.stages[stage]
    steps: list[Instruction] = []
    if op is Op.FORWARD:
        for segment in segments:
            if routed and (parts := routed(view, segment, compute)):
                steps += parts
            elif segment.kind != "head" or not training:
                steps.append(_forward(view, segment, m, training))
        return steps
    for segment in reversed(segments):
        if routed and (parts := routed(view, segment, compute)):
            steps += parts
        elif op is Op.BACKWARD or segment.kind == ("embedding" if op is Op.BACKWARD_WEIGHT else "head"):
            steps.append(_backward(view, segment, m))
        elif segment.kind == "block":
            half = _backward_input if op is Op.BACKWARD_INPUT else _backward_weight
            steps.append(half(view, segment, m))
    return steps


def _router(segment: Segment) -> list[str]:
    return [f"router/{segment.name}"] if segment.moe else []


def _forward(view: RankView, segment: Segment, m: int, training: bool) -> Instruction:
    policy, footprint = view.stages.policies[segment.name], view.footprint(segment)
    reads = [f"params/{unit}" for unit in segment.units]
    writes, frees = [], []
    if segment.kind != "embedding":
        reads.append(name.hidden(segment.name, m))
    reads += [name.batch(m)] if segment.kind != "block" else [name.batch(m), "rope"]
    reads += _router(segment)
    if segment.kind != "head":
        writes.append(name.hidden(view.stages.following[segment.name], m))
    if training and segment.kind == "block" and policy != "full":
        writes.append(name.saved(segment.name, m))
    workspace = footprint.forward_workspace_bytes
    if not training:
        frees += [name.hidden(segment.name, m)] if segment.kind != "embedding" else []
        if segment.kind == "block":
            workspace = view.footprints.of(segment, "full").forward_workspace_bytes
    return Instruction(
        Op.FORWARD,
        segment.name,
        m,
        reads=tuple(reads),
        writes=tuple(writes),
        frees=tuple(frees),
        work=footprint.forward,
        workspace_bytes=workspace,
    )


def _backward(view: RankView, segment: Segment, m: int) -> Instruction:
    footprint = view.footprint(segment)
    reads = [name.batch(m)]
    writes = [f"grad/{unit}" for unit in segment.units]
    frees: list[str] = []
    if segment.kind != "embedding":
        reads += [f"params/{unit}" for unit in segment.units]
        reads.append(name.hidden(segment.name, m))
        writes.append(name.dhidden(segment.name, m))
        frees.append(name.hidden(segment.name, m))
    if segment.kind != "head":
        upstream = name.dhidden(view.stages.following[segment.name], m)
        reads.append(upstream)
        frees.append(upstream)
    if segment.kind == "block":
        reads += [name.saved(segment.name, m), *_router(segment)]
        writes += _router(segment)  # loads and auxiliary losses are recorded in backward, which runs once
        frees.append(name.saved(segment.name, m))
    return Instruction(
        Op.BACKWARD,
        segment.name,
        m,
        reads=tuple(reads),
        writes=tuple(writes),
        frees=tuple(frees),
        work=footprint.backward,
        workspace_bytes=footprint.backward_workspace_bytes,
    )


def _backward_input(view: RankView, segment: Segment, m: int) -> Instruction:
    """A block's input gradient; norms' weight gradients come with it, the matmuls' are deferred."""
    halves, full = view.halves(segment), _backward(view, segment, m)
    return full._replace(
        op=Op.BACKWARD_INPUT,
        writes=(*full.writes, name.deferred(segment.name, m)),
        work=halves.input_gradient,
        workspace_bytes=halves.input_workspace_bytes,
    )


def _backward_weight(view: RankView, segment: Segment, m: int) -> Instruction:
    halves = view.halves(segment)
    return Instruction(
        Op.BACKWARD_WEIGHT,
        segment.name,
        m,
        reads=(name.deferred(segment.name, m),),
        writes=tuple(f"grad/{unit}" for unit in segment.units),
        frees=(name.deferred(segment.name, m),),
        work=halves.weight_gradient,
        workspace_bytes=halves.weight_workspace_bytes,
    )


def insert_recompute(steps: list[Step], view: RankView) -> list[Step]:
    """Before the backward of a segment whose forward kept nothing: its forward again (Chen et al. 2016)."""
    full = {
        s.name: Pattern.of_first(_recompute(view, s)) for s in view.segments if view.stages.policies[s.name] == "full"
    }
    if not full:
        return steps
    reading = {p for p, _ in steps if p.op.is_compute and "saved" in p.op.info.reads}
    again = {p: full[p.segment] for p in reading if p.segment in full}
    result = []
    for step in steps:
        if step[0] in again:
            result.append((again[step[0]], step[1]))
        result.append(step)
    return result


def _recompute(view: RankView, segment: Segment) -> Instruction:
    """A block's forward again, for the first microbatch."""
    footprint = view.footprint(segment)
    params = [f"params/{unit}" for unit in segment.units]
    return Instruction(
        Op.RECOMPUTE,
        segment.name,
        0,
        reads=(*params, name.hidden(segment.name, 0), name.batch(0), "rope", *_router(segment)),
        writes=(name.saved(segment.name, 0),),
        work=footprint.forward,
        workspace_bytes=footprint.recompute_workspace_bytes,
    )


def insert_loads(steps: list[Step]) -> list[Step]:
    """Each microbatch is fetched before the first instruction that reads it and dropped after the last."""
    batch = Name("batch", True)
    load = Pattern.of_first(Instruction(Op.LOAD, microbatch=0, writes=(name.batch(0),)))
    readers = {pattern for pattern, _ in steps if pattern.op.is_compute and batch in pattern.reads}
    dropping: dict[Pattern, Pattern] = {}
    first: dict[int | None, int] = {}
    last: dict[int | None, int] = {}
    for index, (pattern, m) in enumerate(steps):
        if pattern in readers:
            last[m] = index
            first.setdefault(m, index)
    loads, drops = set(first.values()), set(last.values())
    result: list[Step] = []
    done = 0
    for index in sorted(loads | drops):
        result += steps[done:index]
        pattern, m = steps[index]
        if index in loads:
            result.append((load, m))
        if index in drops:
            if pattern not in dropping:
                kept = pattern.first
                dropping[pattern] = pattern.like(kept._replace(frees=(*kept.frees, name.batch(0))))
            pattern = dropping[pattern]
        result.append((pattern, m))
        done = index + 1
    return result + steps[done:]
