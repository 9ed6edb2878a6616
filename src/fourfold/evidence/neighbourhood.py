"""How far every layout of a search lies from the nearest published run."""

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from fourfold.config import ModelConfig
from fourfold.cost.prices import Prices
from fourfold.evidence.nearest import OF_LAYOUT, around, gap, published_runs


class Neighbourhood:
    """How far the layouts of one model, cluster and software lie from the nearest published run."""

    def __init__(self, model: ModelConfig, prices: Prices, devices: int, sequence_length: int) -> None:
        self._around = around(model, prices, devices, sequence_length)
        self._known: dict[tuple[int | str, ...], float] = {}

    @cached_property
    def _others(self) -> NDArray[np.float64]:
        """The distance of every published run, whatever its layout."""
        rows = [vars(run.shape) for run in published_runs()]
        return np.array([sum(gap(key, self._around[key], row[key]) for key in self._around) for row in rows])

    def distance(self, **layout: int | str) -> float:
        """The distance of a layout with these values of `OF_LAYOUT`, as `RunShape.distance` to the nearest."""
        key = tuple(layout[name] for name in OF_LAYOUT)
        if key not in self._known:
            gaps = (_gaps(name, value) for name, value in zip(OF_LAYOUT, key, strict=True))
            self._known[key] = float(sum(gaps, self._others).min())
        return self._known[key]


@lru_cache(maxsize=4096)
def _gaps(key: str, value: int | str) -> NDArray[np.float64]:
    """How far a value of a layout is from that of every published run."""
    return np.array([gap(key, value, getattr(run.shape, key)) for run in published_runs()])
