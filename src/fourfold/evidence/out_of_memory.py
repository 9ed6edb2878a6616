"""How likely a run is to run out of memory, by the share of its device that it is predicted to fill.

Sources that report failed runs beside those that ran tell it (`benchmarks/published/fit_out_of_memory.py`): with half of the device
filled hardly any failed, with all of it about half did; beyond it some ran, as predictions are wrong.
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
    about half fails at the share `half`, and `steepness_above` is its steepness above that, where it is another: a prediction that
    is far too high is likelier than one far too low. `runs`, of them `failed`, of so many `sources` say so.

    `ran_up_to`: the largest share of a run that ran, where `failed_beyond` were predicted to hold more: by the rule of succession
    one in `failed_beyond` + 2 of such runs would run, which divides the chance that the curve leaves."""

    least: float
    half: float
    steepness: float
    runs: int
    failed: int
    sources: int
    steepness_above: float | None = None
    ran_up_to: float | None = None
    failed_beyond: int = 0

    def probability(self, share: Share) -> Share:
        """Probability that a run fails which is predicted to fill this share of its device's memory."""
        if self.ran_up_to is None:
            return self._curve(share)
        left = 1 - (share > self.ran_up_to) * (1 - self._left_beyond)
        return 1 - (1 - self._curve(share)) * left

    @property
    def _left_beyond(self) -> float:
        """The part of the chance that the curve leaves which remains beyond `ran_up_to`."""
        assert self.ran_up_to is not None
        return min(1.0, 1 / (self.failed_beyond + 2) / (1 - self._curve(self.ran_up_to)))

    def _curve(self, share: Share) -> Share:
        above = self.steepness_above or self.steepness
        steepness = self.steepness + (share > self.half) * (above - self.steepness)
        return self.least + (1 - self.least) * share**steepness / (self.half**steepness + share**steepness)

    def share(self, probability: float) -> float:
        """The share from which on so many fail, above `least`."""
        if self.ran_up_to is not None and probability > (last := self._curve(self.ran_up_to)):
            probability = 1 - (1 - probability) / self._left_beyond
            if probability <= last:
                return self.ran_up_to
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
