"""Shapes that are passed over would not have been kept."""

import random
from collections import defaultdict
from dataclasses import astuple, replace

import pytest

from fourfold.plan.blocks import BlockPricer
from fourfold.plan.bound import Bounder
from fourfold.plan.bounding import Counts, Pool, _cheaper, _ideal_seconds, bound_all
from fourfold.plan.budget import SearchBudget
from fourfold.plan.candidate import BlockShape
from fourfold.plan.moves.less_memory import LowMemory
from fourfold.plan.pricing import Pricer
from fourfold.plan.request import Request
from fourfold.plan.space import MICROBATCHES, block_shapes
from tests.plan.test_bounds import EXPERTS, MLA
from tests.plan.test_bounds import request as layouts_of

REQUESTS = [(16, {}), (16, {"software": "nemo"}), (64, EXPERTS | {"software": "megatron"}), (32, MLA)]


@pytest.fixture(params=REQUESTS, ids=["dense", "fused", "experts", "latent"])
def asked(request: pytest.FixtureRequest) -> Request:
    devices, more = request.param
    return layouts_of(devices, 64, **more)


def test_a_floor_is_below_the_price(asked: Request) -> None:
    blocks, shapes = BlockPricer(asked), list(block_shapes(asked))
    for shape in random.Random(3).sample(shapes, 30):
        lower, own, price = blocks.floor(shape, without_context=True), blocks.floor(shape), blocks.price(shape)
        for floor, sharper, exact in zip(astuple(lower), astuple(own), astuple(price), strict=True):
            assert max(floor, sharper) <= exact, shape


def test_splitting_and_recomputing_save_nothing_for_a_token(asked: Request) -> None:
    blocks, by_method = BlockPricer(asked), {}
    for shape in block_shapes(asked):
        by_method.setdefault(replace(shape, cp_method=""), []).append(shape)

    def ideal(shape) -> float:
        return min(_ideal_seconds(asked, each, blocks.price(each)) for each in by_method[shape])

    compared = 0
    for shape in random.Random(5).sample(list(by_method), 12):
        for cheaper in _cheaper(shape):
            if cheaper in by_method:
                assert ideal(cheaper) <= ideal(shape) * 1.001, shape
                compared += 1
    assert compared > 8


def test_context_parallelism_that_is_slow_is_recorded_for_the_largest_microbatch_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fourfold.plan.bounding.KEPT", 40)
    pricer, sizes = Pricer(layouts_of(16, 64, **EXPERTS)), defaultdict[BlockShape, set[int]](set)
    bound_all(pricer, Counts(), SearchBudget(1e9), None)
    for _, shape in pricer.blocks._passes:
        if shape.cp > 1:
            sizes[replace(shape, microbatch_sequences=0)].add(shape.microbatch_sequences)
    alone = [each == {MICROBATCHES[-1]} for each in sizes.values()]
    assert sum(alone) > len(alone) / 2


@pytest.mark.rest
def test_the_same_layouts_are_kept_as_if_all_were_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Low-memory layouts are compared within their reach: what is beyond depends on the order of shapes."""
    monkeypatch.setattr("fourfold.plan.bounding.KEPT", 40)
    asked = layouts_of(16, 64, **EXPERTS)
    pricer = Pricer(asked)
    found, counts = bound_all(pricer, Counts(), SearchBudget(1e9), None), Counts()
    pool, small, bounder = Pool(asked, counts), LowMemory.of(asked), Bounder(asked)
    for shape in block_shapes(asked):
        bounds = bounder.bounds(shape)
        if bounds is not None:
            pool.add(bounds, pricer.outlook.scores(bounds))
            small.add(bounds)
    passed = found.pool.counts
    assert passed.slower_shapes > 0 or passed.worse_bound > counts.worse_bound
    best, all_best = (sorted(each.columns()[0])[:40] for each in (found.pool, pool))
    assert best == pytest.approx(all_best)
    kept, all_kept = (
        {pipeline: each.seconds for pipeline, each in low.by_pipeline.items() if each.seconds < low.reach}
        for low in (found.small, small)
    )
    assert len(kept) > 1
    assert kept == pytest.approx(all_kept)
