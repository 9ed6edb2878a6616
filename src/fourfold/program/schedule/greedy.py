"""List scheduling of F, I and W under a memory limit: in order of time, every free rank takes the best of what is ready."""

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fourfold.program.instruction import Op
from fourfold.program.schedule.compute import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Compute, Kind, Orders
from fourfold.program.schedule.times import StageTimes


@dataclass(frozen=True)
class Rule:
    """A rank's preferences, after the automatic schedule of Qi et al. 2023 (section 3.1).

    `depth`: F goes before I while fewer than this many times the stages from the rank's first to the last are in flight.
    `patience`: W fills a wait if it ends at most this part of its own time after what the rank waits for.
    `eager_weight`: W goes before F.
    `reserve`: F of a stage waits until there is room for F of the rank's later stages too, whatever will be freed before.
    `breadth_first`: of two ready stages, F of the earlier and I of the later; else F of the later and I of the earlier.
    """

    depth: float
    patience: float
    eager_weight: bool
    reserve: bool
    breadth_first: bool


def list_schedule(
    stage_ranks: Sequence[int], num_microbatches: int, times: StageTimes, limits: Sequence[float], rule: Rule
) -> Orders:
    """The order of every rank; none holds more activations than its limit, which must leave room for one microbatch."""
    scheduler = _ListScheduler(stage_ranks, num_microbatches, times, limits, rule)
    scheduler.run()
    return tuple(map(tuple, scheduler.orders))


class _ListScheduler:
    """The state of one run: what is done, what has arrived when, and the next time at which each rank looks."""

    def __init__(
        self, stage_ranks: Sequence[int], num_microbatches: int, times: StageTimes, limits: Sequence[float], rule: Rule
    ) -> None:
        num_stages, num_ranks = len(stage_ranks), max(stage_ranks) + 1
        self.stage_ranks, self.times, self.limits, self.rule = stage_ranks, times, limits, rule
        self.held = [[s for s, rank in enumerate(stage_ranks) if rank == r] for r in range(num_ranks)]
        self.depth = [(num_stages - held[0]) * rule.depth for held in self.held]
        self.activations, self.kept = times.activations, times.weight_activations
        self.room = _room(stage_ranks, times)
        self.orders: list[list[Compute]] = [[] for _ in range(num_ranks)]
        self.live = [0.0] * num_ranks
        self.in_flight = [0] * num_ranks
        self.forwards, self.inputs, self.freed = ([0] * num_stages for _ in range(3))
        self.activations_at: list[list[float]] = [[] for _ in range(num_stages)]
        self.gradients_at: list[list[float]] = [[] for _ in range(num_stages)]
        self.activations_at[0] = [0.0] * num_microbatches
        self.weights: list[deque[int]] = [deque() for _ in range(num_ranks)]
        self.free = [0.0] * num_ranks
        self.looks = [0.0] * num_ranks
        self.agenda = [(0.0, r) for r in range(num_ranks)]

    def run(self) -> None:
        while self.agenda:
            now, rank = heapq.heappop(self.agenda)
            if now != self.looks[rank]:
                continue
            self.looks[rank] = math.inf
            ready = list(self._ready(rank))
            chosen = self._choose(rank, now, ready)
            if chosen is not None:
                self._take(rank, now, *chosen)
            else:
                self._look(rank, min((time for time, _ in ready), default=math.inf))

    def _ready(self, rank: int) -> Iterator[tuple[float, Kind]]:
        """(time, kind) of the next F and I of every stage, as far as they are known and there is room."""
        for stage in self.held[rank]:
            arrived, count = self.activations_at[stage], self.forwards[stage]
            if count < len(arrived) and self._fits(rank, stage):
                yield arrived[count], (FORWARD, stage)
            arrived, count = self.gradients_at[stage], self.inputs[stage]
            if count < len(arrived):
                yield arrived[count], (BACKWARD_INPUT, stage)

    def _fits(self, rank: int, stage: int) -> bool:
        """Whether F of the stage may go: there is room, and every microbatch that has to come back to this rank will find
        room once those before it are gone. So the oldest can always go on, and nobody waits for ever."""
        live, limit = self.live[rank], self.limits[rank]
        if live + self.room[stage] <= limit:
            return True
        if self.rule.reserve or live + self.activations[stage] > limit:
            return False
        forwards, freed = self.forwards, self.freed
        sizes = [(s, forwards[s] + (s == stage), self.activations[s]) for s in self.held[rank]]
        for oldest in {forwards[s] for s in self.held[rank] if s > stage}:
            held = sum(size * max(0, count - max(oldest, freed[s])) for s, count, size in sizes)
            missing = sum(size for _, count, size in sizes if count <= oldest)
            if held + missing > limit:
                return False
        return True

    def _choose(self, rank: int, now: float, ready: list[tuple[float, Kind]]) -> Kind | None:
        rule = self.rule
        forwards = [kind[1] for time, kind in ready if time <= now and kind[0] is FORWARD]
        inputs = [kind[1] for time, kind in ready if time <= now and kind[0] is BACKWARD_INPUT]
        weight = (BACKWARD_WEIGHT, self.weights[rank][0]) if self.weights[rank] else None
        if inputs and not (forwards and self.in_flight[rank] < self.depth[rank]):
            return BACKWARD_INPUT, max(inputs) if rule.breadth_first else min(inputs)
        if forwards and not (weight and rule.eager_weight and self.in_flight[rank] >= self.depth[rank]):
            return FORWARD, min(forwards) if rule.breadth_first else max(forwards)
        if weight:
            time = self.times.weight_gradient[weight[1]]
            next_known = min((time for time, _ in ready if time > now), default=math.inf)
            if forwards or now + time <= next_known + rule.patience * time:
                return weight
        return None

    def _take(self, rank: int, now: float, op: Op, stage: int) -> None:
        if op is FORWARD:
            counts, duration, change = self.forwards, self.times.forward[stage], self.activations[stage]
            self.in_flight[rank] += 1
        elif op is BACKWARD_INPUT:
            counts, duration = self.inputs, self.times.input_gradient[stage]
            change = self.kept[stage] - self.activations[stage]
            self.in_flight[rank] -= 1
            self.weights[rank].append(stage)
        else:
            counts, duration, change = self.freed, self.times.weight_gradient[stage], -self.kept[stage]
            self.weights[rank].popleft()
        self.orders[rank].append(Compute(op, stage, counts[stage]))
        counts[stage] += 1
        self.live[rank] += change
        end = self.free[rank] = now + duration
        if op is FORWARD and stage + 1 < len(self.stage_ranks):
            self._arrive(rank, end, stage + 1, self.activations_at)
        elif op is FORWARD:
            self._arrive(rank, end, stage, self.gradients_at)
        elif op is BACKWARD_INPUT and stage:
            self._arrive(rank, end, stage - 1, self.gradients_at)
        self._look(rank, end)

    def _arrive(self, source: int, end: float, stage: int, arrivals: list[list[float]]) -> None:
        target = self.stage_ranks[stage]
        time = end + (self.times.transfer if source != target else 0.0)
        arrivals[stage].append(time)
        self._look(target, max(time, self.free[target]))

    def _look(self, rank: int, time: float) -> None:
        if time < self.looks[rank]:
            self.looks[rank] = time
            heapq.heappush(self.agenda, (time, rank))


def _room(stage_ranks: Sequence[int], times: StageTimes) -> list[float]:
    """Per stage, the activations of F on it and on the rank's later stages."""
    return [
        sum(times.activations[s] for s in range(stage, len(stage_ranks)) if stage_ranks[s] == rank)
        for stage, rank in enumerate(stage_ranks)
    ]
