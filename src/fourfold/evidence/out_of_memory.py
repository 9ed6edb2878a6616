"""How likely a run is to run out of memory, by the share of its device that it is predicted to fill.

Sources that report failed runs beside those that ran tell it (`benchmarks/published/fit_out_of_memory.py`): with half of the device
filled hardly any failed, with all of it about half did; even far beyond it some ran, as predictions are wrong.
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fourfold.cost.prices import Prices
from fourfold.evidence.interval import evidence_table, is_named

Share = TypeVar("Share", float, NDArray[np.float64])


@dataclass(frozen=True)
class OutOfMemory:
    """P(share) = least + (most - least) / (1 + (half / share) ** steepness): `least` fails however little it is predicted to hold,
    `most` however much, half-way between them at the share `half`. `runs`, of them `failed`, of so many `sources` say so."""

    least: float
    half: float
    steepness: float
    runs: int
    failed: int
    sources: int
    most: float = 1.0

    def probability(self, share: Share) -> Share:
        """Probability that a run fails which is predicted to fill this share of its device's memory."""
        return self.least + (self.most - self.least) * share**self.steepness / (
            self.half**self.steepness + share**self.steepness
        )

    def share(self, probability: float) -> float:
        """The share at which so many fail, above `least`; infinite from `most` on."""
        if probability >= self.most:
            return float("inf")
        odds = (probability - self.least) / (self.most - probability)
        return float(self.half * odds ** (1 / self.steepness))


def out_of_memory(prices: Prices) -> OutOfMemory | None:
    """For software that published runs inform, or for any other. None on a machine that was measured and on a processor, as of
    `interval`."""
    if prices.cluster.calibration or prices.cluster.device.units is None:
        return None
    return published_out_of_memory(prices.software.name)


def published_out_of_memory(software: str) -> OutOfMemory:
    """The probability for a software by its name, on an accelerator."""
    names = "named" if is_named(software) else "unnamed"
    return OutOfMemory(**evidence_table()["out_of_memory"][names])
