"""The slots of a pipeline as columns of numbers: what each comes after and waits for, and the chain that ends with the step."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fourfold.program.instruction import Op
from fourfold.program.schedule import Compute, StageTimes
from fourfold.program.schedule.compute import SCHEDULED_OPS

Integers = NDArray[np.int64]
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Slots:
    """A slot is an entry of a rank's order; slots are counted over all ranks, those of rank r from `first[r]` to `first[r + 1]`.

    By slot: `operation` (its place in `SCHEDULED_OPS`), `stage`, `microbatch`; `before`, the rank's slot before it; `need`, the
    slot of any rank whose output comes last of those that it takes. -1: none.
    """

    orders: Sequence[Sequence[Compute]]
    stage_ranks: tuple[int, ...]
    first: tuple[int, ...]
    operation: Integers
    stage: Integers
    microbatch: Integers
    before: Integers
    need: Integers

    @classmethod
    def of(cls, orders: Sequence[Sequence[Compute]], stage_ranks: Sequence[int]) -> Self:
        """`orders`: of every rank."""
        num_stages = len(stage_ranks)
        first = tuple(np.cumsum([0, *map(len, orders)]).tolist())
        places = {op: place for place, op in enumerate(SCHEDULED_OPS)}
        ops, stages, microbatches = zip(*chain.from_iterable(orders), strict=True)
        operation = np.fromiter(map(places.__getitem__, ops), np.int64, len(ops))
        stage, microbatch = np.array(stages), np.array(microbatches)
        before = np.arange(-1, len(ops) - 1)
        before[[begin for begin, end in pairwise(first) if begin < end]] = -1
        forward, backward, inputs, weights = (operation == places[op] for op in SCHEDULED_OPS)
        # who makes the activation of a stage and a microbatch, and who the gradient
        makers = np.full((2, num_stages + 1, int(microbatch.max()) + 1), -1)
        for which, slots in enumerate((forward, backward | inputs)):
            makers[which, stage[slots], microbatch[slots]] = np.flatnonzero(slots)
        last = (backward | inputs) & (stage == num_stages - 1)
        kind = np.where(forward | last, 0, 1)
        source = np.where(weights | last, stage, np.where(forward, stage - 1, stage + 1))
        return cls(
            orders, tuple(stage_ranks), first, operation, stage, microbatch, before,
            need=makers[kind, source, microbatch],
        )  # fmt: skip

    def by_slot(self, numbers: dict[Op, tuple[float, ...]]) -> Numbers:
        """A number of every operation and stage, by slot."""
        table = np.array([numbers[op] for op in SCHEDULED_OPS], np.float64)
        return table[self.operation, self.stage]

    def activation_levels(self, times: StageTimes) -> list[Numbers]:
        """By rank, as in `schedule.execution.activation_levels`."""
        changes = self.by_slot(times.activation_changes())
        return [np.concatenate([[0.0], np.cumsum(changes[begin:end])]) for begin, end in pairwise(self.first)]

    def waits(self, starts: Numbers, ends: Numbers) -> Integers:
        """By slot before which its rank idles: the slot that it waits for; -1 for all others."""
        free = np.where(self.before >= 0, ends[self.before], 0.0)
        return np.where(starts > free, self.need, -1)

    def critical(self, ends: Numbers, waits: Integers) -> list[int]:
        """The chain of slots, each waiting for the one before, that ends with the step."""
        lasts = [end - 1 for begin, end in pairwise(self.first) if begin < end]
        chain = [max(lasts, key=ends.__getitem__)]
        while chain[-1] >= 0:
            waited = int(waits[chain[-1]])
            chain.append(waited if waited >= 0 else int(self.before[chain[-1]]))
        return chain[-2::-1]
