"""The choice of a back end: wrong, failing and slow ones do not win; and the file that remembers it is not trusted."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.kernels import check, choose, remembered
from fourfold.kernels.attention import kind
from fourfold.kernels.attention.kind import BACKENDS, FLASH, KIND, TILED, AttentionCase
from fourfold.kernels.backend import Backend
from tests.support.backends import with_members

CASE = AttentionCase(2, 24, 4, 2, 16, 8, torch.float32, torch.device("cpu"), rectangles=True)


def counting_clock(seconds: dict[str, float], order: list[str]) -> choose.Clock:
    """Gives the seconds of the back ends in the order in which they are timed; calls each once."""
    names = iter(order)

    def clock(call: Callable[[], object]) -> float:
        call()
        return seconds[next(names)]

    return clock


def _compare(
    backends: list[Backend[AttentionCase]], case: AttentionCase, clock: choose.Clock
) -> dict[str, choose.Trial]:
    contest = KIND.contest(case, {backend.name: backend for backend in backends})
    return contest.measure(contest.examine, clock)


def _fastest(trials: dict[str, choose.Trial]) -> str | None:
    contest = KIND.contest(CASE, {name: replace(TILED, name=name) for name in trials})
    ranked = contest.ranked({name: trial.seconds for name, trial in trials.items()})
    return next((backend.name for backend, _ in ranked), None)


def _attend(change: Callable[[Any], Any]) -> Backend[AttentionCase]:
    return with_members(TILED, "changed", attend=lambda *args: change(TILED.operations.attend(*args)))


def _backward(place: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Backend[AttentionCase]:
    def attend_backward(*args: Any) -> Any:
        gradients = list(TILED.operations.attend_backward(*args))
        gradients[place] = change(gradients[place])
        return tuple(gradients)

    return with_members(TILED, "changed", attend_backward=attend_backward)


def _last_row(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[-1, -1] *= 1.01
    return x


def _last_row_away(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[-1, -1] = 0
    return x


def _no_mask(q: Any, k: Any, v: Any, causal: bool, scale: float, *masks: Any) -> Any:
    return TILED.operations.attend(q, k, v, False, scale)


def _fails(*args: Any) -> Any:
    raise RuntimeError("no kernel image\nfor this device")


WRONG = {
    "an output": (_attend(lambda pair: (_last_row(pair[0]), pair[1])), "its output with causal rows is off by"),
    "a NaN": (_attend(lambda pair: (pair[0] * float("nan"), pair[1])), "its output with causal rows is off by nan"),
    "a log-sum-exp": (_attend(lambda pair: (pair[0], pair[1] + 0.01)), "its log-sum-exp with causal rows is off"),
    "a shape": (_backward(0, lambda x: x[..., :4]), "its gradient of queries with causal rows is off by inf"),
    "queries": (_backward(0, _last_row), "its gradient of queries with causal rows is off"),
    "keys": (_backward(1, _last_row), "its gradient of keys with causal rows is off"),
    "values": (_backward(2, _last_row), "its gradient of values with causal rows is off"),
    "a mask": (with_members(TILED, "tiled", attend=_no_mask), "with causal rows"),
    "a failure": (with_members(TILED, "tiled", attend=_fails), "RuntimeError: no kernel image"),
    "an activation": (replace(TILED, activate=_fails), "RuntimeError: no kernel image"),
    "a refusal": (replace(TILED, refuses=lambda case: "it is Tuesday"), "it is Tuesday"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_one_does_not_win(wrong: str) -> None:
    """However fast it is."""
    backend, problem = WRONG[wrong]
    found = KIND.examine(backend, CASE)
    assert found is not None
    assert problem in found
    backends = [replace(backend, name="wrong"), FLASH]
    trials = _compare(backends, CASE, counting_clock({"wrong": 1e-9, "flash": 5.0}, ["flash"]))
    assert _fastest(trials) == "flash"


def test_a_fault_with_documents_or_rectangles_alone_is_found() -> None:
    def in_documents(*args: Any) -> Any:
        out, lse = TILED.operations.attend(*args)
        return (out * 1.01 if args[5] is not None else out), lse

    def in_rectangles(*args: Any) -> Any:
        out, lse = TILED.operations.attend(*args)
        return (out if args[3] else out * 1.01), lse

    for attend, what in ((in_documents, "documents"), (in_rectangles, "rectangles")):
        backend, plain = with_members(TILED, "tiled", attend=attend), replace(CASE, rectangles=False)
        assert KIND.examine(backend, plain) is None
        assert f"with {what}" in str(KIND.examine(backend, replace(plain, **{what: True})))


@pytest.mark.parametrize("dtype", check.BOUNDS)
def test_right_ones_pass_in_every_format(dtype: torch.dtype) -> None:
    case = replace(CASE, dtype=dtype, queries=200, heads=8, kv_heads=1, width=64, value_width=64)
    assert KIND.examine(TILED, replace(case, documents=True)) is None
    if dtype != torch.float16:
        assert KIND.examine(FLASH, case) is None


def test_what_bf16_rounds_off_an_output_is_no_fault_of_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values with much in common: gradients of queries are small differences, off by a tenth where the output is rounded."""
    inputs = kind._inputs

    def alike(case: AttentionCase, queries: int) -> list[torch.Tensor]:
        grad, q, k, v = inputs(case, queries)
        return [grad, q, k, v + 40]

    monkeypatch.setattr(kind, "_inputs", alike)
    case = replace(CASE, dtype=torch.bfloat16, queries=200, width=64, value_width=64)
    assert KIND.examine(TILED, case) is None
    assert "gradient of queries" in str(KIND.examine(_backward(0, _last_row_away), case))


def test_the_fastest_wins_and_of_equals_the_first() -> None:
    slow, fast, same = (replace(TILED, name=name) for name in ("slow", "fast", "same"))
    clock = counting_clock({"slow": 2.0, "fast": 1.0, "same": 1.0}, ["slow", "fast", "same"])
    trials = _compare([slow, fast, same], CASE, clock)
    assert _fastest(trials) == "fast"
    assert _fastest({"a": choose.Trial(float("inf"))}) is None
    assert _fastest({}) is None


def test_one_that_fails_at_the_full_size_does_not_win() -> None:
    def attend(q: torch.Tensor, *args: Any) -> Any:
        if q.shape[1] > kind.CHECKED_TOKENS:
            raise torch.OutOfMemoryError("too little")
        return TILED.operations.attend(q, *args)

    case = replace(CASE, queries=kind.CHECKED_TOKENS + 8, batch=1, heads=1, kv_heads=1, rectangles=False)
    trial = _compare([with_members(TILED, "tiled", attend=attend)], case, counting_clock({"tiled": 1.0}, ["tiled"]))[
        "tiled"
    ]
    assert trial.seconds == float("inf")
    assert "too little" in str(trial.problem)


@pytest.mark.parametrize("queries", [1, 2, 7, 24])
def test_documents_of_a_case_fill_its_rows(queries: int) -> None:
    assert sum(kind.lengths_of(replace(CASE, queries=queries))) == queries


# The file


def test_what_is_remembered_is_recalled(tmp_path: Path) -> None:
    path, key = tmp_path / "deep" / "attention.json", remembered.key_of(CASE)
    assert remembered.recall(path, key, BACKENDS) is None
    remembered.remember(path, key, {"flash": 0.5, "tiled": 2.0, "cudnn": float("inf")})
    found = remembered.recall(path, key, BACKENDS)
    assert found == {name: {"flash": 0.5, "tiled": 2.0}.get(name, float("inf")) for name in BACKENDS}
    assert remembered.recall(path, remembered.key_of(replace(CASE, width=32)), BACKENDS) is None
    assert [each.name for each in path.parent.iterdir()] == ["attention.json"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "[" * 100_000, '{"KEY": 1}', '{"KEY": {}}', '{"KEY": {"evil": 1.0}}', '{"KEY": {"flash": true}}',
     '{"KEY": {"flash": -1.0}}', '{"KEY": {"flash": NaN}}', '{"KEY": {"flash": "0"}}', '{"KEY": {"flash": Infinity}}'],
    ids=lambda text: text[:30],
)  # fmt: skip
def test_a_file_of_anything_else_is_as_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "attention.json"
    path.write_text(text.replace("KEY", remembered.key_of(CASE)))
    assert remembered.recall(path, remembered.key_of(CASE), BACKENDS) is None
    remembered.remember(path, remembered.key_of(CASE), {"flash": 1.0})
    assert remembered.recall(path, remembered.key_of(CASE), BACKENDS) is not None


def test_a_file_too_long_or_out_of_reach_is_as_none(tmp_path: Path) -> None:
    path = tmp_path / "attention.json"
    path.write_text(json.dumps({"k": {"flash": 1.0}, "x": "x" * remembered.MAX_BYTES}))
    assert remembered.recall(path, "k", BACKENDS) is None
    (tmp_path / "file").write_text("")
    remembered.remember(tmp_path / "file" / "attention.json", "k", {"flash": 1.0})


def test_the_oldest_cases_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "attention.json"
    for number in itertools.chain(range(remembered.MAX_CASES), ["new"]):
        table = json.loads(path.read_text()) if path.exists() else {}
        if number == "new" or len(table) < 3:
            remembered.remember(path, str(number), {"flash": 1.0})
        elif len(table) < remembered.MAX_CASES:
            path.write_text(json.dumps({str(i): {"flash": 1.0} for i in range(remembered.MAX_CASES)}))
    known = json.loads(path.read_text())
    assert len(known) == remembered.MAX_CASES
    assert "0" not in known
    assert "new" in known


def test_without_a_home_nothing_is_remembered_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container platform's arbitrary user id: HOME is unset, and the password file has no such user."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    path = remembered.folder() / "attention.json"
    remembered.remember(path, "key", {"tiled": 1.0})
    assert remembered.recall(path, "key", ["tiled"]) is None
