"""How far a measured run lies from its prediction: intervals that 80 % of published runs fall into, by what is known of a run: its
software and device as a pair, one of them, or neither.

The table holds quantiles of measured / predicted over runs whose sources the constants had not seen
(`benchmarks/published/fit_intervals.py`)."""

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Literal

from fourfold.cost.fitted import ancestors_of
from fourfold.cost.prices import Prices

Quantity = Literal["time", "memory"]


@dataclass(frozen=True)
class Interval:
    """The measured figure lies between `low` and `high` times the predicted one, with the probability `share`. `runs`, `sources`:
    how many published ones say so."""

    low: float
    high: float
    share: float
    runs: int
    sources: int

    def around(self, predicted: float) -> tuple[float, float]:
        """The interval of a prediction, in its unit."""
        return self.low * predicted, self.high * predicted


def interval(quantity: Quantity, prices: Prices) -> Interval | None:
    """The interval of a step's seconds or of a device's bytes, for what is known of the software and the device that `prices` are
    of. None on a machine that was measured (`cluster.calibration`) and on a processor, whose file states no `units`: no published
    run tells how far predictions are off there."""
    if prices.cluster.calibration or prices.cluster.device.units is None:
        return None
    return published_interval(quantity, prices.software.name, prices.cluster.device.key)


def published_interval(quantity: Quantity, software: str, device: str) -> Interval:
    """The interval for a software and an accelerator, by their names."""
    table = evidence_table()
    found = nearest_interval(table[quantity], software, device, table)
    return Interval(found["low"], found["high"], table["share"], found["runs"], found["sources"])


def nearest_interval(intervals: dict[str, Any], software: str, device: str, table: dict[str, Any]) -> dict[str, Any]:
    """The interval of the software on that device; where too few sources tell of that pair, of the software on any device that
    published runs are of; else what holds for all of which as little is known."""
    state, family = known(software, device, table), informed_family(software, table)
    if family is None or state != "named_profiled":
        return intervals[state]
    of_pair = intervals.get("pairs", {}).get(family, {}).get(device)
    return of_pair or intervals.get("families", {}).get(family) or intervals[state]


def known(software: str, device: str, table: dict[str, Any]) -> str:
    """The key of the table for what is known: whether published runs of several sources inform the software, and whether any is of
    the device itself, not of another of its family."""
    names = "named" if informed_family(software, table) is not None else "unnamed"
    return f"{names}_{'profiled' if device in table['devices'] else 'unprofiled'}"


def informed_family(software: str, table: dict[str, Any]) -> str | None:
    """The name in the table that a software profile inherits from: of its own, or of the longest that its name begins with."""
    return next((name for name in reversed(ancestors_of(software)) if name in table["software"]), None)


def is_named(software: str) -> bool:
    """Whether published runs inform a software profile."""
    return informed_family(software, evidence_table()) is not None


@lru_cache(maxsize=1)
def evidence_table() -> dict[str, Any]:
    """Quantiles, and probabilities of running out of memory, with the software and the devices that published runs inform."""
    text = (resources.files("fourfold.evidence") / "intervals.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
