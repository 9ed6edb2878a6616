"""The groups' walk: ranks advance together through their lists; whoever can never advance again is a fault.

Collectives of a group must be started by all its members in one order; between two ranks, receives in the order of the sends.
Where all ranks of a pipeline coordinate run one list, one rank of each stands for all: a collective that stays within a coordinate
is in step by itself. That keeps the proof the same size on 4 ranks and on 24,576.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fourfold.layout import Layout
from fourfold.model.work import Collective
from fourfold.program.fault import Fault
from fourfold.program.instruction import RECEIVES, SENDS, STARTS, Instruction, Op, Program

Event = tuple[str, ...]
Group = tuple[int, ...]
Groups = dict[tuple[int, str], Group]
"""(rank, axes) -> those members of its group that are walked."""


@dataclass
class _Rank:
    program: Program
    pp_rank: int
    column: Group
    """The ranks of its pipeline."""
    crossings: dict[int, list[Group]]
    """By the identity of an instruction's work, the groups of its collectives that other walked ranks are in."""
    counter: int = 0
    entered: dict[Group, int] = field(default_factory=dict)
    """How many collectives of each group this rank has started."""
    pending: dict[str, list[tuple[Group, int]]] = field(default_factory=dict)
    """Handle -> the (group, position) of its collectives."""
    transfers: dict[str, tuple[int, int, bool, int]] = field(default_factory=dict)
    """Handle -> (source, target, whether this rank sends, position) of a transfer."""


class _Transfer(NamedTuple):
    """A tensor on its way between stages, as either end declares it."""

    activations: bool
    segment: str | None
    microbatch: int | None
    bytes: int

    def __str__(self) -> str:
        name = " ".join([*([self.segment] if self.segment else []), f"m{self.microbatch}"])
        return f"{'activations' if self.activations else 'gradients'} of {name}, {self.bytes} bytes,"


@dataclass
class _Channel:
    """Transfers from one rank to another as the two list them, in order: (index of the instruction, transfer)."""

    sent: list[tuple[int, _Transfer]] = field(default_factory=list)
    received: list[tuple[int, _Transfer]] = field(default_factory=list)


TRANSFERS = SENDS | RECEIVES
ACTIVATIONS = frozenset((Op.SEND_ACTIVATION, Op.RECV_ACTIVATION))
Channels = dict[tuple[int, int], _Channel]


def check_progress(programs: Mapping[int, Program], layout: Layout) -> list[Fault]:
    """Order of collectives within each group, pairing of transfers, absence of deadlock."""
    ranks = _ranks_to_walk(programs, layout)
    groups = _groups(programs, ranks, layout)
    faults = _check_order(programs, ranks, groups)
    return faults or _check_deadlock(programs, ranks, groups, layout)


def _ranks_to_walk(programs: Mapping[int, Program], layout: Layout) -> list[int]:
    """One pipeline where all others run the same lists; none where that is one list that no transfer leaves; else all."""
    column = layout.group_of(min(programs), ("pp",))
    by_stage = {programs[rank].pp_rank: programs[rank] for rank in column if rank in programs}
    if any(programs[rank] is not by_stage.get(layout.coordinates(rank)["pp"]) for rank in programs):
        return sorted(programs)
    if len(column) == 1 and not any(s.op in TRANSFERS for s in programs[column[0]].instructions):
        return []
    return list(column)


def _groups(programs: Mapping[int, Program], ranks: list[int], layout: Layout) -> Groups:
    walked = set(ranks)
    result: Groups = {}
    for rank in ranks:
        works = {id(step.work): step.work for step in programs[rank].instructions}
        for axes in {c.axes for work in works.values() for c in work.collectives}:
            members = layout.group_of(rank, tuple(axes.split("+")))
            result[rank, axes] = tuple(member for member in members if member in walked)
    return result


def _crossing(rank: int, program: Program, groups: Groups) -> dict[int, list[tuple[Group, Collective]]]:
    """By the identity of an instruction's work: its collectives, transfers aside, that other walked ranks are in. Few pieces of
    work are shared by all instructions."""
    works = {id(step.work): step.work for step in program.instructions}
    return {
        key: [
            (group, c)
            for c in work.collectives
            if c.kind not in ("send", "recv") and len(group := groups[rank, c.axes]) > 1
        ]
        for key, work in works.items()
    }


def _events(rank: int, program: Program, groups: Groups) -> dict[Group, list[tuple[int, Event]]]:
    """For each group the collectives that the rank enters, in order, as (index, what)."""
    result: dict[Group, list[tuple[int, Event]]] = {}
    crossing = _crossing(rank, program, groups)
    for index, step in enumerate(program.instructions):
        for group, c in crossing[id(step.work)]:
            result.setdefault(group, []).append((index, (step.short, c.kind, c.axes, str(c.bytes))))
    return result


def _check_order(programs: Mapping[int, Program], ranks: list[int], groups: Groups) -> list[Fault]:
    faults: list[Fault] = []
    events = {rank: _events(rank, programs[rank], groups) for rank in ranks}
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


def _check_deadlock(programs: Mapping[int, Program], ranks: list[int], groups: Groups, layout: Layout) -> list[Fault]:
    """Runs all lists at once: starting never blocks; waiting blocks until every member, or both ends, have started."""
    states = {}
    for rank in ranks:
        crossing = _crossing(rank, programs[rank], groups)
        crossings = {key: [group for group, _ in found] for key, found in crossing.items()}
        pp_rank, column = layout.coordinates(rank)["pp"], layout.group_of(rank, ("pp",))
        states[rank] = _Rank(programs[rank], pp_rank, column, crossings)
    channels: Channels = {}
    moved = True
    while moved:
        moved = False
        for rank, state in states.items():
            begun, steps = state.counter, state.program.instructions
            while state.counter < len(steps) and _can_pass(rank, steps[state.counter], state, states, channels):
                state.counter += 1
            moved |= state.counter > begun
    faults = []
    for rank, state in states.items():
        if state.counter < len(state.program.instructions):
            step = state.program.instructions[state.counter]
            faults.append(
                Fault(rank, state.counter, step, "waits for ever: its peers never enter", "pair it with its peers")
            )
    for rank, state in states.items():  # what nobody reached belongs to the pairs all the same
        while state.counter < len(state.program.instructions):
            step = state.program.instructions[state.counter]
            if step.op in TRANSFERS:
                _start_transfer(rank, step, state, channels)
            state.counter += 1
    return _check_pairs(programs, channels) or faults


def _check_pairs(programs: Mapping[int, Program], channels: Channels) -> list[Fault]:
    """The k-th receive takes the k-th send. The first that does not, of each pair of ranks."""
    faults = []
    for (source, target), channel in sorted(channels.items()):
        for position in range(max(len(channel.sent), len(channel.received))):
            sent = channel.sent[position] if position < len(channel.sent) else None
            received = channel.received[position] if position < len(channel.received) else None
            if sent and received and sent[1] == received[1]:
                continue
            rank, index = (source, sent[0]) if sent else (target, received[0] if received else 0)
            if sent and received:
                message = f"sends {sent[1]} to rank {target}, which receives {received[1]} there"
            elif sent:
                message = f"sends {sent[1]} to rank {target}, which never receives it"
            else:
                message = f"receives {received[1] if received else ''} from rank {source}, which never sends it"
            fix = "pair sends and receives, in one order"
            faults.append(Fault.at(rank, programs[rank], index, message, fix))
            break
    return faults


def _can_pass(rank: int, step: Instruction, state: _Rank, states: dict[int, _Rank], channels: Channels) -> bool:
    op = step.op
    if op is Op.WAIT:
        handle = step.handle or ""
        if handle in state.transfers:
            return _transferred(state, handle, channels)
        return _joined(state, handle, states)
    if op in TRANSFERS:
        _start_transfer(rank, step, state, channels)
        return True
    groups = state.crossings[id(step.work)]
    if not groups:
        return True
    short = step.short
    if short not in state.pending:
        positions = state.pending[short] = []
        for group in groups:
            state.entered[group] = state.entered.get(group, 0) + 1
            positions.append((group, state.entered[group]))
    return op in STARTS or _joined(state, short, states)


def _joined(state: _Rank, handle: str, states: dict[int, _Rank]) -> bool:
    for group, position in state.pending.get(handle, ()):
        if any(states[member].entered.get(group, 0) < position for member in group):
            return False
    state.pending.pop(handle, None)
    return True


def _start_transfer(rank: int, step: Instruction, state: _Rank, channels: Channels) -> None:
    peer = step.peer if step.peer is not None and 0 <= step.peer < len(state.column) else state.pp_rank
    other = state.column[peer]
    sends = step.op in SENDS
    size = sum(c.bytes for c in step.work.collectives)
    what = _Transfer(step.op in ACTIVATIONS, step.segment, step.microbatch, size)
    source, target = (rank, other) if sends else (other, rank)
    channel = channels.get((source, target))
    if channel is None:
        channel = channels[source, target] = _Channel()
    queue = channel.sent if sends else channel.received
    state.transfers[step.short] = (source, target, sends, len(queue))
    queue.append((state.counter, what))


def _transferred(state: _Rank, handle: str, channels: Channels) -> bool:
    """Whether the other end has started the transfer at the same place in the order."""
    source, target, sends, position = state.transfers[handle]
    channel = channels[source, target]
    if len(channel.received if sends else channel.sent) <= position:
        return False
    del state.transfers[handle]
    return True
