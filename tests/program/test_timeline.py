"""Timelines against the closed forms of the papers: makespan, bubble, live activations. All figures are exact."""

from fractions import Fraction
from itertools import pairwise

import pytest

from fourfold.config import UserError
from fourfold.program import Op
from fourfold.program.schedule import Compute, StageTimes, schedule_orders, stage_ranks
from fourfold.program.timeline import Timeline, timeline

SIZES = [(P, M) for P in (1, 2, 3, 4, 8) for M in (1, 2, 4, 8, 17)]
HALVES = {"F = B": (0.5, 0.5), "2F = B": (1.0, 1.0)}


def run(schedule: str, num_ranks: int, virtual: int, microbatches: int, *durations: float) -> Timeline:
    orders = schedule_orders(schedule, num_ranks, virtual, microbatches)
    times = StageTimes.uniform(num_ranks * virtual, *durations)
    return timeline(orders, stage_ranks(schedule, num_ranks, virtual), times)


def test_1f1b_of_four_ranks_and_eight_microbatches() -> None:
    drawn = run("1f1b", 4, 1, 8, 1.0, 0.5, 0.5)
    assert drawn.makespan == 22
    assert drawn.bubble_fraction == 3 / 11
    assert drawn.bubble_over_ideal == 3 / 8
    assert drawn.idle == (6.0,) * 4
    assert drawn.peak_activations == (4, 3, 2, 1)


@pytest.mark.parametrize(
    ("num_ranks", "microbatches", "shown"), [(4, 8, "27.3"), (4, 32, "8.6"), (16, 8, "65.2"), (16, 64, "19.0")]
)
def test_worked_figures(num_ranks: int, microbatches: int, shown: str) -> None:
    assert f"{run('1f1b', num_ranks, 1, microbatches).bubble_fraction:.1%}" == f"{shown}%"


@pytest.mark.parametrize("halves", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize(("P", "M"), SIZES)
def test_bubbles_of_full_backwards(P: int, M: int, halves: tuple[float, float]) -> None:
    assert run("naive", P, 1, M, 1.0, *halves).bubble_fraction == (P - 1) / P
    for schedule in ("gpipe", "1f1b"):
        assert run(schedule, P, 1, M, 1.0, *halves).bubble_fraction == (P - 1) / (P - 1 + M)


@pytest.mark.parametrize(("P", "M"), SIZES)
def test_live_activations_of_full_backwards(P: int, M: int) -> None:
    assert run("naive", P, 1, M).peak_activations == (1,) * P
    assert run("gpipe", P, 1, M).peak_activations == (M,) * P
    assert run("1f1b", P, 1, M).peak_activations == tuple(min(P - r, M) for r in range(P))


@pytest.mark.parametrize("halves", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize("v", [2, 3, 5])
@pytest.mark.parametrize(("P", "groups"), [(1, 3), (2, 1), (2, 4), (4, 1), (4, 2), (4, 3), (8, 2)])
def test_interleaved_divides_the_bubble_by_its_stages(P: int, groups: int, v: int, halves: tuple[float, float]) -> None:
    M = groups * P
    drawn = run("interleaved_1f1b", P, v, M, 1.0, *halves)
    assert drawn.bubble_fraction == (P - 1) / (P - 1 + v * M)
    warmups = [2 * (P - r - 1) + (v - 1) * P for r in range(P)]
    assert drawn.peak_activations == tuple(min(warmup + 1, v * M) for warmup in warmups)


@pytest.mark.parametrize("v", [2, 3])
@pytest.mark.parametrize("P", [2, 3, 4])
def test_a_ragged_group_costs_no_more_than_the_missing_microbatches(P: int, v: int) -> None:
    for M in range(1, 3 * P + 1):
        full = -(-M // P) * P
        ragged, padded = (run("interleaved_1f1b", P, v, m) for m in (M, full))
        assert ragged.makespan <= padded.makespan
        assert all(a <= b for a, b in zip(ragged.peak_activations, padded.peak_activations, strict=True))


@pytest.mark.parametrize("halves", HALVES.values(), ids=HALVES)
@pytest.mark.parametrize("v", [2, 3, 5])
@pytest.mark.parametrize(("P", "M"), [(1, 3), (2, 3), (4, 4), (4, 7), (8, 17)])
def test_breadth_first_has_the_bubble_of_interleaved_for_ragged_microbatches_too(
    P: int, M: int, v: int, halves: tuple[float, float]
) -> None:
    drawn = run("breadth_first", P, v, M, 1.0, *halves)
    assert drawn.bubble_fraction == (P - 1) / (P - 1 + v * M)
    assert drawn.peak_activations == (v * M,) * P


# Zero bubble. F, I, W: forward, input gradient, weight gradient.

TIMES = [(1.0, 1.0, 1.0), (4.0, 4.0, 3.0), (5.0, 4.0, 4.0)]


@pytest.mark.parametrize("P", [1, 2, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 9])
def test_zb_h1_has_a_third_of_the_bubble_of_1f1b_at_its_memory(P: int, more: int) -> None:
    M = 2 * P - 1 + more
    zero, plain = run("zb_h1", P, 1, M), run("1f1b", P, 1, M)
    assert zero.idle == (P - 1,) * P
    assert plain.idle == (3 * (P - 1),) * P
    assert max(zero.peak_activations) == max(plain.peak_activations) == P


@pytest.mark.parametrize(("F", "I", "W"), TIMES)
@pytest.mark.parametrize("P", [2, 4, 8])
def test_zb_h1_idles_as_published(P: int, F: float, I: float, W: float) -> None:  # noqa: E741
    assert max(run("zb_h1", P, 1, 4 * P, F, I, W).inner_idle) == (P - 1) * (F + I - W)


@pytest.mark.parametrize("P", [1, 2, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 9])
def test_zb_h2_never_idles_from_first_to_last(P: int, more: int) -> None:
    M = 2 * P - 1 + more
    drawn = run("zb_h2", P, 1, M)
    assert drawn.inner_idle == (0.0,) * P
    assert drawn.zero_bubble_fraction == 0.0
    assert [events[0].start for events in drawn.events] == list(range(P))
    assert drawn.idle == (P - 1,) * P
    assert drawn.peak_activations == (2 * P - 1,) * P


@pytest.mark.parametrize("P", [1, 2, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 9])
def test_zb_v_never_idles_from_first_to_last_at_the_memory_of_1f1b(P: int, more: int) -> None:
    M = 2 * P - 1 + more
    drawn = run("zb_v", P, 2, M)
    assert drawn.inner_idle == (0.0,) * P
    assert [events[0].start for events in drawn.events] == list(range(P))
    halves = 2 * max(run("1f1b", P, 1, M).peak_activations)
    assert drawn.peak_activations == (halves,) * P


@pytest.mark.parametrize(("F", "I", "W"), TIMES)
@pytest.mark.parametrize("P", [1, 2, 4, 8])
def test_dualpipe_v_is_within_its_published_bubble_and_memory(P: int, F: float, I: float, W: float) -> None:  # noqa: E741
    """(PP/2 - 1)(FB + B - 3W) with PP = 2P stages; FB = F + B, since a pair here runs one after the other. A forward need not
    wait for its pair's other half here, so that the idle time may be less, as it is."""
    drawn = run("dualpipe_v", P, 2, 4 * P, F, I, W)
    B = I + W
    assert max(drawn.idle) <= (P - 1) * (F + B + B - 3 * W)
    assert drawn.peak_activations == (2 * P + 1,) * P
    assert max(drawn.idle) < max(run("interleaved_1f1b", P, 2, 4 * P, F, I, W).idle) or P == 1


@pytest.mark.parametrize(("F", "I", "W"), [(1.0, 1.0, 1.0), (4.0, 4.0, 3.0), (3.0, 4.0, 4.0), (4.0, 5.0, 3.0)])
@pytest.mark.parametrize("P", [2, 4, 8])
def test_dualpipe_v_with_pairs_that_overlap_idles_exactly_as_published(P: int, F: float, I: float, W: float) -> None:  # noqa: E741
    """Where neither F nor W takes longer than I."""
    B = I + W
    idle = _paired_idle(P, 4 * P, {Op.FORWARD: F, Op.BACKWARD: B, Op.BACKWARD_INPUT: I, Op.BACKWARD_WEIGHT: W})
    assert max(idle) == (P - 1) * (F + B + B - 3 * W)


def _paired_idle(P: int, M: int, durations: dict[Op, float]) -> list[float]:
    """DualPipeV where F and the B right after it are one entry: both start when both can, both end when both are done."""
    ranks = stage_ranks("dualpipe_v", P, 2)
    queues: list[list[tuple[Compute, ...]]] = []
    for order in schedule_orders("dualpipe_v", P, 2, M):
        queue: list[tuple[Compute, ...]] = []
        for entry in order:
            pairs = queue and len(queue[-1]) == 1 and queue[-1][0].op is Op.FORWARD and entry.op is Op.BACKWARD
            if pairs and queue[-1][0].stage != entry.stage:
                queue[-1] = (queue[-1][0], entry)
            else:
                queue.append((entry,))
        queues.append(queue)
    ends: dict[tuple[str, int, int], float] = {}
    free, places = [0.0] * P, [0] * P
    while any(place < len(queue) for place, queue in zip(places, queues, strict=True)):
        before = list(places)
        for rank, queue in enumerate(queues):
            while places[rank] < len(queue):
                group = queue[places[rank]]
                needed = [need for entry in group for need in _needs(entry, len(ranks))]
                if not all(need in ends for need in needed):
                    break
                start = max([free[rank], *(ends[need] for need in needed)])
                free[rank] = start + sum(durations[entry.op] for entry in group)
                for entry in group:
                    if entry.op is not Op.BACKWARD_WEIGHT:
                        ends["F" if entry.op is Op.FORWARD else "B", entry.stage, entry.microbatch] = free[rank]
                places[rank] += 1
        assert places != before
    work = 2 * M * (durations[Op.FORWARD] + durations[Op.BACKWARD])
    return [max(free) - work] * P


def _needs(entry: Compute, num_stages: int) -> list[tuple[str, int, int]]:
    op, stage, m = entry
    if op is Op.FORWARD:
        return [("F", stage - 1, m)] if stage else []
    if op is Op.BACKWARD_WEIGHT:
        return []
    return [("B", stage + 1, m)] if stage + 1 < num_stages else [("F", stage, m)]


# What a timeline tells


def test_events_follow_one_another_and_what_they_need() -> None:
    times = StageTimes((1.0, 2.0, 3.0), (2.0, 1.0, 2.0), (1.0, 1.0, 0.5), transfer=0.25)
    drawn = timeline(schedule_orders("zb_h1", 3, 1, 5), (0, 1, 2), times)
    ends = {(e.op, e.stage, e.microbatch): e.end for events in drawn.events for e in events}
    for events in drawn.events:
        for before, after in pairwise(events):
            assert before.end <= after.start
        for e in events:
            assert e.end - e.start == times.durations()[e.op][e.stage]
            if e.op is Op.FORWARD and e.stage:
                assert e.start >= ends[Op.FORWARD, e.stage - 1, e.microbatch] + 0.25
            if e.op is Op.BACKWARD_INPUT and e.stage < 2:
                assert e.start >= ends[Op.BACKWARD_INPUT, e.stage + 1, e.microbatch] + 0.25
            if e.op is Op.BACKWARD_WEIGHT:
                assert e.start >= ends[Op.BACKWARD_INPUT, e.stage, e.microbatch]


def test_one_microbatch_pays_every_transfer_between_ranks_and_none_on_the_v() -> None:
    for schedule, crossings in (("interleaved_1f1b", 7), ("zb_v", 6)):
        times = StageTimes.uniform(8, transfer=0.5)
        drawn = timeline(schedule_orders(schedule, 4, 2, 1), stage_ranks(schedule, 4, 2), times)
        ended = max(e.end for events in drawn.events for e in events if e.op is not Op.BACKWARD_WEIGHT)
        backward = 2 if schedule == "interleaved_1f1b" else 1
        assert ended == 8 * (1 + backward) + 2 * crossings * 0.5 + (1 if schedule == "zb_v" else 0)
        assert len(drawn.transfers) == 2 * crossings
        assert all(t.end - t.start == 0.5 and t.source != t.target for t in drawn.transfers)


def test_activations_weigh_what_the_stages_say_and_halves_what_they_keep() -> None:
    times = StageTimes((1.0,), (1.0,), (1.0,), activations=(10.0,), weight_activations=(3.0,))
    order = [Compute(op, 0, m) for op, m in [(Op.FORWARD, 0), (Op.BACKWARD_INPUT, 0), (Op.FORWARD, 1)]]
    order += [Compute(op, 0, m) for op, m in [(Op.BACKWARD_INPUT, 1), (Op.BACKWARD_WEIGHT, 0), (Op.BACKWARD_WEIGHT, 1)]]
    assert timeline([order], (0,), times).peak_activations == (13.0,)


def test_uneven_stages_idle_the_fast_ones() -> None:
    drawn = timeline(schedule_orders("1f1b", 2, 1, 3), (0, 1), StageTimes((1.0, 2.0), (0.5, 1.0), (0.5, 1.0)))
    assert drawn.busy == (6.0, 12.0)
    assert Fraction(drawn.imbalance_fraction).limit_denominator(100) == Fraction(6, 28)
    assert drawn.makespan == 14.0


def test_a_deadlock_is_an_error() -> None:
    orders = [[Compute(Op.BACKWARD, 0, 0), Compute(Op.FORWARD, 0, 0)]]
    with pytest.raises(UserError, match="deadlock"):
        timeline(orders, (0,), StageTimes.uniform(1))


def test_columns_of_unequal_length_or_negative_times_are_refused() -> None:
    with pytest.raises(ValueError, match="one number a stage"):
        StageTimes((1.0,), (1.0, 1.0), (1.0,))
    with pytest.raises(ValueError, match="not negative"):
        StageTimes((1.0,), (-1.0,), (1.0,))
