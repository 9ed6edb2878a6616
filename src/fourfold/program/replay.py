"""The replay pass: each segment computes one microbatch once more, the first that comes back, and compares.

A REPLAY follows the segment's backward. It runs forward and backward from the same inputs; the output, the input gradient and the
weight gradients must be those that the step goes on with: checksums of their bits are compared. Its inputs are kept until
then. A segment qualifies if nothing else has added to its gradients by then: all but an embedding, whose backward is a sum,
and modules that share weights.
"""

from collections.abc import Iterable

from fourfold.model.spec import Segment
from fourfold.model.work import Elementwise, Work
from fourfold.program import buffers as name
from fourfold.program.instruction import Instruction, Op
from fourfold.program.pattern import Name, Pattern, Step
from fourfold.program.schedule import Compute
from fourfold.program.sizes import core_buffer_bytes
from fourfold.program.view import RankView


def unsplit_first(order: Iterable[Compute]) -> tuple[Compute, ...]:
    """The order with the first backward of every stage in one piece: a deferred weight gradient comes with those of others."""
    first: dict[int, int] = {}
    result = []
    for entry in order:
        if entry.op.is_backward:
            m = first.setdefault(entry.stage, entry.microbatch)
            if m == entry.microbatch:
                if entry.op is Op.BACKWARD_WEIGHT:
                    continue
                entry = entry._replace(op=Op.BACKWARD)
        result.append(entry)
    return tuple(result)


def insert_replays(steps: list[Step], view: RankView) -> list[Step]:
    """REPLAY behind the first backward of every segment that qualifies."""
    if not view.spec.replay:
        return steps
    result: list[Step] = []
    begun: set[Name] = set()
    replayed: list[int] = []
    for step in steps:
        result.append(step)
        pattern, m = step
        if not pattern.op.is_backward:
            continue
        gradients = {each for each in pattern.writes if each.text.startswith("grad/")}
        if pattern.op is Op.BACKWARD and pattern.segment != "embed" and not gradients & begun:
            replayed.append(len(result))
            result.append((Pattern.of_first(_replay(view, view.stages.segments[pattern.segment or ""])), m))
        begun |= gradients
    return _freed_later(result, replayed)


def _freed_later(steps: list[Step], replayed: list[int]) -> list[Step]:
    """Moves frees of what a replay reads behind the last that does."""
    last = {(each, steps[index][1]): index for index in replayed for each in steps[index][0].reads if each.own}
    gained: dict[int, list[Name]] = {}
    for index, (pattern, m) in enumerate(steps):
        late = [each for each in pattern.frees if last.get((each, m), -1) > index]
        if late:
            steps[index] = _with_frees(pattern, [each for each in pattern.frees if each not in late]), m
            for each in late:
                gained.setdefault(last[each, m], []).append(each)
    for index, names in gained.items():
        pattern, m = steps[index]
        steps[index] = _with_frees(pattern, [*pattern.frees, *names]), m
    return steps


def _with_frees(pattern: Pattern, frees: list[Name]) -> Pattern:
    return pattern.like(pattern.first._replace(frees=tuple(each.of(0) for each in frees)))


def _replay(view: RankView, segment: Segment) -> Instruction:
    """A segment's, for the first microbatch."""
    footprint, gradients = view.footprint(segment), tuple(f"grad/{unit}" for unit in segment.units)
    reads = [*(f"params/{unit}" for unit in segment.units), name.batch(0), *gradients]
    compared = [name.dhidden(segment.name, 0)]
    reads += [name.hidden(segment.name, 0), *(["rope"] if segment.kind == "block" else [])]
    reads += [f"router/{segment.name}"] if segment.moe else []
    forward = Work()
    if segment.kind == "block":
        following = view.stages.following[segment.name]
        reads.append(name.dhidden(following, 0))
        compared.append(name.hidden(following, 0))
        forward = footprint.forward
    read = 2 * sum(core_buffer_bytes(view, each) for each in (*compared, *gradients))
    return Instruction(
        Op.REPLAY,
        segment.name,
        0,
        reads=(*reads, *compared),
        writes=gradients,
        work=Work((*forward.items, *footprint.backward.items, Elementwise(read, read))),
        workspace_bytes=_workspace(view, segment),
    )


def _workspace(view: RankView, segment: Segment) -> int:
    """The larger of its forward's memory and its backward's."""
    footprint, full = view.footprint(segment), view.stages.policies[segment.name] == "full"
    made = core_buffer_bytes(view, name.dhidden(segment.name, 0))
    backward = footprint.saved_bytes + made + footprint.backward_workspace_bytes
    if segment.kind != "block":
        return backward
    out = 0 if full else footprint.output_bytes
    within = footprint.recompute_workspace_bytes if full else footprint.forward_workspace_bytes
    return max(footprint.saved_bytes + out + within, backward)
