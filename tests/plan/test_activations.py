"""Blocks choose together what they do with their activations: it fits, and is no worse than one policy for the first blocks."""

from dataclasses import replace

import pytest

from fourfold.config import ModelSection
from fourfold.config.layout_section import LayoutSection
from fourfold.export.job import TrainerJob
from fourfold.export.megatron import megatron
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.plan.candidate import Candidate
from fourfold.plan.moves.activations import (
    NEEDLESS,
    WAYS,
    WaysToSpare,
    chosen_together,
    made_to_fit,
    seconds_per_gigabyte,
)
from fourfold.plan.pricing import Priced, Pricer, candidate_spec
from fourfold.plan.request import Request
from fourfold.program.footprints import Footprints
from fourfold.simulate.durations import Durations
from tests.plan.dense import DENSE, LAYOUT

LAYOUTS = {"one stage": LAYOUT, "pipeline": replace(LAYOUT, pp=4, dp_shard=2)}
FAST_LINK = 400e9
"""Bytes a second to a host whose memory is near, as of a GH200."""


def asked(layout: Candidate, share: float, link: float | None = None) -> tuple[Request, Priced, Priced]:
    """A request whose devices hold all of full recomputation and `share` of what it saves; the step of either."""
    request = Request.of(resolve_model(ModelSection(**DENSE)), load_cluster("dgx-h100:8"), 32768, 64)
    if link is not None:
        cluster = replace(request.cluster, device=replace(request.cluster.device, host_bytes_per_second=link))
        request = replace(request, template=replace(request.template, cluster=cluster))
    full, none = (Pricer(request).price(replace(layout, recompute=policy)) for policy in ("full", "none"))
    assert isinstance(full, Priced)
    assert isinstance(none, Priced)
    limit = full.memory_bytes + share * (none.memory_bytes - full.memory_bytes)
    return replace(request, memory_bytes=int(limit)), full, none


@pytest.mark.grid(1)
@pytest.mark.parametrize("link", [None, FAST_LINK], ids=["PCIe", "near memory"])
@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize("name", LAYOUTS)
def test_it_fits_and_is_no_worse_than_the_first_blocks_alone(name: str, share: float, link: float | None) -> None:
    """By the score: a step may be longer by less than the feature is worth that it has less."""
    request, full, none = asked(LAYOUTS[name], share, link)
    found, alone = chosen_together(Pricer(request), LAYOUTS[name]), made_to_fit(Pricer(request), none.candidate)
    assert found is not None
    assert alone is not None
    assert found.memory_bytes <= request.memory_bytes < none.memory_bytes
    assert none.seconds <= found.seconds < full.seconds
    assert found.score <= alone.score * 1.0001
    if link is not None:
        assert set(found.candidate.activations) <= {"none", "offload"}, "copies that computation hides cost nothing"


def test_the_step_is_longer_by_what_the_choice_says() -> None:
    """Seconds of the choice are those of the simulated step, within a tenth of what it costs."""
    request, _, none = asked(LAYOUT, 0.5, 60e9)
    spec = candidate_spec(request, LAYOUT)
    costs = WaysToSpare(spec, request.prices(spec.layout), Footprints(spec.model, spec.shape))
    block = next(each for each in spec.segments if each.kind == "block")
    for way in WAYS[1:]:
        all_alike = Pricer(request).price(replace(LAYOUT, activations=(way,) * 16))
        assert isinstance(all_alike, Priced)
        expected = 16 * costs.seconds(block, way)
        assert all_alike.seconds - none.seconds == pytest.approx(expected, rel=0.15, abs=0.002 * none.seconds), way


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_a_copy_costs_what_the_computations_beside_it_do_not_hide(ahead: int) -> None:
    request, _, _ = asked(LAYOUT, 0.5, 5e9)
    spec = candidate_spec(replace(request, kept=LayoutSection(prefetch=ahead)), LAYOUT)
    prices, footprints = request.prices(spec.layout), Footprints(spec.model, spec.shape)
    block = next(each for each in spec.segments if each.kind == "block")
    kept, durations = footprints.of(block, "none"), Durations(prices)
    copy = prices.host_copy(kept.saved_bytes)
    beside = [ahead * durations.work(work).seconds for work in (kept.forward, kept.backward)]
    assert copy > beside[1] > beside[0] or not ahead
    expected = spec.layout.num_microbatches * (sum(copy - each for each in beside) + NEEDLESS * copy)
    assert WaysToSpare(spec, prices, footprints).seconds(block, "offload") == pytest.approx(expected)


def test_the_run_file_says_the_same() -> None:
    request, _, _ = asked(LAYOUT, 0.5, FAST_LINK)
    found = chosen_together(Pricer(request), LAYOUT)
    assert found is not None
    section = request.section(found.candidate)
    layout = resolve_layout(request.run(section), request.model)
    words = [
        f"{policy}+offload" if away and policy != "none" else "offload" if away else policy
        for policy, away in zip(layout.recompute[1:-1], layout.offload[1:-1], strict=True)
    ]
    assert tuple(words) == found.candidate.activations
    assert "offloaded" in found.candidate.words()


def test_a_gigabyte_costs_less_where_memory_is_near() -> None:
    prices = []
    for link in (20e9, FAST_LINK):
        request, _, _ = asked(LAYOUT, 0.5, link)
        simulation = Pricer(request).predict(LAYOUT).simulation
        prices.append(seconds_per_gigabyte(simulation, simulation.spec.layout.num_microbatches))
    assert set(prices[0]) == set(WAYS[1:])
    assert prices[0]["full"] == pytest.approx(prices[1]["full"])
    assert prices[0]["offload"] > prices[0]["full"] > prices[1]["offload"]


def test_no_block_offloads_where_that_is_ruled_out() -> None:
    request, _, _ = asked(LAYOUT, 0.3, FAST_LINK)
    found = chosen_together(Pricer(replace(request, offload=False)), LAYOUT)
    assert found is not None
    assert set(found.candidate.activations) <= {"none", "selective", "full"}


def test_not_where_a_person_chooses_nor_for_other_software() -> None:
    request, _, _ = asked(LAYOUT, 0.5)
    assert chosen_together(Pricer(request.fixing({"recompute": "full"})), LAYOUT) is None
    other = replace(request.template.software, name="megatron")
    elsewhere = replace(request, template=replace(request.template, software=other))
    assert chosen_together(Pricer(elsewhere), LAYOUT) is None


def test_another_trainer_is_told_that_it_is_left_out() -> None:
    request, _, _ = asked(LAYOUT, 0.5)
    ways = ("offload",) * 4 + ("none",) * 12
    _, missing = megatron(TrainerJob(request, replace(LAYOUT, activations=ways, zero=1)))
    assert any("4 offloaded" in text for text in missing)
