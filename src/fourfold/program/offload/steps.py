"""The offload passes: activations wait for their backward in the host's memory (Rhu et al. 2016), optimizer states for their update
(Ren et al. 2021).

An OFFLOAD starts a copy there, a FETCH one back, each on its own direction of the device's link to its host. The WAIT of the first
frees the device's buffer, that of the second the host's.
"""

from collections.abc import Iterable
from enum import unique

from fourfold.model.work import HostCopy, Work
from fourfold.program import buffers as name
from fourfold.program.instruction import Instruction
from fourfold.program.opcode import FROM_HOST, TO_HOST, Opcode, OpInfo
from fourfold.program.pattern import Name, Pattern, Step
from fourfold.program.sizes import core_buffer_bytes, state_buffers
from fourfold.program.spec import StepSpec
from fourfold.program.view import RankView


@unique
class OffloadOp(Opcode):
    """The two directions of a copy."""

    # fmt: off
    OFFLOAD = OpInfo("O>", "offload to the host",
        "starts to copy a segment's activations, or a unit's optimizer states, to the host's memory ([below](#offload))",
        names="segment or unit", reads=("master", "optimizer", "saved"), writes=("host_master", "host_optimizer", "host_saved"),
        starts="copy", stream=TO_HOST)
    FETCH = OpInfo("O<", "fetch from the host", "starts to copy them back", names="segment or unit",
        reads=("host_master", "host_optimizer", "host_saved"), writes=("master", "optimizer", "saved"), fills=True, starts="copy",
        stream=FROM_HOST)
    # fmt: on


def insert_activation_offloads(steps: list[Step], view: RankView) -> list[Step]:
    """OFFLOAD behind the forward, joined `prefetch` computations later; FETCH as many before the backward, joined there.

    Activations between whose forward and backward there is no room for both copies stay on the device.
    """
    names = {Name(f"saved/{segment.name}", True): segment.name for segment in view.segments}
    away = {own: segment for own, segment in names.items() if segment in view.stages.offloaded}
    if not away:
        return steps
    distance = view.spec.layout.prefetch * view.spec.computations_per_pass
    computes = [i for i, (pattern, _) in enumerate(steps) if pattern.op.is_compute]
    begun: dict[tuple[Name, int | None], int] = {}
    behind: dict[int, list[Step]] = {}
    frees, starts, joins = dict[int, list[Step]](), dict[int, list[Step]](), dict[int, list[Step]]()
    copies = {
        own: (_activations(view, OffloadOp.OFFLOAD, s), _activations(view, OffloadOp.FETCH, s))
        for own, s in away.items()
    }
    waits = {own: tuple(copy.joined(copy.first.reads) for copy in pair) for own, pair in copies.items()}
    for place, index in enumerate(computes):
        pattern, m = steps[index]
        for own in pattern.writes if pattern.op.is_forward else ():
            if own in away:
                begun[own, m] = place
        for own in pattern.reads:
            start = begun.pop((own, m), None) if own in away else None
            if start is None or place - start - 1 <= 2 * distance:
                continue
            behind.setdefault(computes[start], []).append((copies[own][0], m))
            frees.setdefault(computes[start + 1 + distance], []).append((waits[own][0], m))
            starts.setdefault(computes[place - distance], []).append((copies[own][1], m))
            joins.setdefault(index, []).append((waits[own][1], m))
    result: list[Step] = []
    for index, step in enumerate(steps):
        result += [*frees.get(index, ()), *starts.get(index, ()), *joins.get(index, ()), step, *behind.get(index, ())]
    return result


def insert_optimizer_offloads(steps: list[Step], view: RankView) -> list[Step]:
    """FETCH of each unit's states before the unit before it uses its own, the first behind the last computation; OFFLOAD after the
    last use, joined before the next FETCH: two units' states are on the device at once, three where an update has two parts."""
    if not view.spec.layout.offload_optimizer:
        return steps
    used = _uses(steps)
    units = sorted(used, key=lambda unit: used[unit][0])
    last = max((i for i, (pattern, _) in enumerate(steps) if pattern.op.is_compute), default=-1)
    fetch_before: dict[int, str] = {}
    for position, unit in enumerate(units):
        fetch_before[used[units[position - 1]][0] if position else last + 1] = unit
    join_before = {first: unit for unit, (first, _) in used.items()}
    offload_after = {final: unit for unit, (_, final) in used.items()}
    result: list[Step] = []
    leaving: list[Step] = []
    for index, step in enumerate(steps):
        if index in fetch_before:
            result += [*leaving, (_states(view, OffloadOp.FETCH, fetch_before[index]), None)]
            leaving = []
        if index in join_before:
            result.append((_states(view, OffloadOp.FETCH, join_before[index]).joined(), None))
        result.append(step)
        if index in offload_after:
            offload = _states(view, OffloadOp.OFFLOAD, offload_after[index])
            result.append((offload, None))
            leaving.append((offload.joined(offload.first.reads), None))
    return result + leaving


def resident(spec: StepSpec, state: str) -> str:
    """Where a buffer of optimizer states lies between steps."""
    return name.host(state) if spec.layout.offload_optimizer else state


def _uses(steps: Iterable[Step]) -> dict[str, tuple[int, int]]:
    """The first and the last instruction that reads each unit's states."""
    found: dict[str, tuple[int, int]] = {}
    for index, (pattern, _) in enumerate(steps):
        for text, _own in pattern.reads:
            kind, _, unit = text.partition("/")
            if kind == "optimizer":
                found[unit] = (found.get(unit, (index, index))[0], index)
    return found


def _activations(view: RankView, op: OffloadOp, segment: str) -> Pattern:
    return Pattern.of_first(_copy(view, op, segment, 0, (name.saved(segment, 0),)))


def _states(view: RankView, op: OffloadOp, unit: str) -> Pattern:
    return Pattern.of_first(_copy(view, op, unit, None, state_buffers(view, unit)))


def _copy(view: RankView, op: OffloadOp, owner: str, m: int | None, buffers: tuple[str, ...]) -> Instruction:
    there = tuple(map(name.host, buffers))
    reads, writes = (buffers, there) if op is OffloadOp.OFFLOAD else (there, buffers)
    size = sum(core_buffer_bytes(view, each) for each in buffers)
    copies = len(view.spec.optimizer.state) + view.spec.mixed
    if m is not None:
        copies = view.footprint(view.stages.segments[owner]).saved_tensors
    work = Work((HostCopy(op is OffloadOp.OFFLOAD, size, copies),))
    return Instruction(op, owner, m, reads=reads, writes=writes, work=work, stream=op.info.stream)
