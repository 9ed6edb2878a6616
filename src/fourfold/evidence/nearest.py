"""The published runs that are nearest to a predicted one: what was measured there, and what fourfold predicts for them.

The table is written by `benchmarks/published/fit_evidence.py`; its rows state every setting that a prediction depends on."""

import json
from dataclasses import dataclass
from functools import cached_property, lru_cache
from heapq import nsmallest
from importlib import resources
from itertools import compress
from math import log2
from operator import ne, sub
from typing import Any

from fourfold.config import ModelConfig
from fourfold.cost.fitted import framework_of
from fourfold.cost.prices import Prices
from fourfold.model.counts import num_active_parameters, num_parameters
from fourfold.program.schedule import find_schedule
from fourfold.program.spec import StepSpec

DOUBLING = {
    "parameters": 0.5,
    "active_parameters": 1.0,
    "devices": 0.5,
    "peak_flops": 1.0,
    "sequence_length": 0.5,
    "tp": 0.25,
    "pp": 0.25,
    "cp": 0.5,
    "ep": 0.25,
}
"""Distance of a factor of two, by key."""
OTHER = {"device": 1.0, "software": 1.0, "gemm_dtype": 0.5, "schedule": 0.5, "zero": 0.5, "recompute": 0.25}
"""Distance of another value, by key."""
_OTHER = tuple(OTHER.values())


@dataclass(frozen=True)
class RunShape:
    """The part of a run that tells how alike two runs are. `peak_flops`: FLOP/s of a device in 16 bits; `schedule`: as
    `schedule_kind`; `recompute`: the policy of the middle segment."""

    parameters: float
    active_parameters: float
    device: str
    peak_flops: float
    devices: int
    sequence_length: int
    software: str
    gemm_dtype: str
    tp: int
    pp: int
    cp: int
    ep: int
    schedule: str
    zero: int
    recompute: str

    @classmethod
    def of(cls, spec: StepSpec, prices: Prices) -> "RunShape":
        layout = spec.layout
        return cls(
            **around(spec.model, prices, layout.world_size, layout.sequence_length),
            tp=layout.tp,
            pp=layout.pp,
            cp=layout.cp,
            ep=layout.ep,
            schedule=schedule_kind(layout.schedule),
            zero=layout.zero,
            recompute=layout.recompute[len(layout.recompute) // 2],
        )

    @cached_property
    def _place(self) -> tuple[tuple[float, ...], tuple[object, ...]]:
        """Numbers as weighted logarithms, and names."""
        values = self.__dict__
        return tuple(each * log2(values[key]) for key, each in DOUBLING.items()), tuple(values[key] for key in OTHER)

    def distance(self, other: "RunShape") -> float:
        """The sum over all keys of `gap`: doublings of numbers, and names that differ."""
        (numbers, names), (their_numbers, their_names) = self._place, other._place
        doublings = sum(map(abs, map(sub, numbers, their_numbers)))
        return doublings + (sum(compress(_OTHER, map(ne, names, their_names))) if names != their_names else 0.0)


def schedule_kind(name: str) -> str:
    """The kind of a pipeline schedule: `paired` (DualPipe), `split` (zero bubble), or `1f1b` with all others."""
    schedule = find_schedule(name)
    return "paired" if schedule.pairs_passes else "split" if schedule.splits_backward else "1f1b"


def around(model: ModelConfig, prices: Prices, devices: int, sequence_length: int) -> dict[str, Any]:
    """The part of a run's shape that its layout does not change."""
    device = prices.cluster.device
    return {
        "parameters": num_parameters(model),
        "active_parameters": num_active_parameters(model),
        "device": device.key,
        "peak_flops": device.peak("bf16"),
        "devices": devices,
        "sequence_length": sequence_length,
        "software": framework_of(prices.software.name),
        "gemm_dtype": prices.gemm_dtype,
    }


@dataclass(frozen=True)
class PublishedRun:
    """A published run: its figures as measured, and as predicted with the constants that ship, some of which were fitted to it.
    Memory None: the source does not state it."""

    id: str
    source: str
    model: str
    shape: RunShape
    step_seconds: float
    predicted_step_seconds: float
    memory_bytes: float | None
    predicted_memory_bytes: float | None

    @property
    def layout(self) -> str:
        """`tp 8 pp 4 ZeRO-1`: the degrees above 1."""
        degrees = [
            f"{name} {getattr(self.shape, name)}" for name in ("pp", "cp", "tp", "ep") if getattr(self.shape, name) > 1
        ]
        return ", ".join([*degrees, f"ZeRO-{self.shape.zero}"])

    def document(self) -> dict[str, Any]:
        """A JSON object; units are in the keys."""
        own = {key: value for key, value in vars(self).items() if key != "shape"}
        return {**own, **{name: getattr(self.shape, name) for name in RunShape.__dataclass_fields__}}


def nearest_runs(spec: StepSpec, prices: Prices, number: int = 3) -> list[PublishedRun]:
    """The published runs whose shapes are nearest to the step's, nearest first."""
    asked = RunShape.of(spec, prices)
    return nsmallest(number, published_runs(), key=lambda run: asked.distance(run.shape))


@lru_cache(maxsize=1)
def published_runs() -> tuple[PublishedRun, ...]:
    """All rows of the table."""
    table = json.loads((resources.files("fourfold.evidence") / "published_runs.json").read_text(encoding="utf-8"))
    names = table["columns"]
    shaped = RunShape.__dataclass_fields__
    runs = []
    for row in table["rows"]:
        values = dict(zip(names, row, strict=True))
        shape = RunShape(**{name: values.pop(name) for name in shaped})
        runs.append(PublishedRun(**values, shape=shape))
    return tuple(runs)
