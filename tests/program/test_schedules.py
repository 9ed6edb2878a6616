"""Compute orders: complete and executable for every schedule and size; what is no order is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.program import Op
from fourfold.program.schedule import (
    Compute,
    StageTimes,
    check_orders,
    check_schedule,
    forward_orders,
    order_text,
    schedule_orders,
    stage_ranks,
)
from fourfold.program.schedule.one_stage import one_f_one_b
from fourfold.program.timeline import timeline
from tests.support.schedules import FIXED, fault_of, shapes, stages_of

SOME = settings(max_examples=150, deadline=None)


@SOME
@given(shapes())
def test_every_schedule_is_complete_and_executable_whatever_its_size(shape: tuple[str, int, int, int]) -> None:
    schedule, num_ranks, virtual, microbatches = shape
    orders = schedule_orders(*shape)
    assert len(orders) == num_ranks
    check_orders(orders, stage_ranks(schedule, num_ranks, virtual), num_ranks * virtual, microbatches)


@SOME
@given(shapes(), st.data())
def test_uneven_stages_change_times_and_never_the_work(shape: tuple[str, int, int, int], data: st.DataObject) -> None:
    schedule, num_ranks, virtual, microbatches = shape
    columns = st.tuples(*[st.integers(0, 9).map(float)] * (num_ranks * virtual))
    times = StageTimes(data.draw(columns), data.draw(columns), data.draw(columns), float(data.draw(st.integers(0, 3))))
    ranks = stage_ranks(schedule, num_ranks, virtual)
    drawn = timeline(schedule_orders(*shape), ranks, times)
    work = [f + i + w for f, i, w in zip(times.forward, times.input_gradient, times.weight_gradient, strict=True)]
    for rank in range(num_ranks):
        assert drawn.busy[rank] == microbatches * sum(w for w, r in zip(work, ranks, strict=True) if r == rank)
    assert drawn.makespan >= max(drawn.busy)


@SOME
@given(shapes())
def test_every_stage_takes_its_microbatches_in_turn(shape: tuple[str, int, int, int]) -> None:
    for order in schedule_orders(*shape):
        for kind in {(c.op, c.stage) for c in order}:
            taken = [c.microbatch for c in order if (c.op, c.stage) == kind]
            assert taken == sorted(taken)


@pytest.mark.parametrize("virtual", [1, 2, 3])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("microbatches", [1, 4, 7])
def test_evaluation_runs_every_forward_once_and_cannot_deadlock(
    virtual: int, num_ranks: int, microbatches: int
) -> None:
    for name in ("auto", "interleaved_1f1b"):
        if virtual == 1 and name != "auto":
            continue
        ranks = stage_ranks(name, num_ranks, virtual)
        orders = forward_orders(ranks, microbatches)
        seen = timeline(orders, ranks, StageTimes.uniform(len(ranks))).events
        assert sum(map(len, seen)) == len(ranks) * microbatches


def test_placements() -> None:
    assert stage_ranks("interleaved_1f1b", 3, 2) == (0, 1, 2, 0, 1, 2)
    assert (
        stage_ranks("zb_v", 3, 2) == stage_ranks("dualpipe_v", 3, 2) == stage_ranks("auto", 3, 2) == (0, 1, 2, 2, 1, 0)
    )
    assert stage_ranks("auto", 3, 1) == (0, 1, 2)
    assert stage_ranks("auto", 2, 3) == (0, 1, 0, 1, 0, 1)


def test_the_order_of_1f1b_is_the_textbooks() -> None:
    text = order_text([tuple(one_f_one_b(rank, 2, 1, 3)) for rank in range(2)])
    assert text.splitlines()[1:] == ["rank 0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2", "rank 1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2"]


@pytest.mark.sweep
@pytest.mark.parametrize("schedule", FIXED)
def test_all_sizes_up_to_eight_ranks(schedule: str) -> None:
    for num_ranks in range(1, 9):
        for virtual in stages_of(schedule, 5):
            for microbatches in range(1, 30):
                ranks = stage_ranks(schedule, num_ranks, virtual)
                orders = schedule_orders(schedule, num_ranks, virtual, microbatches)
                check_orders(orders, ranks, len(ranks), microbatches)


# What a schedule cannot do


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("1f1", 4, 1, 8), ("layout.schedule = '1f1'", "'1f1b'", "zb_h1", "file:PATH")),
        (("ZB-H1", 4, 1, 8), ("a value that works: 'zb_h1'",)),
        (("1f1b", 4, 2, 8), ("layout.virtual_stages = 2", "a value that works: 1", "interleaved_1f1b")),
        (("interleaved_1f1b", 4, 1, 8), ("layout.virtual_stages = 1", "a value that works: 2", "'1f1b'")),
        (("zb_v", 4, 3, 8), ("layout.virtual_stages = 3", "a value that works: 2")),
        (("gpipe", 4, 1, 0), ("0 microbatches", "a value that works: 4")),
    ],
)
def test_what_a_schedule_cannot_do_is_named_with_a_value_that_works(
    arguments: tuple[str, int, int, int], words: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as caught:
        check_schedule(*arguments)
    assert all(word in str(caught.value) for word in words)


# The proof of orders


def _orders() -> list[list[Compute]]:
    return [list(order) for order in schedule_orders("zb_h1", 2, 1, 2)]


def _refused(orders: list[list[Compute]], ranks: tuple[int, ...] = (0, 1)) -> str:
    with pytest.raises(UserError) as caught:
        check_orders(orders, ranks, 2, 2)
    return str(caught.value)


def test_an_entry_left_out_is_named() -> None:
    for rank in range(2):
        for index in range(6):
            orders = _orders()
            gone = orders[rank].pop(index)
            message = _refused(orders)
            assert f"rank {rank}" in message
            assert f"{gone.op.value}{gone.stage}.{gone.microbatch}" in message


def test_an_entry_twice_is_named_with_its_place() -> None:
    orders = _orders()
    orders[1].append(orders[1][0])
    assert "rank 1, entry 6: F1.0: stands here a second time" in _refused(orders)


def test_a_full_backward_beside_its_halves_is_refused() -> None:
    orders = _orders()
    orders[0].append(Compute(Op.BACKWARD, 0, 0))
    assert "B0.0: I or W of the same stage and microbatch came before" in _refused(orders)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (Compute(Op.FORWARD, 1, 0), "stage 1 is on rank 1"),
        (Compute(Op.FORWARD, 2, 0), "there is no stage 2; allowed: 0 to 1"),
        (Compute(Op.FORWARD, 0, 2), "there is no microbatch 2; allowed: 0 to 1"),
        (Compute(Op.UPDATE, 0, 0), "allowed: F, B, I, W"),
    ],
)
def test_an_entry_that_does_not_belong_is_named(entry: Compute, words: str) -> None:
    orders = _orders()
    orders[0].insert(0, entry)
    assert words in _refused(orders)


def test_a_deadlock_names_who_waits_for_whom() -> None:
    orders = _orders()
    i0 = orders[0].index(Compute(Op.BACKWARD_INPUT, 0, 0))
    f1 = orders[0].index(Compute(Op.FORWARD, 0, 1))
    orders[0][i0], orders[0][f1] = orders[0][f1], orders[0][i0]
    orders[1].remove(Compute(Op.FORWARD, 1, 1))
    orders[1].insert(0, Compute(Op.FORWARD, 1, 1))
    message = _refused(orders)
    assert "deadlock" in message
    assert "rank 0, entry 1: I0.0 waits for I1.0" in message
    assert "rank 1, entry 0: F1.1 waits for F0.1" in message


def test_a_weight_half_before_its_input_half_waits_for_itself() -> None:
    orders = _orders()
    order = orders[1]
    i, w = order.index(Compute(Op.BACKWARD_INPUT, 1, 1)), order.index(Compute(Op.BACKWARD_WEIGHT, 1, 1))
    order[i], order[w] = order[w], order[i]
    assert "W1.1 waits for I1.1, its own entry" in _refused(orders)


@SOME
@given(shapes(most_ranks=4), st.randoms(use_true_random=False))
def test_shuffled_orders_are_proved_or_refused_and_never_anything_else(shape: tuple[str, int, int, int], rng) -> None:  # type: ignore[no-untyped-def]
    schedule, num_ranks, virtual, microbatches = shape
    orders = [list(order) for order in schedule_orders(*shape)]
    order = rng.choice(orders)
    a, b = rng.randrange(len(order)), rng.randrange(len(order))
    order[a], order[b] = order[b], order[a]
    ranks = stage_ranks(schedule, num_ranks, virtual)
    fault = fault_of(lambda: check_orders(orders, ranks, num_ranks * virtual, microbatches))
    if fault is None:
        timeline(orders, ranks, StageTimes.uniform(len(ranks)))
    else:
        assert "deadlock" in fault
