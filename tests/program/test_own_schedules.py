"""A person's own orders: a file of text or a Python function; read as written, refused with what is wrong and where."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.program.schedule import (
    Orders,
    check_schedule,
    order_text,
    parse_orders,
    schedule_orders,
    stage_ranks,
)
from fourfold.program.schedule.one_stage import one_f_one_b
from tests.support.schedules import fault_of, shapes

SOME = settings(max_examples=150, deadline=None)


@SOME
@given(shapes())
def test_text_reads_back_as_it_was_written(shape: tuple[str, int, int, int]) -> None:
    orders, ranks = schedule_orders(*shape), stage_ranks(*shape[:3])
    assert parse_orders(order_text(orders, ranks), shape[1]) == (orders, ranks)
    assert parse_orders(order_text(orders), shape[1]) == (orders, None)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="rank stages0123:FBIW.#\n\té²", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    fault = fault_of(lambda: parse_orders(text, 2))
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
        yield from one_f_one_b(pp_rank, num_ranks, virtual_stages, num_microbatches)

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
