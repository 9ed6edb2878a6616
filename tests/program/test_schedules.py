"""Compute orders: complete and executable for every schedule and size, as published in bubble and memory; a person's own."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.program import Op
from fourfold.program.schedule import (
    SCHEDULES,
    Compute,
    Orders,
    StageTimes,
    check_orders,
    check_schedule,
    forward_orders,
    one_f_one_b,
    order_text,
    parse_orders,
    schedule_orders,
    stage_ranks,
)
from fourfold.program.timeline import timeline

ONE_STAGE = ("naive", "gpipe", "1f1b", "zb_h1", "zb_h2")
V_SHAPED = ("zb_v", "dualpipe_v")
WHOLE = ("naive", "gpipe", "1f1b", "interleaved_1f1b")
SOME = settings(max_examples=150, deadline=None)


@st.composite
def shapes(draw: st.DrawFn, most_ranks: int = 7) -> tuple[str, int, int, int]:
    """(schedule, P, v, M): P = 1, M < P and ragged M among them."""
    schedule = draw(st.sampled_from([name for name in SCHEDULES if name != "auto"]))
    num_ranks = draw(st.integers(1, most_ranks))
    virtual = 1 if schedule in ONE_STAGE else 2 if schedule in V_SHAPED else draw(st.integers(2, 4))
    return schedule, num_ranks, virtual, draw(st.integers(1, 3 * most_ranks))


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
    text = order_text([tuple(one_f_one_b(rank, 2, 3)) for rank in range(2)])
    assert text.splitlines()[1:] == ["rank 0: F0.0 F0.1 B0.0 F0.2 B0.1 B0.2", "rank 1: F1.0 B1.0 F1.1 B1.1 F1.2 B1.2"]


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


def test_a_whole_backward_beside_its_halves_is_refused() -> None:
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


def _fault(check: Callable[[], object]) -> str | None:
    try:
        check()
    except UserError as error:
        return str(error)
    return None


@SOME
@given(shapes(most_ranks=4), st.randoms(use_true_random=False))
def test_shuffled_orders_are_proved_or_refused_and_never_anything_else(shape: tuple[str, int, int, int], rng) -> None:  # type: ignore[no-untyped-def]
    schedule, num_ranks, virtual, microbatches = shape
    orders = [list(order) for order in schedule_orders(*shape)]
    order = rng.choice(orders)
    a, b = rng.randrange(len(order)), rng.randrange(len(order))
    order[a], order[b] = order[b], order[a]
    ranks = stage_ranks(schedule, num_ranks, virtual)
    fault = _fault(lambda: check_orders(orders, ranks, num_ranks * virtual, microbatches))
    if fault is None:
        timeline(orders, ranks, StageTimes.uniform(len(ranks)))
    else:
        assert "deadlock" in fault


# A person's own


@SOME
@given(shapes())
def test_text_reads_back_as_it_was_written(shape: tuple[str, int, int, int]) -> None:
    orders, ranks = schedule_orders(*shape), stage_ranks(*shape[:3])
    assert parse_orders(order_text(orders, ranks), shape[1]) == (orders, ranks)
    assert parse_orders(order_text(orders), shape[1]) == (orders, None)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="rank stages0123:FBIW.#\n\té²", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    fault = _fault(lambda: parse_orders(text, 2))
    assert fault is None or fault.startswith("schedule:")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank 0: F0.0\nrank 1: X1.0", "mine.txt:2: 'X1.0' is no entry"),
        ("rank 0: F0.0\n\nrank 0: B0.0", "mine.txt:3: a second line of rank 0"),
        ("# own\nrank 2: F0.0", "mine.txt:2: rank 2, but layout.pp = 2; allowed: 0 to 1"),
        ("forward 0", "mine.txt:1: cannot read 'forward 0'"),
        ("stages 0 7\n", "mine.txt:1: stages: '7' is no rank"),
        ("rank 0: F0.0 B0.0", "mine.txt: rank 1 has no line"),
        ("rank 0: F0.0 B0.0\nrank 1: F1.0", "rank 1 lacks B1.0"),
        ("stages 0 1 0 1\nrank 0: F0.0\nrank 1: F1.0", "gives the ranks of 4 stages"),
        ("stages 0 0\nrank 0: F0.0\nrank 1: F1.0", "rank 0 holds 2 stages"),
    ],
)
def test_a_faulty_file_is_refused_with_the_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.txt"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        schedule_orders(f"file:{path}", 2, 1, 1)
    assert words in str(caught.value)


def test_a_file_with_its_own_placement_is_a_schedule(tmp_path: Path) -> None:
    orders, ranks = schedule_orders("zb_v", 3, 2, 4), stage_ranks("zb_v", 3, 2)
    path = tmp_path / "mine.txt"
    path.write_text(order_text(orders, ranks))
    assert schedule_orders(f"file:{path}", 3, 2, 4) == orders
    assert stage_ranks(f"file:{path}", 3, 2) == ranks
    with pytest.raises(UserError, match=r"rank 0 lacks F0\.4"):
        check_schedule(f"file:{path}", 3, 2, 5)


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, words in (("none", "there is no file"), ("binary", "cannot be read")):
        with pytest.raises(UserError, match=words):
            check_schedule(f"file:{tmp_path / name}", 2, 1, 1)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = ModuleType("own_schedules")
    monkeypatch.setitem(sys.modules, "own_schedules", found)
    return found


def test_a_python_function_yields_entries_or_text(module: ModuleType) -> None:
    def entries(pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int):  # type: ignore[no-untyped-def]
        yield from one_f_one_b(pp_rank, num_ranks, num_microbatches)

    def text(pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int):  # type: ignore[no-untyped-def]
        for m in range(num_microbatches):
            yield from (f"F{pp_rank}.{m}", f"B{pp_rank}.{m}")

    module.entries, module.text = entries, text  # type: ignore[attr-defined]
    assert schedule_orders("python:own_schedules:entries", 3, 1, 5) == schedule_orders("1f1b", 3, 1, 5)
    assert schedule_orders("python:own_schedules:text", 3, 1, 5) == schedule_orders("naive", 3, 1, 5)


def test_a_python_function_may_state_its_placement(module: ModuleType) -> None:
    orders: Orders = schedule_orders("zb_v", 2, 2, 3)

    def mine(pp_rank: int, num_ranks: int, virtual_stages: int, num_microbatches: int):  # type: ignore[no-untyped-def]
        return orders[pp_rank]

    mine.stage_ranks = lambda num_ranks, virtual_stages: [0, 1, 1, 0]  # type: ignore[attr-defined]
    module.mine = mine  # type: ignore[attr-defined]
    assert stage_ranks("python:own_schedules:mine", 2, 2) == (0, 1, 1, 0)
    assert schedule_orders("python:own_schedules:mine", 2, 2, 3) == orders
    mine.stage_ranks = [0, 1, 0, 1]  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"stage 3 is on rank 1|stage 2 is on rank 0"):
        schedule_orders("python:own_schedules:mine", 2, 2, 3)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("python:own_schedules", "python:MODULE:FUNCTION"),
        ("python:no_such_module:mine", "cannot import no_such_module"),
        ("python:own_schedules:absent", "has no function absent"),
        ("python:own_schedules:wrong", "rank 0, entry 0: 7 is no entry"),
    ],
)
def test_a_faulty_python_schedule_is_refused(module: ModuleType, schedule: str, words: str) -> None:
    module.wrong = lambda *_: [7]  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=words):
        check_schedule(schedule, 2, 1, 1)


@pytest.mark.sweep
@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "auto"])
def test_all_sizes_up_to_eight_ranks(schedule: str) -> None:
    for num_ranks in range(1, 9):
        for virtual in (1,) if schedule in ONE_STAGE else (2,) if schedule in V_SHAPED else (2, 3, 4, 5):
            for microbatches in range(1, 30):
                ranks = stage_ranks(schedule, num_ranks, virtual)
                orders = schedule_orders(schedule, num_ranks, virtual, microbatches)
                check_orders(orders, ranks, len(ranks), microbatches)
