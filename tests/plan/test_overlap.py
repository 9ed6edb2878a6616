"""The planner takes overlap of experts' all-to-alls where it is faster and fits, and only with software that runs it."""

from dataclasses import replace

import pytest

from fourfold.config import ModelSection
from fourfold.cost.software import SoftwareProfile
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.plan.candidate import Candidate
from fourfold.plan.moves.overlap import overlapped
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request
from fourfold.plan.search import search

LAYOUT = Candidate(
    pp=1, schedule="1f1b", virtual_stages=1, dp_replicate=1, dp_shard=16, zero=3, cp=1, cp_method="ring", tp=1, ep=16, etp=1,
    microbatch_sequences=1, recompute="none",
)  # fmt: skip


def asked(sequences: int = 64) -> Request:
    model = resolve_model(ModelSection(preset="qwen3-30b-a3b", num_layers=8))
    return Request.of(model, load_cluster("dgx-h100:16"), 4096, sequences)


def best_of(pricer: Pricer, layout: Candidate = LAYOUT) -> Priced:
    found = pricer.price(layout)
    assert isinstance(found, Priced)
    return found


def test_it_is_taken_where_it_is_faster() -> None:
    pricer = Pricer(asked())
    first = best_of(pricer)
    (found,) = overlapped(pricer, [first])
    assert found.candidate == replace(LAYOUT, overlap_experts=True)
    assert found.seconds < 0.85 * first.seconds
    assert "experts overlapped" in found.candidate.words()
    assert pricer.request.section(found.candidate).overlap_experts


def test_not_where_it_does_not_fit() -> None:
    pricer = Pricer(asked())
    first = best_of(pricer)
    tight = Pricer(replace(pricer.request, memory_bytes=first.memory_bytes))
    assert overlapped(tight, [first]) == []


def test_a_long_pipeline_whose_end_ranks_are_too_full_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = replace(LAYOUT, pp=4, dp_shard=4, ep=4, zero=1)
    pricer, simulated = Pricer(asked()), list[Candidate]()
    first, beside = best_of(pricer, layout), best_of(pricer, replace(layout, overlap_experts=True))
    assert pricer.end_ranks_bytes(beside.candidate) == beside.memory_bytes > first.memory_bytes
    predict = Pricer.predict
    monkeypatch.setattr(Pricer, "predict", lambda self, each: simulated.append(each) or predict(self, each))
    for limit, expected in ((beside.memory_bytes - 1, []), (beside.memory_bytes, [beside.candidate])):
        simulated.clear()
        found = overlapped(Pricer(replace(pricer.request, memory_bytes=limit)), [first])
        assert simulated == expected
        assert [each.candidate for each in found] == (expected if beside.score < first.score else [])


def test_not_without_expert_parallelism_or_a_second_microbatch() -> None:
    pricer = Pricer(asked())
    assert overlapped(pricer, [best_of(pricer, replace(LAYOUT, ep=1))]) == []
    once = Pricer(asked(16))
    assert overlapped(once, [best_of(once)]) == []


def test_not_for_other_software() -> None:
    request = asked()
    other = replace(request, template=replace(request.template, software=SoftwareProfile(name="other")))
    pricer = Pricer(other)
    assert overlapped(pricer, [best_of(pricer)]) == []


@pytest.mark.parametrize(
    "fixed",
    [
        {"ep": 16},
        {"ep": 16, "tp": 1, "zero": 3},
        *(pytest.param(more, marks=pytest.mark.rest) for more in ({}, {"ep": 8, "pp": 2})),
    ],
    ids=str,
)
def test_a_free_search_finds_what_is_found_where_it_is_asked_for(fixed: dict[str, int]) -> None:
    """Though layouts that are the best without it may have one microbatch, behind which nothing runs."""
    request = asked().fixing(fixed)
    free = search(request, keep=8).best
    for stated in (True, False):
        held = search(replace(request, overlap_experts=stated), keep=8).best
        assert {each.candidate.overlap_experts for each in held} == {stated}
        assert free[0].seconds <= held[0].seconds * (1 + 1e-3)
        found = [each.seconds for each in free if each.candidate.overlap_experts == stated]
        assert not found or held[0].seconds <= min(found) * (1 + 1e-3)
