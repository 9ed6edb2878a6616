"""The search finds what simulating every layout would find."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from fourfold.config import ModelSection, UserError
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.plan.bound import Bounder
from fourfold.plan.budget import SHARES, SearchBudget
from fourfold.plan.constraints import parse_fixed
from fourfold.plan.goals import enough_devices
from fourfold.plan.heuristic_baseline import MICROBATCHES, heuristic_baseline
from fourfold.plan.planner import explain, make_plan, pareto
from fourfold.plan.pricing import Priced, Pricer, family
from fourfold.plan.request import Request
from fourfold.plan.search import Found, search
from fourfold.plan.space import block_shapes
from tests.plan.test_bounds import EXPERTS, request


def every_layout(asked: Request) -> list[Priced]:
    """All families of layouts simulated: whatever differs beyond the division of data parallelism."""
    bounder, found, seen = Bounder(asked), [], set()
    for shape in block_shapes(asked):
        bounds = bounder.bounds(shape)
        for index in range(len(bounds) if bounds is not None else 0):
            candidate = bounds.candidate(index)
            if family(candidate) in seen:
                continue
            seen.add(family(candidate))
            priced = Pricer(asked).price(family(candidate))
            if isinstance(priced, Priced) and priced.memory_bytes <= asked.memory_bytes:
                found.append(priced)
    return found


@cache
def searched() -> Found:
    """A search of a small request, which several tests look at."""
    return search(request(16, 64))


@pytest.mark.parametrize(
    ("devices", "more"),
    [
        pytest.param(4, {}, marks=pytest.mark.rest, id="4 dense"),
        pytest.param(2, EXPERTS, marks=pytest.mark.rest, id="2 experts"),
        pytest.param(2, {}, id="2 dense"),
    ],
)
def test_the_best_is_the_best_of_all(devices: int, more: dict) -> None:
    asked = request(devices, 8, **more)
    least = min(each.seconds for each in every_layout(asked))
    best = search(asked).best[0]
    assert best.seconds <= least * 1.01


def test_memory_binds() -> None:
    """With less memory the best is slower, and holds less."""
    asked = request(8)
    free = search(asked).best[0]
    bound = search(replace(asked, memory_bytes=int(free.memory_bytes * 0.6))).best[0]
    assert bound.memory_bytes <= 0.6 * free.memory_bytes
    assert bound.seconds >= free.seconds


def test_two_searches_say_the_same() -> None:
    first, second = searched(), search(request(16, 64))
    assert first.best == second.best
    assert first.counts == second.counts
    assert first.smallest is None  # something fits


def test_every_layout_is_counted_once() -> None:
    counts = searched().counts
    later = counts.not_searched + counts.refused + counts.simulated + counts.mixed
    later += counts.end_ranks_too_large
    assert counts.too_large + counts.worse_bound + later == counts.layouts


def test_a_budget_ends_the_search_and_is_reported() -> None:
    """A budget is work, not time: a busy machine ends at the same layout."""
    first, second = (search(request(64, 512), budget=0.3) for _ in range(2))
    assert first.counts.shapes_not_priced > 0 or first.counts.not_searched > 0
    assert first.best == second.best
    assert first.counts == second.counts


def test_where_none_of_the_fastest_fits_those_of_least_memory_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fourfold.plan.search.SHARES", replace(SHARES, ranking=(0.0, 0.0, 0.0)))
    found = search(request(16, 64))
    assert found.counts.least_memory > 0
    assert found.best[0].memory_bytes <= found.request.memory_bytes


def test_no_part_of_a_plan_knows_better_than_the_best() -> None:
    """The search alone has no budget left to simulate; the baseline does."""
    plan = make_plan(request(16, 64), budget=1.0)
    assert plan.best is not None
    assert plan.heuristic_baseline is not None
    assert plan.best.score <= plan.heuristic_baseline.score


def test_an_explanation_changes_nothing_of_what_is_found() -> None:
    plain, explained = (make_plan(request(16, 64), asked, budget=4) for asked in ((), ({"tp": 2}, {"zero": 3})))
    assert explained.found.best == plain.found.best


def test_the_baseline_keeps_to_its_budget() -> None:
    work = SearchBudget(0.1)
    heuristic_baseline(request(64, 512), work)
    assert 0 < work.spent < 1.0


def test_a_fixed_field_is_kept() -> None:
    for each in search(request(16, 64), fixed={"tp": 4, "zero": 1}).best:
        assert (each.candidate.tp, each.candidate.zero) == (4, 1)


def test_what_lost_is_explained() -> None:
    found = searched()
    asked = found.request
    explanation = explain(asked, {"tp": 16}, found, 20)
    assert explanation.priced is not None
    assert explanation.priced.seconds > found.best[0].seconds
    more = sum(seconds for _, seconds in explanation.differences)
    assert more == pytest.approx(explanation.priced.seconds - found.best[0].seconds, rel=0.02)
    assert "divide" in (explain(asked, {"tp": 3}, found, 20).refused or "")


def test_an_explanation_of_what_the_best_is_is_the_best() -> None:
    """However little it may search itself."""
    found = searched()
    best = found.best[0]
    explanation = explain(found.request, {"zero": best.candidate.zero}, found, 0.01)
    assert explanation.priced == best


def test_what_was_simulated_before_takes_part() -> None:
    found = searched()
    asked = found.request
    again = search(asked, budget=0.01, known=found.best)
    assert again.best[0] == found.best[0]
    fixed = {"tp": found.best[0].candidate.tp * 2}
    assert found.best[0] not in search(asked, fixed=fixed, known=found.best).best, "unless it is outside"


@pytest.mark.parametrize("text", ["tp", "tp=x", "speed=3", "tp=-1", ""])
def test_what_is_no_field_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--explain"):
        parse_fixed(text)


def test_the_heuristic_baseline_keeps_tensors_in_the_node() -> None:
    """Fewer sequences than devices: no sharding group has a microbatch for each."""
    priced = heuristic_baseline(request(64, 32))
    assert priced is not None
    assert priced.candidate.tp == 8
    assert priced.candidate.dp * priced.candidate.pp * priced.candidate.tp == 64


def test_the_heuristic_baseline_of_a_small_model_on_few_devices_is_fsdp() -> None:
    model = resolve_model(ModelSection(preset="llama3-8b"))
    priced = heuristic_baseline(Request.of(model, load_cluster("dgx-h100:16"), 8192, 128))
    assert priced is not None
    layout = priced.candidate
    assert (layout.zero, layout.dp_shard, layout.tp, layout.pp) == (3, 16, 1, 1)


def test_the_heuristic_baseline_takes_the_microbatch_that_is_fastest() -> None:
    asked = request(64, 512)
    pricer, priced = Pricer(asked), heuristic_baseline(asked)
    assert priced is not None
    others = [replace(priced.candidate, microbatch_sequences=each) for each in MICROBATCHES]
    found = [each for each in map(pricer.price, others) if isinstance(each, Priced)]
    assert len(found) > 1
    assert priced.seconds == min(each.seconds for each in found if each.memory_bytes <= asked.memory_bytes)


def test_what_fits_nowhere_says_how_many_devices_would_do() -> None:
    asked = replace(request(1, 8), memory_bytes=2_000_000_000)
    found = search(asked)
    assert not found.best
    assert found.smallest is not None
    assert found.smallest[1] > asked.memory_bytes
    enough = enough_devices(asked)
    assert enough is not None
    assert enough.devices > 1


def test_the_front_has_no_layout_that_another_beats() -> None:
    front = pareto(search(request(16, 64), keep=30).best)
    for one, other in pairwise(front):
        assert one.seconds <= other.seconds
        assert one.memory_bytes > other.memory_bytes
