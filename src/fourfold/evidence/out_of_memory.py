"""How likely a run is to run out of memory, by the share of its device that it is predicted to fill.

Sources that report failed runs beside those that ran tell it (`benchmarks/published/fit_out_of_memory.py`): with half of the device
filled hardly any failed, with all of it about half did; beyond it some ran, as predictions are wrong.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fourfold.cost.prices import Prices
from fourfold.evidence.interval import evidence_table, is_named

Share = TypeVar("Share", float, NDArray[np.float64])


@dataclass(frozen=True)
class OutOfMemory:
    """P(share) = least + (1 - least) / (1 + (half / share) ** steepness): `least` fails however little it is predicted to hold,
    about half fails at the share `half`, and `steepness_above` is its steepness above that, where it is another: a prediction that
    is far too high is likelier than one far too low. `runs`, of them `failed`, of so many `sources` say so."""

    least: float
    half: float
    steepness: float
    runs: int
    failed: int
    sources: int
    steepness_above: float | None = None

    def probability(self, share: Share) -> Share:
        """Probability that a run fails which is predicted to fill this share of its device's memory."""
        steepness: Any = np.where(share < self.half, self.steepness, self.steepness_above or self.steepness)
        return self.least + (1 - self.least) * share**steepness / (self.half**steepness + share**steepness)

    def share(self, probability: float) -> float:
        """The share at which so many fail, above `least`."""
        odds = (probability - self.least) / (1 - probability)
        steepness = self.steepness if odds < 1 else self.steepness_above or self.steepness
        return float(self.half * odds ** (1 / steepness))


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
