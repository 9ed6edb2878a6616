"""The climb gets from a poor layout to near the best; the bound of a layout that fits block by block stays a bound."""

import itertools
from dataclasses import replace

import pytest

import fourfold as ff
from fourfold.plan.bound import Bounder
from fourfold.plan.candidate import Candidate, policy_and_offload
from fourfold.plan.moves.activations import mixed
from fourfold.plan.moves.climb import STEP, Climb, Outlined
from fourfold.plan.outlook import features
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request
from fourfold.plan.search import search
from fourfold.plan.space import block_shapes
from tests.plan.test_row_one import small


def test_a_climb_from_a_poor_layout_ends_near_the_best() -> None:
    request = small("dense", 16, 0.95)
    best, pricer = search(request, keep=1).best[0], Pricer(request)
    poor = pricer.price(
        replace(best.candidate, tp=4, dp_replicate=2, dp_shard=2, zero=3, microbatch_sequences=1, recompute="full")
    )
    assert isinstance(poor, Priced)
    assert poor.score > 1.5 * best.score
    way = Climb(pricer).from_best([poor])
    scores = [poor.score, *(each.score for each in way)]
    assert all(after < STEP * before for before, after in itertools.pairwise(scores))
    assert scores[-1] <= 1.05 * best.score, "one start alone may end beside the best"


def tight(host_share: float | None) -> Request:
    """A request whose devices hold half of what the fastest layout would; `host_share`: of that, the host's memory for a device."""
    request = small("larger", 8, 0.95, length=8192)
    held = search(request, keep=1).best[0].memory_bytes
    if host_share is not None:
        cluster = replace(request.cluster, host_memory_bytes_per_device=int(host_share * held))
        request = replace(request, template=replace(request.template, cluster=cluster))
    return replace(request, memory_bytes=held // 2)


@pytest.mark.parametrize("host_share", [None, 0.2])
def test_what_a_mix_costs_at_least_is_no_more_than_it_costs(host_share: float | None) -> None:
    request = tight(host_share)
    pricer = Pricer(request)
    bounder, seen = Bounder(request, blocks=pricer.blocks, mixes=True), []
    for shape in block_shapes(request):
        bounds = bounder.bounds(shape) if shape.recompute == "none" else None
        row = int(bounds.is_mixed.argmax()) if bounds is not None else 0
        if bounds is None or not bounds.is_mixed[row] or len(seen) == 12:
            continue
        layout = bounds.candidate(row)
        found = mixed(pricer, layout)
        if found is None:
            continue
        least, _, is_mixed = pricer.bound(layout)
        assert is_mixed
        assert found.seconds >= 0.999 * least, layout.words()
        seen.append(least / pricer.bound(layout, mixes=False)[0])
    assert len(seen) >= 6
    assert min(seen) >= 1
    assert max(seen) > 1.01, "what is spared costs something"


def test_neighbours_of_a_kind_not_simulated_promise_what_their_like_had() -> None:
    """Else all kinds that are new come before the one of which it is known what it adds."""
    climb = Climb(Pricer(small("dense", 16, 0.95)))
    layout = search(climb.pricer.request, 2.0, keep=1).best[0].candidate
    known = Outlined(10.3, 0.0, replace(layout, zero=3), True)
    other = Outlined(10.4, 0.0, replace(layout, zero=1), True)
    plain = Outlined(10.4, 0.0, replace(layout, zero=1), False)
    climb.least_added[known.kind] = 1.2
    assert climb._promised(known) < climb._promised(other)
    assert climb._promised(plain) == plain.score, "which does not fit by its blocks' ways"


def test_blocks_recompute_alike_where_that_costs_less_than_a_feature_is_worth() -> None:
    options = {"model": "llama3-70b", "cluster": "dgx-h100:128", "sequence_length": 2048, "batch_sequences": 4096}
    request = ff.plan(**options, memory_share=0.7, budget=0.1).request
    layout = Candidate(
        tp=2, cp=1, cp_method="ring", ep=1, etp=1, microbatch_sequences=16, recompute="none", pp=1, schedule="1f1b",
        virtual_stages=1, dp_replicate=1, dp_shard=64, zero=3,
    )  # fmt: skip
    found = mixed(Pricer(request), layout)
    assert found is not None
    assert len({policy_and_offload(way)[0] for way in found.candidate.activations}) == 1
    assert "uneven recomputation" not in features(found.candidate)
