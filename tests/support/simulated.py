"""Prices that make a simulation as plain as a drawing on paper: every block takes the same time, links and memory are free."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from fourfold.cost.fitted import fitted
from fourfold.cost.prices import Prices
from fourfold.cost.software import SoftwareProfile
from fourfold.hardware import load_cluster
from fourfold.program import Op, StepSpec
from fourfold.simulate.durations import Durations
from tests.support.programs import make_spec

UNIT = {
    Op.FORWARD: 1.0,
    Op.RECOMPUTE: 1.0,
    Op.BACKWARD: 2.0,
    Op.BACKWARD_INPUT: 1.0,
    Op.BACKWARD_WEIGHT: 1.0,
}
"""Seconds of a block; embedding and head take none."""


@dataclass(frozen=True)
class FreePrices(Prices):
    """Collectives, transfers and memory-bound kernels take no time."""

    def collective(self, kind: str, axes: str, size: int) -> float:
        return 0.0

    def transfer(self, size: int, source: int, target: int) -> float:
        return 0.0

    def memory(self, size: float) -> float:
        return 0.0


def free_prices(spec: StepSpec) -> FreePrices:
    software = SoftwareProfile(contention=0.0, host_launch_seconds=0.0, host_collective_seconds=0.0)
    return FreePrices(load_cluster("h100-24576"), spec.layout, software=software)


def real_prices(spec: StepSpec, cluster: str = "dgx-h100:512", **software: Any) -> Prices:
    """A cluster's, in bf16."""
    machine, own = load_cluster(cluster), fitted().software("default")
    own = replace(own, **software)
    return Prices(machine, spec.layout, fitted().kernels(machine.device.key, own), own)


def unit_blocks(monkeypatch: pytest.MonkeyPatch, times: dict[Op, float] | None = None) -> None:
    """From here on, blocks take what `times` (default: `UNIT`) says."""
    taken = times or UNIT

    def compute(_: Durations, step: Any) -> float:
        return taken[step.op] if (step.segment or "").startswith("b") else 0.0

    monkeypatch.setattr(Durations, "compute", compute)


def one_block_a_stage(schedule: str, pp: int, virtual: int, microbatches: int, **options: Any) -> StepSpec:
    """A model with a block for every stage."""
    stages = pp * virtual
    sizes = [1] * stages
    sizes[0] += 1
    sizes[-1] += 1
    return make_spec(
        {"num_layers": stages},
        pp=pp,
        schedule=schedule,
        virtual_stages=virtual,
        segments_per_stage=sizes,
        accumulation=microbatches,
        transport="native",
        **options,
    )
