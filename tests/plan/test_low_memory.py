"""The search simulates the low-memory layout with the best timeline, whatever the bounds say."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fourfold.plan.bound import Bounder, Bounds, Parts
from fourfold.plan.budget import SearchBudget
from fourfold.plan.candidate import Candidate
from fourfold.plan.moves.less_memory import CLEARLY, SHARE, LowMemory, Small
from fourfold.plan.pricing import Pricer
from fourfold.plan.request import Request
from fourfold.plan.search import search
from fourfold.plan.space import Pipeline, block_shapes
from fourfold.simulate.prediction import StepPrediction
from tests.plan.test_bounds import request
from tests.plan.test_pricer import LAYOUT


@pytest.fixture(scope="module")
def asked() -> Request:
    return replace(request(16, 64), memory_bytes=int(10e9))  # of them up to 1.9 GB for communicators


@pytest.fixture(scope="module")
def tables(asked: Request) -> list[Bounds]:
    bounder = Bounder(asked)
    found = [bounder.bounds(shape) for shape in block_shapes(asked)]
    return [table for table in found if table is not None]


def _low_memory(asked: Request, tables: list[Bounds]) -> LowMemory:
    low_memory = LowMemory.of(asked)
    for table in tables:
        low_memory.add(table)
    return low_memory


def test_the_best_bound_of_every_pipeline_is_kept_if_it_holds_little(asked: Request, tables: list[Bounds]) -> None:
    low_memory, best = _low_memory(asked, tables), {}
    for table in tables:
        for row in np.flatnonzero(table.memory_bytes <= SHARE * asked.memory_bytes):
            pipeline, seconds = table.pipelines[table.pipeline[row]], float(table.seconds[row])
            best[pipeline] = min(best.get(pipeline, seconds), seconds)
    assert len(low_memory.by_pipeline) > 3
    for pipeline, small in low_memory.by_pipeline.items():
        assert small.seconds == best[pipeline] or best[pipeline] >= low_memory.reach
    first = min(best, key=best.__getitem__)
    assert low_memory.by_pipeline[first].seconds == best[first]


def test_the_best_timeline_is_simulated_not_the_best_bound(
    asked: Request, tables: list[Bounds], monkeypatch: pytest.MonkeyPatch
) -> None:
    low_memory, pricer = _low_memory(asked, tables), Pricer(asked)
    fewest = max(small.candidate.pp for small in low_memory.by_pipeline.values())

    def timeline(self: Pricer, candidate: object, bound: float) -> float:
        return bound if candidate.pp == fewest else 100 * bound  # type: ignore[attr-defined]

    monkeypatch.setattr(Pricer, "timeline", timeline)
    found = low_memory.fastest(pricer, asked.memory_bytes)
    assert found is not None
    assert found.candidate.pp == fewest
    like = [small for small in low_memory.by_pipeline.values() if small.candidate.pp == fewest]
    assert found.candidate == min(like, key=lambda small: small.seconds).candidate
    second = low_memory.fastest(pricer, found.memory_bytes - 1)
    assert second is None or second.memory_bytes < found.memory_bytes, (
        "what holds more than was asked for is passed over"
    )
    assert low_memory.fastest(pricer, 0) is None


def test_a_search_shows_one_that_holds_less_than_the_best(asked: Request) -> None:
    large = replace(asked, memory_bytes=int(80e9))
    tight = replace(asked, memory_bytes=int(1.1 * search(large, keep=1).best[0].memory_bytes))
    found = search(tight, keep=2)
    assert found.best[0].memory_bytes > SHARE * tight.memory_bytes
    assert found.low_memory is not None
    assert found.low_memory.memory_bytes <= CLEARLY * found.best[0].memory_bytes
    assert search(large, keep=1).low_memory is None, "the best holds little itself"


def test_the_least_that_is_needed_counts_layouts_of_one_stage(asked: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed, held = {"pp": 1, "recompute": "full", "zero": 1}, list[int]()
    measured = replace(asked.cluster, calibration={"version": 1})  # scores are times
    asked = replace(asked, template=replace(asked.template, cluster=measured))
    large = replace(asked, memory_bytes=int(80e9))
    limit = int(0.8 * search(large, keep=1, fixed=fixed).best[0].memory_bytes)
    tight = replace(asked, memory_bytes=limit, offload_optimizer=False)
    while (fits := search(tight, keep=1, fixed=fixed).best) and (limit := fits[0].memory_bytes - 1):
        tight = replace(tight, memory_bytes=limit)
    predict = Pricer.predict

    def noted(self: Pricer, candidate: Candidate) -> StepPrediction:
        step = predict(self, candidate)
        held.append(max(step.device_bytes))
        return step

    monkeypatch.setattr(Pricer, "predict", noted)
    monkeypatch.setattr("fourfold.plan.moves.less_memory.LEAST", 0)  # those of least memory are not tried
    found = search(tight, keep=1, fixed=fixed)
    assert held
    assert not found.best
    assert found.smallest is not None
    assert found.smallest[1] == min(held) > tight.memory_bytes


def test_so_many_layouts_are_tried_and_no_more() -> None:
    tried = []

    def fitting(candidate: Candidate, most: float, bound: float) -> None:
        tried.append((candidate.pp, most))
        pricer.budget.spend(1.0)

    pricer: Any = SimpleNamespace(timeline=lambda candidate, bound: float(candidate.pp), fitting=fitting)
    pricer.budget = SearchBudget(9.0)
    layouts = [replace(LAYOUT, pp=pp) for pp in (16, 2, 8, 32, 4, 64)]
    small = {Pipeline(each.pp, "1f1b", 1): Small(1.0, Parts(1.0, 0.0, 0.0), each) for each in layouts}
    assert LowMemory(1e9, small).fastest(pricer, 5.0) is None
    assert tried == [(pp, 5.0) for pp in (2, 4, 8, 16)]
    tried.clear()
    pricer.budget = SearchBudget(2.0)
    assert LowMemory(1e9, small).fastest(pricer, 5.0) is None
    assert tried == [(2, 5.0), (4, 5.0)], "the budget was spent"
