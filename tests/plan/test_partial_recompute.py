"""Recomputing the first blocks alone is as little of it as fits."""

from dataclasses import replace

import pytest

from fourfold.config import ModelSection, UserError
from fourfold.export.job import TrainerJob
from fourfold.export.megatron import megatron
from fourfold.export.torchtitan import torchtitan
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.plan.moves.activations import fewest_recomputed, made_to_fit
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request
from fourfold.plan.search import search
from tests.plan.dense import DENSE
from tests.plan.dense import LAYOUT as NONE

LAYOUT = replace(NONE, microbatch_sequences=8, recompute="full")


def asked(share: float) -> tuple[Request, Priced]:
    """A request whose devices hold all of full recomputation and `share` of what it saves."""
    request = Request.of(resolve_model(ModelSection(**DENSE)), load_cluster("dgx-h100:8"), 4096, 64)
    full, none = (max(Pricer(request).predict(replace(LAYOUT, recompute=p)).device_bytes) for p in ("full", "none"))
    request = replace(request, memory_bytes=int(full + share * (none - full)))
    priced = Pricer(request).price(LAYOUT)
    assert isinstance(priced, Priced)
    return request, priced


@pytest.mark.parametrize(("share", "most"), [(0.3, 12), (0.7, 6), (0.95, 2)])
def test_the_more_memory_the_fewer_blocks(share: float, most: int) -> None:
    request, full = asked(share)
    found = fewest_recomputed(Pricer(request), full.candidate)
    assert found is not None
    policy, _, count = found.candidate.recompute.partition(":")
    assert policy == "full"
    assert 0 < int(count) <= most
    assert found.memory_bytes <= request.memory_bytes
    assert found.seconds < full.seconds
    fewer = Pricer(request).price(replace(LAYOUT, recompute=f"full:{int(count) - 1}"))
    assert isinstance(fewer, Priced)
    assert fewer.memory_bytes > request.memory_bytes, "the least that fits"


def test_no_recomputation_is_left_as_it_is_and_the_last_block_need_never_be_recomputed() -> None:
    request, full = asked(0.5)
    assert fewest_recomputed(Pricer(request), replace(LAYOUT, recompute="none")) is None
    least = fewest_recomputed(Pricer(replace(request, memory_bytes=full.memory_bytes)), full.candidate)
    assert least is not None
    assert least.candidate.recompute == "full:15", "its activations are held where the recomputed block's would be"


def test_what_does_not_fit_recomputes_as_little_as_makes_it_fit() -> None:
    request, full = asked(0.5)
    none = Pricer(request).price(replace(LAYOUT, recompute="none"))
    assert isinstance(none, Priced)
    found = made_to_fit(Pricer(request), none.candidate)
    assert found is not None
    assert found.memory_bytes <= request.memory_bytes < none.memory_bytes
    assert none.seconds < found.seconds < full.seconds
    assert made_to_fit(Pricer(replace(request, memory_bytes=full.memory_bytes // 2)), none.candidate) is None


def test_other_trainers_say_what_they_can_of_it() -> None:
    request, _ = asked(0.5)
    some = replace(LAYOUT, recompute="full:5", zero=1)
    flags, missing = megatron(TrainerJob(request, some))
    assert "--recompute-method block" in flags
    assert "--recompute-num-layers 5" in flags
    assert not any("first 5 blocks" in text for text in missing)
    _, missing = megatron(TrainerJob(request, replace(some, pp=2, dp_shard=4)))
    assert any("first 5 blocks" in text for text in missing)
    _, missing = torchtitan(TrainerJob(request, some))
    assert any("first 5 blocks" in text for text in missing)


@pytest.mark.rest
def test_a_search_lists_no_layout_twice() -> None:
    model = resolve_model(ModelSection(preset="llama3-8b"))
    request = Request.of(model, load_cluster("dgx-h100:8"), 8192, 64, memory_share=0.29)
    found = search(request)
    assert any(":" in priced.candidate.recompute or priced.candidate.activations for priced in found.best)
    words = [priced.candidate.words() for priced in found.best]
    assert len(words) == len(set(words))


def test_a_search_refuses_what_it_finds_itself() -> None:
    request = Request.of(resolve_model(ModelSection(**DENSE)), load_cluster("dgx-h100:8"), 4096, 64)
    with pytest.raises(UserError, match="selective"):
        search(request, fixed={"recompute": "selective:6"})
