"""The score of a layout, by which layouts that are likely to fit are ordered, and what measured runs say of its memory.

    score = seconds x WORTH ** features

The fastest is first; of two as fast, the plainer: each feature that a layout has beyond the plain ones (`features`) must buy one
per cent of the step, or the fit. Measured runs say how likely a layout is to run out of memory (`evidence.out_of_memory`), which
limits what it may hold.
"""

import numpy as np
from numpy.typing import NDArray

from fourfold.evidence.out_of_memory import OutOfMemory, out_of_memory
from fourfold.plan.bound import Bounds
from fourfold.plan.candidate import Candidate, policy_and_offload
from fourfold.plan.request import Request

WORTH = 1.01
"""How much faster a layout must be for each feature that another does without."""
USUAL = ("1f1b", "interleaved_1f1b")
"""Schedules that are no feature of their own."""
NEAR_LIMIT = 0.1
"""Probability of running out of memory above which a layout is near the memory limit."""


def features(layout: Candidate) -> tuple[str, ...]:
    """Features that a layout has beyond degrees, a microbatch, ZeRO, one stage a rank and the same recomputation in all blocks."""
    ways = [policy_and_offload(way) for way in layout.activations]
    uneven = len({policy for policy, _ in ways}) > 1 or ":" in layout.recompute
    found = {
        "virtual stages": layout.virtual_stages > 1,
        layout.schedule: layout.pp > 1 and layout.schedule not in USUAL,
        "uneven recomputation": uneven,
        "offloaded activations": any(away for _, away in ways),
        "offloaded optimizer": layout.offload_optimizer,
    }
    return tuple(name for name, has in found.items() if has)


class Outlook:
    """The scores of a request's layouts."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._capacity = float(request.cluster.device.memory_bytes)
        self.risk: OutOfMemory | None = out_of_memory(request.template)
        self._tables: dict[tuple[object, ...], NDArray[np.float64]] = {}

    @property
    def surely_fits_bytes(self) -> float:
        """Bytes that a layout may hold at most and not be near the memory limit."""
        return self._capacity * self.risk.share(NEAR_LIMIT) if self.risk is not None else float("inf")

    def probability(self, memory_bytes: float) -> float:
        """Probability that a layout which is predicted to hold so much runs out of memory; 0 where nothing tells."""
        return self.risk.probability(memory_bytes / self._capacity) if self.risk is not None else 0.0

    def weight(self, layout: Candidate) -> float:
        """The score of a layout over its seconds."""
        return float(WORTH ** len(features(layout)))

    def scores(self, bounds: Bounds) -> NDArray[np.float64]:
        """Bounds [rows] of the scores, in seconds, of a table's layouts."""
        key = (bounds.pipelines, bounds.states_away, ":" in bounds.shape.recompute)
        if key not in self._tables:
            firsts = {each: int(np.argmax(bounds.pipeline == place)) for place, each in enumerate(bounds.pipelines)}
            self._tables[key] = np.array([self.weight(bounds.candidate(row)) for row in firsts.values()])
        return bounds.seconds * self._tables[key][bounds.pipeline] * np.where(bounds.is_mixed, WORTH, 1.0)
