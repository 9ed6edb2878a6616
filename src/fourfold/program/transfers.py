"""The transfer pass: a tensor for another pipeline rank is sent when it is made, and received one computation ahead of its use.

No order can deadlock here. All ranks' computations are put in one global order in which each follows those that it needs. A receive
is started at its rank's computation before the one that needs it. A send is joined at its rank's first computation after that. So
every wait is for something earlier in the global order. Between two ranks, receives are started in the order of the sends, because
NCCL pairs them by order alone.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from fourfold.model.work import Collective, CollectiveKind, Work, sends
from fourfold.program import buffers as name
from fourfold.program.instruction import Instruction, Op
from fourfold.program.pattern import Pattern, Step
from fourfold.program.schedule import Compute, StageTimes
from fourfold.program.schedule.check import check_orders
from fourfold.program.schedule.execution import execute
from fourfold.program.sizes import hidden_bytes
from fourfold.program.stage_map import StageMap
from fourfold.program.view import RankView

Place = tuple[int, int]
"""A computation's place in the global order, and that of the one before it on its rank."""


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
        """The buffer's name for microbatch 0."""
        return (name.dhidden if self.gradient else name.hidden)(self.segment, 0)

    def send(self, work: Work) -> Instruction:
        """The instruction that starts it at the source, of microbatch 0."""
        op = Op.SEND_GRADIENT if self.gradient else Op.SEND_ACTIVATION
        return Instruction(op, self.segment, 0, self.target, None, (self.buffer,), (), (), work, 0, "pp")

    def receive(self, work: Work) -> Instruction:
        """The instruction that starts it at the target, of microbatch 0."""
        op = Op.RECV_GRADIENT if self.gradient else Op.RECV_ACTIVATION
        return Instruction(op, self.segment, 0, self.source, None, (), (self.buffer,), (), work, 0, "pp")


@dataclass(frozen=True)
class TransferPlan:
    """`places`: of every rank's computations in time. `transfers`: those that each rank is an end of."""

    places: list[list[int]]
    transfers: list[list[PlannedTransfer]]


def insert_transfers(groups: Sequence[list[Step]], plan: TransferPlan, view: RankView) -> list[Step]:
    """Recv ahead, Send when ready, Wait where needed. `groups`: the steps of each entry of this rank's order."""
    places = plan.places[view.pp_rank]
    before: dict[int, list[Step]] = {}
    waits: dict[int, list[Step]] = {}
    after: dict[int, list[Step]] = {}
    known: dict[tuple[int, int, str, bool], tuple[Pattern, Pattern]] = {}
    for transfer in plan.transfers[view.pp_rank]:
        source, target, segment, m, gradient, made, received, needed = transfer
        found = known.get((source, target, segment, gradient))
        if found is None:
            found = known[source, target, segment, gradient] = _ends(transfer, view)
        start, join = found
        if target == view.pp_rank:
            before.setdefault(received, []).append((start, m))
            waits.setdefault(needed, []).append((join, m))
        else:
            after.setdefault(made, []).append((start, m))
            later = bisect_right(places, received if received > made else made)
            if later < len(places):
                waits.setdefault(places[later], []).append((join, m))
            else:
                after.setdefault(places[-1], []).append((join, m))
    result: list[Step] = []
    for place, group in zip(places, groups, strict=True):
        if place in before:
            result += before[place]
        if place in waits:
            result += waits[place]
        result += group
        if place in after:
            result += after[place]
    return result


def _ends(transfer: PlannedTransfer, view: RankView) -> tuple[Pattern, Pattern]:
    """The start of such transfers on this rank, and the WAIT for it; a sender frees what it sent then."""
    receives = transfer.target == view.pp_rank
    kind: CollectiveKind = "recv" if receives else "send"
    work = sends(Collective(kind, "pp", hidden_bytes(view.spec, view.stages.segments[transfer.segment]), 2))
    start = Pattern.of_first(transfer.receive(work) if receives else transfer.send(work))
    return start, start.joined(() if receives else (transfer.buffer,))


def linear_order(orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int]) -> list[list[int]]:
    """The places of every rank's computations in the global order: all different, each after those that it needs. Raises
    `UserError` for orders that cannot run."""
    try:
        starts = execute(orders, stage_ranks, StageTimes.uniform(len(stage_ranks))).starts
    except (IndexError, KeyError, ValueError):
        _check(orders, stage_ranks)
        raise
    if [*map(len, starts)] != [*map(len, orders)]:
        _check(orders, stage_ranks)
    flat = sorted((start, rank, index) for rank, row in enumerate(starts) for index, start in enumerate(row))
    places = [[0] * len(row) for row in starts]
    for place, (_, rank, index) in enumerate(flat):
        places[rank][index] = place
    return places


def _check(orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int]) -> None:
    """Raises `UserError` that says why the orders cannot run."""
    last = max((m for order in orders for _, _, m in order), default=0)
    check_orders(orders, stage_ranks, len(stage_ranks), last + 1)


def plan_transfers(
    orders: Sequence[Sequence[Compute]], stages: StageMap, places: Sequence[Sequence[int]] | None = None
) -> TransferPlan:
    """Every transfer of the pipeline; those between two ranks stand in the order of sending. `places`: of every entry, where some
    have one together; left out: all different, as soon as they can."""
    places = places or linear_order(orders, stages.ranks)
    forwards: list[dict[int, Place]] = [{} for _ in stages.ranks]
    gradients: list[dict[int, Place]] = [{} for _ in stages.ranks]
    for order, row in zip(orders, places, strict=True):
        before = latest = row[0] if row else 0
        for (op, stage, m), place in zip(order, row, strict=True):
            if place != latest:
                before, latest = latest, place
            if op is Op.FORWARD:
                forwards[stage][m] = place, before
            elif op is not Op.BACKWARD_WEIGHT:
                gradients[stage][m] = place, before
    channels: dict[tuple[int, int], list[PlannedTransfer]] = {}
    for stage, (first, second) in enumerate(pairwise(stages.ranks), start=1):
        if first == second:
            continue
        segment = stages.stages[stage][0].name
        for ends, made, used, gradient in (
            ((first, second), forwards[stage - 1], forwards[stage], False),
            ((second, first), gradients[stage], gradients[stage - 1], True),
        ):
            channels.setdefault(ends, []).extend(
                PlannedTransfer(*ends, segment, m, gradient, made[m][0], ahead, needed)
                for m, (needed, ahead) in used.items()
                if m in made
            )
    transfers: list[list[PlannedTransfer]] = [[] for _ in orders]
    for (source, target), channel in sorted(channels.items()):
        ordered = _in_order(channel)
        transfers[source] += ordered
        transfers[target] += ordered
    return TransferPlan([list(dict.fromkeys(row)) for row in places], transfers)


def _in_order(channel: list[PlannedTransfer]) -> list[PlannedTransfer]:
    """By time of sending, with receives brought forward so that they start in the same order."""
    result: list[PlannedTransfer] = []
    for transfer in sorted(channel, key=lambda t: t.made, reverse=True):
        latest = min(transfer.received, result[-1].received) if result else transfer.received
        result.append(transfer if latest == transfer.received else transfer._replace(received=latest))
    return result[::-1]
