"""A person's schedule that fails, or never ends, is one message with its name."""

import itertools
import sys
from types import ModuleType
from typing import Any

import pytest

from fourfold.config import UserError
from fourfold.program.schedule import schedule_orders


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("bad_schedules")
    monkeypatch.setitem(sys.modules, "bad_schedules", module)
    return module


def fails(*size: int) -> Any:
    raise KeyError("no such stage")


def exits(*size: int) -> Any:
    yield "F0.0"
    sys.exit(3)


def stage_ranks_fail(*size: int) -> Any:
    return []


stage_ranks_fail.stage_ranks = lambda *size: 1 // 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (fails, "called with (0, 2, 1, 4), fails: KeyError: 'no such stage'"),
        (exits, "fails: SystemExit: 3"),
        (lambda *size: 7, "fails: TypeError: 'int' object is not iterable"),
        (lambda: [], "fails: TypeError"),
        (lambda *size: itertools.repeat("F0.0"), "rank 0 has more than 12 entries; allowed: 12"),
        (stage_ranks_fail, "stage_ranks(2, 1) fails: ZeroDivisionError"),
    ],
)
def test_a_function_that_fails(module: ModuleType, function: Any, word: str) -> None:
    module.mine = function  # type: ignore[attr-defined]
    with pytest.raises(UserError) as caught:
        schedule_orders("python:bad_schedules:mine", 2, 1, 4)
    assert str(caught.value).startswith("layout.schedule = 'python:bad_schedules:mine': ")
    assert word in str(caught.value)


@pytest.mark.parametrize("name", ["getcwd", "abort_not_there"])
def test_a_function_that_is_no_schedule(name: str) -> None:
    with pytest.raises(UserError, match=f"layout.schedule = 'python:os:{name}'"):
        schedule_orders(f"python:os:{name}", 2, 1, 4)


@pytest.mark.parametrize("text", ["raise SystemExit(0)", "1 // 0", "def"])
def test_a_module_that_fails(tmp_path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "broken_schedules.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_schedules", raising=False)
    with pytest.raises(UserError, match=r"cannot import broken_schedules: (SystemExit|ZeroDivisionError|SyntaxError)"):
        schedule_orders("python:broken_schedules:mine", 2, 1, 4)
