"""The groups' walk: ranks advance together through their lists; whoever can never advance again is a fault.

Collectives of a group must be started by all its members in one order; between two ranks, receives in the order of the sends.
Where all ranks of a pipeline coordinate run one list, one rank of each stands for all: a collective that stays within a coordinate
is in step by itself. That keeps the proof the same size on 4 ranks and on 24,576.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

from fourfold.layout import Layout
from fourfold.model.work import Collective
from fourfold.program.fault import Fault
from fourfold.program.instruction import Op
from fourfold.program.pattern import Pattern
from fourfold.program.program import Program
from fourfold.program.schedule.execution import walk

Group = tuple[int, ...]
Groups = dict[tuple[int, str], Group]
"""(rank, axes) -> those members of its group that are walked."""
Crossing = dict[Pattern, list[tuple[Group, Collective]]]
"""The collectives of a pattern, transfers aside, that other walked ranks are in; patterns that have some."""
Event = tuple[str, ...]


class _Tensor(NamedTuple):
    """A tensor on its way between stages, as either end declares it."""

    activations: bool
    segment: str | None
    bytes: int

    def told(self, microbatch: int | None) -> str:
        name = " ".join([*([self.segment] if self.segment else []), f"m{microbatch}"])
        return f"{'activations' if self.activations else 'gradients'} of {name}, {self.bytes} bytes,"


@dataclass
class _End:
    """One end of the transfers from a rank to another: the places where its rank starts them; their tensors, with microbatches."""

    rank: int
    places: list[int] = field(default_factory=list)
    tensors: list[tuple[_Tensor, int | None]] = field(default_factory=list)


Channels = dict[tuple[int, int], tuple[_End, _End]]
"""(source, target) -> the ends there."""


def check_progress(programs: Mapping[int, Program], layout: Layout) -> list[Fault]:
    """Order of collectives within each group, pairing of transfers, absence of deadlock."""
    ranks = _ranks_to_walk(programs, layout)
    groups = _groups(programs, ranks, layout)
    crossing = {rank: _crossing(rank, programs[rank], groups) for rank in ranks}
    faults = _check_order(programs, ranks, crossing)
    return faults or _check_deadlock(programs, ranks, crossing, layout)


def _ranks_to_walk(programs: Mapping[int, Program], layout: Layout) -> list[int]:
    """One pipeline where all others run the same lists; none where that is one list that no transfer leaves; else all."""
    column = layout.group_of(min(programs), ("pp",))
    by_stage = {programs[rank].pp_rank: programs[rank] for rank in column if rank in programs}
    if any(programs[rank] is not by_stage.get(layout.pp_rank(rank)) for rank in programs):
        return sorted(programs)
    if len(column) == 1 and not any(p.op.is_transfer for p in programs[column[0]].steps.microbatches):
        return []
    return list(column)


def _groups(programs: Mapping[int, Program], ranks: list[int], layout: Layout) -> Groups:
    walked = set(ranks)
    result: Groups = {}
    for rank in ranks:
        for axes in {c.axes for pattern in programs[rank].steps.microbatches for c in pattern.work.collectives}:
            members = layout.group_of(rank, tuple(axes.split("+")))
            result[rank, axes] = tuple(member for member in members if member in walked)
    return result


def _crossing(rank: int, program: Program, groups: Groups) -> Crossing:
    found = {
        pattern: [
            (group, c)
            for c in pattern.work.collectives
            if c.kind not in ("send", "recv") and len(group := groups[rank, c.axes]) > 1
        ]
        for pattern in program.steps.microbatches
    }
    return {pattern: crossing for pattern, crossing in found.items() if crossing}


def _events(program: Program, crossing: Crossing) -> dict[Group, list[tuple[int, Event]]]:
    """For each group the collectives that the rank enters, in order, as (index, what)."""
    result: dict[Group, list[tuple[int, Event]]] = {}
    for index, (pattern, m) in enumerate(program.steps.steps) if crossing else ():
        for group, c in crossing.get(pattern, ()):
            result.setdefault(group, []).append((index, (pattern.of(m).short, c.kind, c.axes, str(c.bytes))))
    return result


def _check_order(programs: Mapping[int, Program], ranks: list[int], crossing: Mapping[int, Crossing]) -> list[Fault]:
    faults: list[Fault] = []
    events = {rank: _events(programs[rank], crossing[rank]) for rank in ranks}
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


@dataclass
class _Rank:
    """A rank on its way. `waits`: in order, where it must wait, and for whom to reach which place. `at`: the place that it has
    reached, all before it being done; `passed`: waits among them."""

    waits: list[tuple[int, int, int]]
    end: int
    at: int = 0
    passed: int = 0


def _check_deadlock(
    programs: Mapping[int, Program], ranks: list[int], crossing: Mapping[int, Crossing], layout: Layout
) -> list[Fault]:
    """Runs all lists at once: starting never blocks; waiting blocks until every member, or both ends, have started."""
    channels: Channels = {}
    joins = {rank: _joins(rank, programs[rank], crossing[rank], layout, channels) for rank in ranks}
    faults = _check_pairs(programs, channels)
    if faults:
        return faults
    states = {}
    for rank, (transfers, collectives, _) in joins.items():
        waits = [(place, other.rank, other.places[position]) for place, other, position in transfers]
        for place, group, position in collectives:
            waits += [(place, each, joins[each].entered[group][position]) for each in group if each != rank]
        states[rank] = _Rank(sorted(waits), len(programs[rank].instructions))
    walk([*states.values()], lambda state: _advances(state, states))
    return [
        Fault.at(rank, programs[rank], state.at, "waits for ever: its peers never enter", "pair it with its peers")
        for rank, state in states.items()
        if state.at < state.end
    ]


def _advances(state: _Rank, states: Mapping[int, _Rank]) -> bool:
    """Goes on to where it must wait for others. Whoever reaches an instruction has started it: starting never blocks."""
    began, waits = state.at, state.waits
    for position in range(state.passed, len(waits)):
        state.at, other, needed = waits[position]
        if states[other].at < needed:
            state.passed = position
            return state.at > began
    state.at, state.passed = state.end, len(waits)
    return state.at > began


class _Joins(NamedTuple):
    """Where a rank waits, and for which of its starts: transfers, as (place, the other end, position there), and collectives, as
    (place, group, position). `entered`: by group, the places of those that it enters."""

    transfers: list[tuple[int, _End, int]]
    collectives: list[tuple[int, Group, int]]
    entered: dict[Group, list[int]]


def _joins(rank: int, program: Program, crossing: Crossing, layout: Layout, channels: Channels) -> _Joins:
    """Finds what each of the rank's waits joins, and lists its ends of transfers in `channels`."""
    found = _Joins([], [], {})
    patterns = program.steps.microbatches
    own = {p: (*_ends(rank, p, layout, channels), _tensor(p)) for p in patterns if p.op.is_transfer}
    others = {p.short: other for p, (_, other, _) in own.items()}
    begun: dict[str, dict[int | None, int]] = {short: {} for short in others}
    """By short form and microbatch: the position of the transfer among those of its channel."""
    starts = {p: begun[p.short] for p in own}
    waits = {p: (others[p.handle], begun[p.handle]) for p in patterns if p.op is Op.WAIT and p.handle in others}
    pending: dict[tuple[str | None, int | None], list[tuple[Group, int]]] = {}
    entering = {p for p in patterns if p in crossing or (p.op is Op.WAIT and p not in waits)} if crossing else set()
    for place, (pattern, m) in enumerate(program.steps.steps):
        if pattern in waits:
            other, positions = waits[pattern]
            if m in positions:
                found.transfers.append((place, other, positions.pop(m)))
        elif pattern in own:
            end, _, tensor = own[pattern]
            starts[pattern][m] = len(end.places)
            end.places.append(place)
            end.tensors.append((tensor, m if m is not None else pattern.first.microbatch))
        elif pattern in entering:
            entered = pending.pop((pattern.handle, m), [])
            for group, _ in crossing.get(pattern, ()):
                places = found.entered.setdefault(group, [])
                entered.append((group, len(places)))
                places.append(place)
            if pattern.op.is_start:
                pending[pattern.short, m] = entered
            else:
                found.collectives.extend((place, group, position) for group, position in entered)
    return found


def _tensor(transfer: Pattern) -> _Tensor:
    size = sum(c.bytes for c in transfer.work.collectives)
    return _Tensor(transfer.op.info.carries == "activations", transfer.segment, size)


def _ends(rank: int, transfer: Pattern, layout: Layout, channels: Channels) -> tuple[_End, _End]:
    """The rank's own end of such transfers, and the other."""
    column = layout.group_of(rank, ("pp",))
    known = transfer.peer is not None and 0 <= transfer.peer < len(column)
    other = column[transfer.peer if known and transfer.peer is not None else layout.pp_rank(rank)]
    source, target = (rank, other) if transfer.op.is_send else (other, rank)
    sent, received = channels.setdefault((source, target), (_End(source), _End(target)))
    return (sent, received) if transfer.op.is_send else (received, sent)


def _check_pairs(programs: Mapping[int, Program], channels: Channels) -> list[Fault]:
    """The k-th receive takes the k-th send. The first that does not, of each pair of ranks."""
    faults = []
    for (source, target), (sender, receiver) in sorted(channels.items(), key=lambda item: item[0]):
        if sender.tensors == receiver.tensors:
            continue
        pairs = zip_longest(sender.tensors, receiver.tensors)
        position, (sent, received) = next((k, pair) for k, pair in enumerate(pairs) if pair[0] != pair[1])
        end = sender if sent else receiver
        if sent and received:
            there = received[0].told(received[1])
            message = f"sends {sent[0].told(sent[1])} to rank {target}, which receives {there} there"
        elif sent:
            message = f"sends {sent[0].told(sent[1])} to rank {target}, which never receives it"
        else:
            message = f"receives {received[0].told(received[1])} from rank {source}, which never sends it"
        fix = "pair sends and receives, in one order"
        faults.append(Fault.at(end.rank, programs[end.rank], end.places[position], message, fix))
    return faults
