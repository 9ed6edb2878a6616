"""The score of a layout, by which layouts that are likely to fit are ordered, and what measured runs say of it beside that.

    score = seconds x WORTH ** features

The fastest is first; of two as fast, the plainer: each feature that a layout has beyond the plain ones (`features`) must buy one
per cent of the step, or the fit. Measured runs say how likely a layout is to run out of memory (`evidence.out_of_memory`), which
limits what it may hold, and how far it is from the nearest of them (`evidence.nearest`), which is said and changes no order.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fourfold.evidence import schedule_kind
from fourfold.evidence.neighbourhood import Neighbourhood
from fourfold.evidence.out_of_memory import OutOfMemory, out_of_memory
from fourfold.plan.bound import Bounds
from fourfold.plan.candidate import BlockShape, Candidate, policy_and_offload
from fourfold.plan.request import Request

WORTH = 1.01
"""How much faster a layout must be for each feature that another does without."""
USUAL = ("1f1b", "interleaved_1f1b")
"""Schedules that are no feature of their own."""
FAR = 3.0
"""Distance from the nearest published run above which a plan says so: another device, another software, and twice the
context parallelism."""
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

    @cached_property
    def _neighbourhood(self) -> Neighbourhood:
        request = self._request
        return Neighbourhood(request.model, request.template, request.devices, request.sequence_length)

    @property
    def surely_fits_bytes(self) -> float:
        """Bytes that a layout may hold at most and not be near the memory limit."""
        return self._capacity * self.risk.share(NEAR_LIMIT) if self.risk is not None else float("inf")

    def probability(self, memory_bytes: float) -> float:
        """Probability that a layout which is predicted to hold so much runs out of memory; 0 where nothing tells."""
        return self.risk.probability(memory_bytes / self._capacity) if self.risk is not None else 0.0

    def distance(self, layout: Candidate) -> float:
        """Distance from the nearest published run, a number of changes; 0 where none tells."""
        if self.risk is None:
            return 0.0
        return self._distance(layout, layout.pp, layout.schedule, layout.zero)

    def _distance(self, shape: BlockShape | Candidate, pp: int, schedule: str, zero: int) -> float:
        policy, _, blocks = shape.recompute.partition(":")
        if blocks and 2 * int(blocks) <= self._request.model.num_layers:
            policy = "none"
        kind = schedule_kind(schedule) if pp > 1 else "1f1b"
        return self._neighbourhood.distance(
            tp=shape.tp, pp=pp, cp=shape.cp, ep=shape.ep, schedule=kind, zero=zero, recompute=policy
        )

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
