"""The transfer pass: a tensor for another pipeline rank is sent when it is made, and received one computation ahead of its use.

No order can deadlock here. All ranks' computations are put in one global order in which each follows those that it needs. A receive
is started at its rank's computation before the one that needs it. A send is joined at its rank's first computation after that. So
every wait is for something earlier in the global order. Between two ranks, receives are started in the order of the sends, because
NCCL pairs them by order alone.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fourfold.model.work import Collective, CollectiveKind, Work, sends
from fourfold.program import buffers as name
from fourfold.program.instruction import Instruction, Op
from fourfold.program.schedule import Compute, StageTimes
from fourfold.program.schedule.execution import execute
from fourfold.program.sizes import hidden_bytes
from fourfold.program.stage_map import StageMap
from fourfold.program.view import RankView

Entry = tuple[int, int]
"""A pipeline rank and a position in its order."""


class PlannedTransfer(NamedTuple):
    """A hidden state, or its gradient, on its way between ranks, with the places of three computations in the global order: the one
    that makes it, the one before which its receive starts, and the one that needs it."""

    source: int
    target: int
    segment: str
    microbatch: int
    gradient: bool
    made: int
    received: int
    needed: int

    @property
    def buffer(self) -> str:
        return (name.dhidden if self.gradient else name.hidden)(self.segment, self.microbatch)

    def send(self, work: Work) -> Instruction:
        op = Op.SEND_GRADIENT if self.gradient else Op.SEND_ACTIVATION
        return Instruction(op, self.segment, self.microbatch, self.target, None, (self.buffer,), (), (), work, 0, "pp")

    def receive(self, work: Work) -> Instruction:
        op = Op.RECV_GRADIENT if self.gradient else Op.RECV_ACTIVATION
        return Instruction(op, self.segment, self.microbatch, self.source, None, (), (self.buffer,), (), work, 0, "pp")


@dataclass(frozen=True)
class TransferPlan:
    """`places`: of every rank's computations in time. `transfers`: those that each rank is an end of."""

    places: list[list[int]]
    transfers: list[list[PlannedTransfer]]


def insert_transfers(groups: Sequence[list[Instruction]], plan: TransferPlan, view: RankView) -> list[Instruction]:
    """Recv ahead, Send when ready, Wait where needed. `groups`: the instructions of each entry of this rank's order."""
    places = plan.places[view.pp_rank]
    before: dict[int, list[Instruction]] = {}
    waits: dict[int, list[Instruction]] = {}
    after: dict[int, list[Instruction]] = {}
    known: dict[tuple[str, str], Work] = {}
    for transfer in plan.transfers[view.pp_rank]:
        kind: CollectiveKind = "recv" if transfer.target == view.pp_rank else "send"
        work = known.get((kind, transfer.segment))
        if work is None:
            size = hidden_bytes(view.spec, view.stages.segments[transfer.segment])
            work = known[kind, transfer.segment] = sends(Collective(kind, "pp", size, 2))
        if transfer.target == view.pp_rank:
            start = transfer.receive(work)
            before.setdefault(transfer.received, []).append(start)
            waits.setdefault(transfer.needed, []).append(Instruction(Op.WAIT, handle=start.short))
        else:
            start = transfer.send(work)
            after.setdefault(transfer.made, []).append(start)
            join = Instruction(Op.WAIT, handle=start.short, frees=(transfer.buffer,))
            later = bisect_right(places, max(transfer.received, transfer.made))
            if later < len(places):
                waits.setdefault(places[later], []).append(join)
            else:
                after.setdefault(places[-1], []).append(join)
    result: list[Instruction] = []
    for place, group in zip(places, groups, strict=True):
        if place in before:
            result += before[place]
        if place in waits:
            result += waits[place]
        result += group
        if place in after:
            result += after[place]
    return result


def linear_order(orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int]) -> list[list[int]]:
    """The places of every rank's computations in the global order: all different, each after those that it needs."""
    starts = execute(orders, stage_ranks, StageTimes.uniform(len(stage_ranks))).starts
    flat = sorted((start, rank, index) for rank, row in enumerate(starts) for index, start in enumerate(row))
    places = [[0] * len(row) for row in starts]
    for place, (_, rank, index) in enumerate(flat):
        places[rank][index] = place
    return places


def plan_transfers(orders: Sequence[Sequence[Compute]], stages: StageMap) -> TransferPlan:
    """Every transfer of the pipeline; those between two ranks stand in the order of sending."""
    times = linear_order(orders, stages.ranks)
    makers: dict[tuple[bool, int, int], Entry] = {}
    users: dict[tuple[bool, int, int], Entry] = {}
    for rank, order in enumerate(orders):
        for index, (op, stage, m) in enumerate(order):
            if op is Op.FORWARD:
                makers[False, stage + 1, m] = users[False, stage, m] = (rank, index)
            elif op is not Op.BACKWARD_WEIGHT:
                makers[True, stage, m] = users[True, stage + 1, m] = (rank, index)
    channels: dict[tuple[int, int], list[PlannedTransfer]] = {}
    for key in makers.keys() & users.keys():
        (source, made), (target, position), (gradient, stage, m) = makers[key], users[key], key
        if source == target:
            continue
        transfer = PlannedTransfer(
            source,
            target,
            stages.stages[stage][0].name,
            m,
            gradient,
            made=times[source][made],
            received=times[target][max(0, position - 1)],
            needed=times[target][position],
        )
        channels.setdefault((source, target), []).append(transfer)
    transfers: list[list[PlannedTransfer]] = [[] for _ in orders]
    for (source, target), channel in sorted(channels.items()):
        ordered = _in_order(channel)
        transfers[source] += ordered
        transfers[target] += ordered
    return TransferPlan(times, transfers)


def _in_order(channel: list[PlannedTransfer]) -> list[PlannedTransfer]:
    """By time of sending, with receives brought forward so that they start in the same order."""
    result: list[PlannedTransfer] = []
    for transfer in sorted(channel, key=lambda t: t.made, reverse=True):
        latest = min(transfer.received, result[-1].received) if result else transfer.received
        result.append(transfer if latest == transfer.received else transfer._replace(received=latest))
    return result[::-1]
