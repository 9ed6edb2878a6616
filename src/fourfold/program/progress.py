"""The groups' walk: ranks advance together through their lists; whoever can never advance again is a fault.

Collectives of a group must be started by all its members in one order; between two ranks, receives in the order of the sends.
Where all ranks of a pipeline coordinate run one list, one rank of each stands for all: a collective that stays within a coordinate
is in step by itself. That keeps the proof the same size on 4 ranks and on 24,576.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fourfold.layout import Layout
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
    counter: int = 0
    entered: dict[Group, int] = field(default_factory=dict)
    """How many collectives of each group this rank has started."""
    pending: dict[str, list[tuple[Group, int]]] = field(default_factory=dict)
    """Handle -> the (group, position) of its collectives."""
    transfers: dict[str, tuple[int, int, bool, int]] = field(default_factory=dict)
    """Handle -> (source, target, whether this rank sends, position) of a transfer."""


@dataclass
class _Channel:
    """Transfers from one rank to another as the two list them, in order: (index of the instruction, what)."""

    sent: list[tuple[int, str]] = field(default_factory=list)
    received: list[tuple[int, str]] = field(default_factory=list)


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
    if len(column) == 1 and not any(s.op in SENDS | RECEIVES for s in programs[column[0]].instructions):
        return []
    return list(column)


def _groups(programs: Mapping[int, Program], ranks: list[int], layout: Layout) -> Groups:
    walked = set(ranks)
    result: Groups = {}
    for rank in ranks:
        for axes in {c.axes for step in programs[rank].instructions for c in step.collectives}:
            members = layout.group_of(rank, tuple(axes.split("+")))
            result[rank, axes] = tuple(member for member in members if member in walked)
    return result


def _events(rank: int, program: Program, groups: Groups) -> dict[Group, list[tuple[int, Event]]]:
    """For each group the collectives that the rank enters, in order, as (index, what)."""
    result: dict[Group, list[tuple[int, Event]]] = {}
    for index, step in enumerate(program.instructions):
        for c in step.collectives:
            if c.kind in ("send", "recv"):
                continue
            group = groups[rank, c.axes]
            if len(group) > 1:
                event = (step.short, c.kind, c.axes, str(c.bytes))
                result.setdefault(group, []).append((index, event))
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
    states = {
        rank: _Rank(programs[rank], layout.coordinates(rank)["pp"], layout.group_of(rank, ("pp",))) for rank in ranks
    }
    channels: Channels = {}
    moved = True
    while moved:
        moved = False
        for rank, state in states.items():
            while state.counter < len(state.program.instructions):
                step = state.program.instructions[state.counter]
                if not _can_pass(rank, step, states, channels, groups):
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
    for rank, state in states.items():  # what nobody reached belongs to the pairs all the same
        while state.counter < len(state.program.instructions):
            step = state.program.instructions[state.counter]
            if step.op in SENDS | RECEIVES:
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


def _can_pass(rank: int, step: Instruction, states: dict[int, _Rank], channels: Channels, groups: Groups) -> bool:
    state = states[rank]
    if step.op in SENDS | RECEIVES:
        _start_transfer(rank, step, state, channels)
        return True
    if step.op is Op.WAIT:
        handle = step.handle or ""
        if handle in state.transfers:
            return _transferred(state, handle, channels)
        return _joined(state, handle, states)
    if step.op in STARTS or step.collectives:
        if step.short not in state.pending:
            positions = state.pending[step.short] = []
            for c in step.collectives:
                group = groups[rank, c.axes]
                state.entered[group] = state.entered.get(group, 0) + 1
                positions.append((group, state.entered[group]))
        return step.op in STARTS or _joined(state, step.short, states)
    return True


def _joined(state: _Rank, handle: str, states: dict[int, _Rank]) -> bool:
    for group, position in state.pending.get(handle, []):
        if any(states[member].entered.get(group, 0) < position for member in group):
            return False
    state.pending.pop(handle, None)
    return True


def _start_transfer(rank: int, step: Instruction, state: _Rank, channels: Channels) -> None:
    peer = step.peer if step.peer is not None and 0 <= step.peer < len(state.column) else state.pp_rank
    other = state.column[peer]
    sends = step.op in SENDS
    kind = "activations" if step.op in (Op.SEND_ACTIVATION, Op.RECV_ACTIVATION) else "gradients"
    name = " ".join([*([step.segment] if step.segment else []), f"m{step.microbatch}"])
    what = f"{kind} of {name}, {sum(c.bytes for c in step.collectives)} bytes,"
    source, target = (rank, other) if sends else (other, rank)
    channel = channels.setdefault((source, target), _Channel())
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
