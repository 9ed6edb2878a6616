"""The groups' walk: ranks advance together through their lists; whoever can never advance again is a fault.

Collectives of a group must be started by all its members in one order. Where all ranks run one list without transfers
there is nothing to walk, which keeps the proof the same size on 4 ranks and on 24,576.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fourfold.layout import Layout
from fourfold.program.fault import Fault
from fourfold.program.instruction import RECEIVES, SENDS, STARTS, Instruction, Op, Program

Event = tuple[str, ...]
Sent = dict[tuple[int, int, str], list[int]]
"""(source, target, what) -> the indices of the sends that no receive has met."""


@dataclass
class _Rank:
    program: Program
    counter: int = 0
    entered: dict[tuple[int, ...], int] = field(default_factory=dict)
    """How many collectives of each group this rank has started."""
    pending: dict[str, list[tuple[tuple[int, ...], int]]] = field(default_factory=dict)
    """Handle -> the (group, position) of its collectives."""


def check_progress(programs: Mapping[int, Program], layout: Layout) -> list[Fault]:
    """Order of collectives within each group, pairing of transfers, absence of deadlock."""
    ranks = _ranks_to_walk(programs, layout)
    faults = _check_order(programs, ranks, layout)
    return faults or _check_deadlock(programs, ranks, layout)


def _ranks_to_walk(programs: Mapping[int, Program], layout: Layout) -> list[int]:
    """None where all run one list that no transfer leaves; else all."""
    distinct = {id(p): p for p in programs.values()}
    if len(distinct) == 1 and not any(s.op in SENDS | RECEIVES for p in distinct.values() for s in p.instructions):
        return []
    return sorted(programs)


def _group(rank: int, axes: str, layout: Layout) -> tuple[int, ...]:
    return layout.group_of(rank, tuple(axes.split("+")))


def _events(rank: int, program: Program, layout: Layout) -> dict[tuple[int, ...], list[tuple[int, Event]]]:
    """For each group the collectives that the rank enters, in order, as (index, what)."""
    result: dict[tuple[int, ...], list[tuple[int, Event]]] = {}
    for index, step in enumerate(program.instructions):
        for c in step.collectives:
            if c.kind in ("send", "recv"):
                continue
            event = (step.short, c.kind, c.axes, str(c.bytes))
            result.setdefault(_group(rank, c.axes, layout), []).append((index, event))
    return result


def _check_order(programs: Mapping[int, Program], ranks: list[int], layout: Layout) -> list[Fault]:
    faults: list[Fault] = []
    events = {rank: _events(rank, programs[rank], layout) for rank in ranks}
    for rank in ranks:
        for group, own in events[rank].items():
            first = group[0]
            if first == rank:
                continue
            reference = events[first].get(group, [])
            for position in range(max(len(own), len(reference))):
                mine = own[position] if position < len(own) else None
                theirs = reference[position] if position < len(reference) else None
                if mine is None or theirs is None or mine[1] != theirs[1]:
                    index = mine[0] if mine else len(programs[rank].instructions) - 1
                    does = (
                        f"enters `{mine[1][0]}` ({mine[1][1]}, {mine[1][3]} bytes)" if mine else "enters nothing more"
                    )
                    other = f"`{theirs[1][0]}` ({theirs[1][1]}, {theirs[1][3]} bytes)" if theirs else "nothing more"
                    faults.append(
                        Fault.at(
                            rank,
                            programs[rank],
                            index,
                            f"as collective {position} of its group {does}, where rank {first} enters {other}",
                            "give all members of the group the same order",
                        )
                    )
                    break
    return faults


def _check_deadlock(programs: Mapping[int, Program], ranks: list[int], layout: Layout) -> list[Fault]:
    """Runs all lists at once: starting never blocks, waiting blocks until every member has started."""
    states = {rank: _Rank(programs[rank]) for rank in ranks}
    sent: Sent = {}
    moved = True
    while moved:
        moved = False
        for rank, state in states.items():
            while state.counter < len(state.program.instructions):
                step = state.program.instructions[state.counter]
                if not _can_pass(rank, step, state, states, sent, layout):
                    break
                state.counter += 1
                moved = True
    faults = []
    for rank, state in states.items():
        if state.counter < len(state.program.instructions):
            step = state.program.instructions[state.counter]
            faults.append(
                Fault(rank, state.counter, step, "waits for ever: its peers never enter", "pair it with its peers")
            )
    for (source, target, what), indices in sorted(sent.items()) if not faults else ():
        for index in indices:
            message = f"sends {what} to rank {target}, which never receives them"
            faults.append(Fault.at(source, programs[source], index, message, "pair sends and receives"))
    return faults


def _can_pass(
    rank: int,
    step: Instruction,
    state: _Rank,
    states: dict[int, _Rank],
    sent: Sent,
    layout: Layout,
) -> bool:
    if step.op in SENDS | RECEIVES:
        return _transfer(rank, step, state.counter, sent, layout)
    if step.op in STARTS or step.collectives:
        positions = state.pending.setdefault(step.short, [])
        if not positions:
            for c in step.collectives:
                group = _group(rank, c.axes, layout)
                state.entered[group] = state.entered.get(group, 0) + 1
                positions.append((group, state.entered[group]))
        if step.op in STARTS:
            return True
        return _joined(state, step.short, states)
    if step.op is Op.WAIT:
        return _joined(state, step.handle or "", states)
    return True


def _joined(state: _Rank, handle: str, states: dict[int, _Rank]) -> bool:
    for group, position in state.pending.get(handle, []):
        if any(states[member].entered.get(group, 0) < position for member in group):
            return False
    state.pending.pop(handle, None)
    return True


def _transfer(rank: int, step: Instruction, index: int, sent: Sent, layout: Layout) -> bool:
    """A send never blocks; a receive needs the matching send."""
    what = "activations" if step.op in (Op.SEND_ACTIVATION, Op.RECV_ACTIVATION) else "gradients"
    own = layout.coordinates(rank)
    other = layout.rank_of({**own, "pp": step.peer if step.peer is not None else own["pp"]})
    key = (
        (rank, other, f"{what} of m{step.microbatch}")
        if step.op in SENDS
        else (other, rank, f"{what} of m{step.microbatch}")
    )
    if step.op in SENDS:
        sent.setdefault(key, []).append(index)
        return True
    if not sent.get(key):
        return False
    sent[key].pop(0)
    return True
