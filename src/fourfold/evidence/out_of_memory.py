"""How likely a run is to run out of memory, by the share of its device that it is predicted to fill.

Sources that report failed runs beside those that ran tell it (`benchmarks/published/fit_out_of_memory.py`): with half of the device
filled hardly any failed, with all of it about half did.
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
    """P(share) = least + (1 - least) / (1 + (half / share) ** steepness): `least` fails however little it is predicted to hold,
    about half fails at the share `half`. `runs`, of them `failed`, of so many `sources` say so."""

    least: float
    half: float
    steepness: float
    runs: int
    failed: int
    sources: int

    def probability(self, share: Share) -> Share:
        """Probability that a run fails which is predicted to fill this share of its device's memory."""
        return self.least + (1 - self.least) * share**self.steepness / (
            self.half**self.steepness + share**self.steepness
        )

    def share(self, probability: float) -> float:
        """The share at which so many fail, above `least`."""
        odds = (probability - self.least) / (1 - probability)
        return float(self.half * odds ** (1 / self.steepness))


def out_of_memory(prices: Prices) -> OutOfMemory | None:
    """For software that published runs inform, or for any other. None on a machine that was measured and on a processor, as of
    `interval`."""
    if prices.cluster.calibration or prices.cluster.device.units is None:
        return None
    names = "named" if is_named(prices.software.name) else "unnamed"
    return OutOfMemory(**evidence_table()["out_of_memory"][names])
