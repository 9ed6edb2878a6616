"""The timeline of compute orders: when every rank computes what, how long it idles, how many activations it holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from fourfold.config import UserError
from fourfold.program.instruction import Op
from fourfold.program.schedule import Compute, StageTimes, check_orders
from fourfold.program.schedule.execution import Execution, execute, peak_activations


class Event(NamedTuple):
    """One entry of a rank's order and its time."""

    start: float
    end: float
    op: Op
    stage: int
    microbatch: int


class StageTransfer(NamedTuple):
    """An activation or a gradient of `stage` on its way to another rank."""

    start: float
    end: float
    kind: Literal["activation", "gradient"]
    stage: int
    microbatch: int
    source: int
    target: int


@dataclass(frozen=True)
class Timeline:
    """`orders`: of every rank; `run`: when their entries start and end. `busy`: per rank, the time it computes.
    `peak_activations`: per rank, in the units of the `StageTimes`, as `schedule.execution.peak_activations` counts them."""

    orders: Sequence[Sequence[Compute]]
    run: Execution
    stage_ranks: tuple[int, ...]
    busy: tuple[float, ...]
    peak_activations: tuple[float, ...]
    transfer_time: float

    @cached_property
    def events(self) -> tuple[tuple[Event, ...], ...]:
        """Per rank, in order."""
        return tuple(
            tuple(map(Event._make, zip(starts, ends, *zip(*order, strict=True), strict=True))) if order else ()
            for starts, ends, order in zip(self.run.starts, self.run.ends, self.orders, strict=True)
        )

    @property
    def makespan(self) -> float:
        """From 0 to the end of the last entry."""
        return self.run.makespan

    @property
    def num_ranks(self) -> int:
        return len(self.orders)

    @property
    def idle(self) -> tuple[float, ...]:
        """Per rank, the time of the step in which it does not compute."""
        return tuple(self.makespan - busy for busy in self.busy)

    @property
    def bubble_fraction(self) -> float:
        """Idle time over all time of all ranks, (P x makespan - sum of busy) / (P x makespan): (P-1)/(P-1+M) for 1F1B.

        Narayanan et al. 2021 state the bubble over the ideal time instead, (P-1)/M: that is `bubble_over_ideal`.
        """
        total = self.num_ranks * self.makespan
        return (total - sum(self.busy)) / total if total else 0.0

    @property
    def bubble_over_ideal(self) -> float:
        """Idle time over busy time, of all ranks: the t_pb / t_id of Narayanan et al. 2021, (P-1)/M for 1F1B."""
        busy = sum(self.busy)
        return (self.num_ranks * self.makespan - busy) / busy if busy else 0.0

    @property
    def imbalance_fraction(self) -> float:
        """The part of `bubble_fraction` that no order can avoid, since ranks have unequal work:
        (P x the longest busy - sum of busy) / (P x makespan)."""
        total = self.num_ranks * self.makespan
        return (self.num_ranks * max(self.busy) - sum(self.busy)) / total if total else 0.0

    @property
    def inner_idle(self) -> tuple[float, ...]:
        """Per rank, the idle time between its first entry and its last: without waiting for the first activation, and without
        waiting for the slowest rank at the end."""
        spans = zip(self.run.starts, self.run.ends, self.busy, strict=True)
        return tuple(ends[-1] - starts[0] - busy if ends else 0.0 for starts, ends, busy in spans)

    @property
    def zero_bubble_fraction(self) -> float:
        """The bubble rate of Qi et al. 2023, (cost - m(F+I+W)) / cost with cost the longest time from a rank's first entry to
        its last: steps may overlap at their ends there, so that only `inner_idle` counts. Never above `bubble_fraction` where
        all ranks have the same work; zero for ZB-H2 and ZB-V where F = I = W."""
        spans = [ends[-1] - starts[0] for starts, ends in zip(self.run.starts, self.run.ends, strict=True) if ends]
        cost = max(spans, default=0.0)
        return (cost - max(self.busy)) / cost if cost else 0.0

    @cached_property
    def transfers(self) -> tuple[StageTransfer, ...]:
        """Transfers between ranks, in the order of their starts."""
        found = [transfer for events in self.events for event in events for transfer in self._sent(event)]
        return tuple(sorted(found))

    def _sent(self, event: Event) -> Iterator[StageTransfer]:
        if event.op is Op.BACKWARD_WEIGHT:
            return
        forward = event.op is Op.FORWARD
        receiver = event.stage + (1 if forward else -1)
        if not 0 <= receiver < len(self.stage_ranks):
            return
        source, target = self.stage_ranks[event.stage], self.stage_ranks[receiver]
        if source != target:
            arrived = event.end + self.transfer_time
            kind: Literal["activation", "gradient"] = "activation" if forward else "gradient"
            yield StageTransfer(event.end, arrived, kind, event.stage, event.microbatch, source, target)


def timeline(orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int], times: StageTimes) -> Timeline:
    """Every entry starts as soon as its rank is free and what it needs has arrived: links have latency and no queue.

    `orders`: of every rank, forward and backward of full microbatches. Raises `UserError` where they deadlock.
    """
    run = execute(orders, stage_ranks, times)
    if any(len(ends) < len(order) for ends, order in zip(run.ends, orders, strict=True)):
        microbatches = 1 + max(entry.microbatch for order in orders for entry in order)
        check_orders(orders, stage_ranks, len(stage_ranks), microbatches)
        raise UserError("schedule: the orders deadlock")
    durations = times.durations()
    return Timeline(
        orders=orders,
        run=run,
        stage_ranks=tuple(stage_ranks),
        busy=tuple(sum(durations[entry.op][entry.stage] for entry in order) for order in orders),
        peak_activations=peak_activations(orders, times),
        transfer_time=times.transfer,
    )
