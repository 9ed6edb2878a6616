"""`auto`: never longer than a fixed schedule that fits, within its memory, and on small cases as short as can be."""

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.program.schedule import (
    BUILT_IN,
    Orders,
    StageTimes,
    auto_orders,
    check_orders,
    schedule_orders,
    search,
    stage_ranks,
)
from fourfold.program.schedule.execution import Execution, execute
from fourfold.program.timeline import Timeline, timeline
from tests.support.shortest_step import ShortestStep

SOME = settings(max_examples=12, deadline=None)


def run(num_ranks: int, virtual: int, microbatches: int, times: StageTimes, limit: float | None = None) -> Timeline:
    ranks = stage_ranks("auto", num_ranks, virtual)
    orders = schedule_orders("auto", num_ranks, virtual, microbatches, times, limit)
    check_orders(orders, ranks, len(ranks), microbatches)
    return timeline(orders, ranks, times)


def uneven(num_stages: int, seed: int) -> StageTimes:
    """Whole numbers up to 6, so that ties and exact sums are as likely as in practice they are not."""
    rng = random.Random(seed)
    columns = [tuple(float(rng.randint(1, 6)) for _ in range(num_stages)) for _ in range(3)]
    return StageTimes(*columns, transfer=float(rng.choice([0, 0, 1])))


def found_and_shortest(P: int, v: int, M: int, times: StageTimes, limit: float) -> tuple[float, float]:
    found = run(P, v, M, times, limit).makespan
    return found, ShortestStep(stage_ranks("auto", P, v), M, times, [limit] * P, found).solve()


@SOME
@given(
    st.integers(1, 5),
    st.sampled_from([1, 2, 3]),
    st.integers(1, 8),
    st.integers(0, 10**6),
    st.sampled_from([0.5, 1, 2]),
)
def test_never_longer_than_a_fixed_schedule_that_fits(P: int, v: int, M: int, seed: int, room: float) -> None:
    times = uneven(P * v, seed)
    limit = max(float(v), P * v * room)
    drawn = run(P, v, M, times, limit)
    assert max(drawn.peak_activations) <= limit
    ranks = stage_ranks("auto", P, v)
    for name in (s.name for s in BUILT_IN if s.takes(v) and s.placement(P, v) == ranks):
        fixed = timeline(schedule_orders(name, P, v, M), ranks, times)
        if max(fixed.peak_activations) <= limit:
            assert drawn.makespan <= fixed.makespan
            assert drawn.bubble_fraction <= fixed.bubble_fraction + 1e-12


@SOME
@given(st.integers(1, 4), st.sampled_from([1, 2, 3]), st.integers(1, 6), st.integers(0, 10**6))
def test_without_a_limit_it_takes_the_memory_of_the_plain_schedule(P: int, v: int, M: int, seed: int) -> None:
    plain = {1: "1f1b", 2: "zb_v", 3: "interleaved_1f1b"}[v]
    times = uneven(P * v, seed)
    most = max(timeline(schedule_orders(plain, P, v, M), stage_ranks(plain, P, v), times).peak_activations)
    assert max(run(P, v, M, times).peak_activations) <= most


@pytest.mark.parametrize("v", [1, 2, 3])
@pytest.mark.parametrize(("P", "M"), [(2, 4), (4, 8), (4, 16), (8, 16)])
def test_even_stages_wait_for_the_first_activation_alone(P: int, M: int, v: int) -> None:
    """3vM + P - 1 with F = I = W = 1 is the least possible: rank P - 1 starts at P - 1 and never idles again."""
    assert run(P, v, M, StageTimes.uniform(P * v)).makespan == 3 * v * M + P - 1


def test_the_search_tries_as_many_orders_as_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def counted(orders: Orders, *rest: Any) -> Execution:
        tried.append(orders)
        return execute(orders, *rest)

    monkeypatch.setattr(search, "execute", counted)
    ranks, times = stage_ranks("1f1b", 3, 1), uneven(3, 1)
    orders = schedule_orders("1f1b", 3, 1, 6)
    for budget in (5, 12):
        tried.clear()
        search.improve(orders, ranks, times, [99.0] * 3, 0.0, budget)
        assert len(tried) == budget + 1  # the one that it begins with


def test_the_search_ends_when_nothing_got_better_for_so_many_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    moves, neighbours = [], search._neighbours

    def counted(*arguments: Any) -> Iterator[Any]:
        moves.append(arguments)
        return neighbours(*arguments)

    monkeypatch.setattr(search, "_neighbours", counted)
    monkeypatch.setattr(search, "_STALE", 6)
    ranks, times = stage_ranks("1f1b", 3, 1), StageTimes.uniform(3)
    shortest = schedule_orders("auto", 3, 1, 6, times)
    assert search.improve(shortest, ranks, times, [99.0] * 3, 0.0, 10_000) == shortest
    assert len(moves) == 6


def test_the_same_arguments_give_the_same_orders() -> None:
    times = uneven(6, 3)
    assert schedule_orders("auto", 3, 2, 5, times, 4) == schedule_orders("auto", 3, 2, 5, times, 4)


@pytest.mark.grid(1)
@pytest.mark.parametrize(("P", "M"), [(2, 2), (2, 3), (2, 4), (3, 2), (3, 3)])
@pytest.mark.parametrize("limit", ["less", "1f1b", "more"])
@pytest.mark.parametrize("seed", [1, 2])
def test_one_stage_a_rank_is_optimal_on_small_cases(P: int, M: int, limit: str, seed: int) -> None:
    times = uneven(P, 100 * seed + 10 * P + M)
    units = {"less": P - 1, "1f1b": P, "more": 2 * P}[limit]
    found, best = found_and_shortest(P, 1, M, times, units)
    assert found == pytest.approx(best, abs=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_several_uneven_stages_a_rank_are_near_the_optimum(seed: int) -> None:
    found, best = found_and_shortest(2, 2, 2, uneven(4, seed), 3)
    assert best - 1e-3 <= found <= 1.05 * best


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("P", "v", "M"), [(2, 1, 4), (3, 1, 4), (4, 1, 3), (2, 2, 2), (3, 2, 2), (2, 3, 2)])
def test_gap_to_the_optimum(P: int, v: int, M: int, seed: int) -> None:
    times = uneven(P * v, seed)
    limit = random.Random(seed).choice([v + 1, v + 2, P * v, P * v + 1])
    found, best = found_and_shortest(P, v, M, times, limit)
    assert best - 1e-3 <= found <= (1.0 if v == 1 else 1.1) * best + 1e-3


def test_a_limit_for_each_rank() -> None:
    times = StageTimes.uniform(3)
    drawn = timeline(auto_orders((0, 1, 2), 6, times, (4, 2, 1)), (0, 1, 2), times)
    assert all(peak <= limit for peak, limit in zip(drawn.peak_activations, (4, 2, 1), strict=True))


def test_halves_that_keep_little_leave_room_for_more() -> None:
    """With a limit of two activations, a deferred W is dear where all stays for it and free where nothing does."""
    small_w = StageTimes((1.0,) * 3, (1.0,) * 3, (1.0,) * 3, activations=(1.0,) * 3, weight_activations=(0.1,) * 3)
    assert run(3, 1, 6, small_w, 2).makespan <= run(3, 1, 6, StageTimes.uniform(3), 2).makespan


def test_a_limit_below_one_microbatch_is_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match=r"rank 0 may hold 1 of activations, but one microbatch holds 2 there"):
        schedule_orders("auto", 2, 2, 4, StageTimes.uniform(4), 1)
    with pytest.raises(UserError, match="may hold nan"):
        schedule_orders("auto", 2, 1, 4, StageTimes.uniform(2), math.nan)
