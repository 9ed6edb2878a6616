"""Proves a compute order complete and executable, or names the rank, the position and what is wrong there."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fourfold.config import UserError
from fourfold.program.instruction import Op
from fourfold.program.schedule.compute import HALVES, SCHEDULED_OPS, Compute
from fourfold.program.schedule.execution import execute, forms_of, needs
from fourfold.program.schedule.times import StageTimes

Place = tuple[int, int]
"""A rank, and an entry of its order."""


@dataclass(frozen=True)
class OrderFault:
    """A fault of compute orders. `message`: a sentence that says what works. `entry`: an entry that stands where it must
    not; `deadlock`: entries that wait for one another, which no further entry mends; `missing`: an entry that is not there.

    `places`: the entries of which the sentence speaks; of a deadlock each waits for the one at the same position of `awaited`."""

    kind: Literal["entry", "deadlock", "missing"]
    message: str
    places: tuple[Place, ...]
    awaited: tuple[Place, ...] = ()
    missing: tuple[Compute, ...] = ()


def check_orders(
    orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int], num_stages: int, num_microbatches: int
) -> None:
    """Every rank runs exactly its own stages: for each microbatch one F, and one B or one I and one W. And there is an order
    in time: nobody waits for ever. Raises `UserError`."""
    _check_placement(orders, stage_ranks, num_stages)
    fault = (
        entry_fault(orders, stage_ranks, num_microbatches)
        or missing_fault(orders, stage_ranks, num_microbatches)
        or deadlock_fault(orders, stage_ranks)
    )
    if fault is not None:
        raise UserError(f"schedule: {fault.message}")


def entry_fault(
    orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int], num_microbatches: int
) -> OrderFault | None:
    """The first entry that stands where it must not: on another rank than its stage, twice, or beside another form of itself."""
    seen: dict[Compute, Place] = {}
    for rank, order in enumerate(orders):
        for index, entry in enumerate(order):
            fault = _entry_fault(entry, rank, stage_ranks, num_microbatches, seen)
            if fault:
                forms = [entry, *(entry._replace(op=op) for op in (Op.BACKWARD, *HALVES) if entry.op is not Op.FORWARD)]
                others = {seen[form] for form in forms if form in seen}
                message = f"rank {rank}, entry {index}: {token(entry)}: {fault}"
                return OrderFault("entry", message, ((rank, index), *sorted(others)))
            seen[entry] = rank, index
    return None


def token(entry: Compute) -> str:
    """The text form of an entry, as `F3.0`: op, stage, microbatch."""
    return f"{entry.op.value}{entry.stage}.{entry.microbatch}"


def _check_placement(orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int], num_stages: int) -> None:
    if len(stage_ranks) != num_stages:
        raise UserError(
            f"schedule: the ranks of {len(stage_ranks)} stages are given; allowed: one rank for each of the {num_stages}"
        )
    for stage, rank in enumerate(stage_ranks):
        if not 0 <= rank < len(orders):
            raise UserError(f"schedule: stage {stage} is on rank {rank}; allowed: 0 to {len(orders) - 1}")


def _entry_fault(
    entry: Compute, rank: int, stage_ranks: Sequence[int], num_microbatches: int, seen: Collection[Compute]
) -> str | None:
    op, stage, m = entry
    if op not in SCHEDULED_OPS:
        return "no compute of a schedule; allowed: F, B, I, W"
    if not 0 <= stage < len(stage_ranks):
        return f"there is no stage {stage}; allowed: 0 to {len(stage_ranks) - 1}"
    if not 0 <= m < num_microbatches:
        return f"there is no microbatch {m}; allowed: 0 to {num_microbatches - 1}"
    if stage_ranks[stage] != rank:
        return f"stage {stage} is on rank {stage_ranks[stage]}; it belongs in that rank's order"
    if entry in seen:
        return "stands here a second time; leave it out"
    if op is Op.BACKWARD and any(Compute(half, stage, m) in seen for half in HALVES):
        return "I or W of the same stage and microbatch came before; use B, or I and W"
    if op in HALVES and Compute(Op.BACKWARD, stage, m) in seen:
        return "B of the same stage and microbatch came before; use B, or I and W"
    return None


def missing_fault(
    orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int], num_microbatches: int
) -> OrderFault | None:
    """The first stage and microbatch of which a rank lacks an entry."""
    seen = {entry for order in orders for entry in order}
    for stage, rank in enumerate(stage_ranks):
        for m in range(num_microbatches):
            full = Compute(Op.BACKWARD, stage, m)
            needed = [Compute(Op.FORWARD, stage, m)]
            if full not in seen:
                needed += [Compute(half, stage, m) for half in HALVES]
            missing = [entry for entry in needed if entry not in seen]
            if len(missing) >= 2 and missing[-1].op is Op.BACKWARD_WEIGHT:
                missing = [*missing[:-2], full]
            if missing:
                message = (
                    f"rank {rank} lacks {token(missing[0])} (of {num_microbatches} microbatches); "
                    f"add {' and '.join(map(token, missing))} to its order"
                )
                return OrderFault("missing", message, (), missing=tuple(missing))
    return None


def deadlock_fault(orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int]) -> OrderFault | None:
    """Ranks that wait for one another in a ring. Orders may lack entries: who waits for one of these is in no deadlock, unless it
    waits for a ring too."""
    ran = entries_run(orders, stage_ranks)
    blocked = waiting(orders, stage_ranks, ran)
    for rank in blocked:
        cycle = _cycle(rank, orders, blocked, stage_ranks)
        if cycle:
            told = "; ".join(_waits(each, orders, ran, blocked[each], stage_ranks) for each in cycle)
            message = f"deadlock: {told}; what works: {token(blocked[cycle[0]])} earlier in its rank's order"
            holders = [(stage_ranks[blocked[each].stage], blocked[each]) for each in cycle]
            awaited = tuple((holder, orders[holder].index(need)) for holder, need in holders)
            return OrderFault("deadlock", message, tuple((each, ran[each]) for each in cycle), awaited)
    return None


def waiting(orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int], ran: Sequence[int]) -> dict[int, Compute]:
    """By rank that does not come to its end, the computation that it waits for, in the form in which an order has it; where no
    order has it, as it is needed. `ran`: its `entries_run`."""
    done = {entry for order, count in zip(orders, ran, strict=True) for entry in order[:count]}
    stuck = (rank for rank, order in enumerate(orders) if ran[rank] < len(order))
    return {rank: _blocker(orders[rank][ran[rank]], orders, stage_ranks, done) for rank in stuck}


def entries_run(orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int]) -> list[int]:
    """By rank, how many of its entries run before it waits for ever: for a ring of ranks, or for an entry that is not there."""
    return [len(ends) for ends in execute(orders, stage_ranks, StageTimes.uniform(len(stage_ranks))).ends]


def _blocker(
    entry: Compute, orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int], done: set[Compute]
) -> Compute:
    for need in needs(entry, len(stage_ranks)):
        forms = forms_of(need)
        if not any(form in done for form in forms):
            return next((form for form in forms if form in orders[stage_ranks[need.stage]]), need)
    raise AssertionError(f"{token(entry)} waits for nothing")


def _waits(
    rank: int, orders: Sequence[Sequence[Compute]], ran: Sequence[int], need: Compute, stage_ranks: Sequence[int]
) -> str:
    holder = stage_ranks[need.stage]
    where = (
        f"its own entry {orders[holder].index(need)}"
        if holder == rank
        else f"entry {orders[holder].index(need)} of rank {holder}"
    )
    return f"rank {rank}, entry {ran[rank]}: {token(orders[rank][ran[rank]])} waits for {token(need)}, {where}"


def _cycle(
    rank: int, orders: Sequence[Sequence[Compute]], blocked: Mapping[int, Compute], stage_ranks: Sequence[int]
) -> list[int]:
    """The ranks that wait for one another in a ring, reached from `rank`; none where it ends at an entry that is not there."""
    path: list[int] = []
    while rank not in path:
        path.append(rank)
        blocker = blocked[rank]
        rank = stage_ranks[blocker.stage]
        if blocker not in orders[rank]:
            return []
    return path[path.index(rank) :]
