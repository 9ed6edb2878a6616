"""Scores: bounds stay bounds; what is near the memory limit or unlike measured runs goes behind; a measured machine goes by
time."""

from dataclasses import replace

import numpy as np
import pytest

from fourfold.hardware import load_cluster
from fourfold.plan.bound import Bounder
from fourfold.plan.outlook import NEAR_LIMIT, WORTH, Outlook, features
from fourfold.plan.pricing import Pricer
from fourfold.plan.request import Request
from fourfold.plan.search import search
from fourfold.plan.space import block_shapes
from tests.plan.test_bounds import EXPERTS, drawn, model, request


def small_device(asked: Request, memory_bytes: float) -> Request:
    """The request on devices of so much memory."""
    cluster = replace(asked.cluster, device=replace(asked.cluster.device, memory_bytes=memory_bytes))
    return replace(asked, template=replace(asked.template, cluster=cluster), memory_bytes=int(memory_bytes))


@pytest.mark.parametrize("more", [{}, EXPERTS | {"software": "megatron"}], ids=["dense", "experts over nodes"])
def test_a_bound_of_the_score_is_below_the_score(more: dict) -> None:
    asked = small_device(request(32, 64, **more), 4e9)
    pricer, refused = Pricer(asked), 0
    for layout, seconds, _ in drawn(asked, 16, seed=4):
        bound = seconds * pricer.outlook.weight(layout)
        priced = pricer.price(layout)
        if isinstance(priced, str):
            refused += 1
            continue
        assert bound <= priced.score * 1.001, layout.words()
        assert priced.score >= priced.seconds
    assert refused <= 3


def test_scores_of_a_table_are_those_of_its_layouts() -> None:
    asked = request(16, 64, **EXPERTS)
    outlook, bounder = Outlook(asked), Bounder(asked)
    for shape in list(block_shapes(asked))[::160]:
        bounds = bounder.bounds(shape)
        if bounds is None:
            continue
        scores = outlook.scores(bounds)
        for row in range(0, len(bounds), 7):
            weight = outlook.weight(bounds.candidate(row))
            assert scores[row] == pytest.approx(weight * bounds.seconds[row])


def test_each_feature_has_to_buy_a_per_cent() -> None:
    asked = request(16, 64)
    outlook = Outlook(asked)
    layout = search(asked, keep=1).best[0].candidate
    plain = replace(
        layout, pp=4, schedule="1f1b", virtual_stages=1, recompute="selective", activations=(), offload_optimizer=False
    )
    assert features(plain) == ()
    assert outlook.weight(plain) == 1.0
    others = {
        "virtual stages": replace(plain, schedule="interleaved_1f1b", virtual_stages=2),
        "zb_h1": replace(plain, schedule="zb_h1"),
        "uneven recomputation": replace(plain, recompute="full:2"),
        "offloaded activations": replace(plain, recompute="none", activations=("offload",) * 6),
        "offloaded optimizer": replace(plain, offload_optimizer=True),
    }
    for name, other in others.items():
        assert features(other) == (name,)
        assert outlook.weight(other) == WORTH
    several = replace(others["virtual stages"], activations=("offload", "none", "full", "none", "none", "none"))
    assert outlook.weight(several) == pytest.approx(WORTH**3)


def test_a_machine_that_was_measured_goes_by_time() -> None:
    asked = request(16, 64)
    measured = replace(asked.cluster, calibration={"version": 1})
    own = replace(asked, template=replace(asked.template, cluster=measured))
    outlook = Outlook(own)
    bounds = next(filter(None, map(Bounder(asked).bounds, block_shapes(asked))))
    assert np.all(outlook.scores(bounds) >= bounds.seconds)
    assert outlook.probability(1e12) == 0.0


def test_the_best_that_is_not_tight_stands_beside_what_is() -> None:
    """On devices three times as large as the least of the fastest layouts needs."""
    free = Request.of(model(), load_cluster("dgx-h100:16"), 2048, 64)
    held = min(each.memory_bytes for each in search(free, keep=8).best)
    found = search(small_device(free, 3 * held), keep=3)
    assert found.surely_fits is not None
    assert found.surely_fits.out_of_memory <= NEAR_LIMIT
    scores = [each.score for each in found.best]
    assert scores == sorted(scores)
    if found.best[0].is_near_limit:
        assert found.surely_fits.memory_bytes < found.best[0].memory_bytes
        assert found.surely_fits.score >= found.best[0].score
