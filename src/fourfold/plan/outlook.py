"""The score of a layout: its predicted step time, and more for what measured runs say may go wrong with it.

    score = seconds x (1 + CAUTION x distance + AGAIN x P)

`distance`: to the nearest published run (`evidence.nearest`): predictions are surer near to what was measured. P: the probability
of running out of memory (`evidence.out_of_memory`). Both factors are at least 1 and grow with memory, so that bounds of time and
memory give a bound of the score. On a machine that was measured a score is the step time.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fourfold.evidence import schedule_kind
from fourfold.evidence.neighbourhood import Neighbourhood
from fourfold.evidence.out_of_memory import OutOfMemory, out_of_memory
from fourfold.plan.bound import Bounds
from fourfold.plan.candidate import BlockShape, Candidate
from fourfold.plan.request import Request
from fourfold.plan.space import Pipeline

CAUTION = 0.05
"""More of the score for each unit of distance: a quarter of what the half width of the 80 % interval grows by (`docs/plan.md`)."""
AGAIN = 0.25
"""The cost of running out of memory, in steps' times: a slower layout in its place, and the attempt."""
FAR = 3.0
"""Distance from the nearest published run above which a plan says so: another device, another software, and twice the
context parallelism."""
TIGHT = 0.1
"""Probability of running out of memory above which a layout is tight."""


class Outlook:
    """The scores of a request's layouts."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._capacity = float(request.cluster.device.memory_bytes)
        self.risk: OutOfMemory | None = out_of_memory(request.template)
        self._tables: dict[tuple[object, ...], NDArray[np.float64]] = {}

    @cached_property
    def _neighbourhood(self) -> Neighbourhood:
        request = self._request
        return Neighbourhood(request.model, request.template, request.devices, request.sequence_length)

    @property
    def roomy_bytes(self) -> float:
        """The most that a layout may hold and not be tight."""
        return self._capacity * self.risk.share(TIGHT) if self.risk is not None else float("inf")

    def probability(self, memory_bytes: float) -> float:
        """That a layout which is predicted to hold so much runs out of memory; 0 where nothing tells."""
        return self.risk.probability(memory_bytes / self._capacity) if self.risk is not None else 0.0

    def distance(self, layout: Candidate) -> float:
        """From the nearest published run; 0 where none tells."""
        if self.risk is None:
            return 0.0
        return self._distance(layout, layout.pp, layout.schedule, layout.zero)

    def _distance(self, shape: BlockShape, pp: int, schedule: str, zero: int) -> float:
        policy, _, blocks = shape.recompute.partition(":")
        if blocks and 2 * int(blocks) <= self._request.model.num_layers:
            policy = "none"
        kind = schedule_kind(schedule) if pp > 1 else "1f1b"
        return self._neighbourhood.distance(
            tp=shape.tp, pp=pp, cp=shape.cp, ep=shape.ep, schedule=kind, zero=zero, recompute=policy
        )

    def weight(self, layout: Candidate, memory_bytes: float) -> float:
        """The score of a layout over its seconds."""
        return 1 + CAUTION * self.distance(layout) + AGAIN * self.probability(memory_bytes)

    def scores(self, bounds: Bounds) -> NDArray[np.float64]:
        """Bounds of the scores of a table's layouts."""
        if self.risk is None:
            return bounds.seconds
        distances = self._distances(bounds.shape, bounds.pipelines)[bounds.pipeline, bounds.zero]
        chances = self.risk.probability(bounds.memory_bytes / self._capacity)
        return bounds.seconds * (1 + CAUTION * distances + AGAIN * chances)

    def _distances(self, shape: BlockShape, pipelines: tuple[Pipeline, ...]) -> NDArray[np.float64]:
        """[pipelines, ZeRO stages] around a shape."""
        key = (shape.tp, shape.cp, shape.ep, shape.recompute, tuple((each.pp, each.schedule) for each in pipelines))
        if key not in self._tables:
            distances = {each: [self._distance(shape, *each, zero) for zero in range(4)] for each in set(key[-1])}
            self._tables[key] = np.array([distances[each] for each in key[-1]])
        return self._tables[key]
