"""`fourfold calibrate` measures each kind of fp32 matmul with the library that a run computes it with, the faster one."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fourfold.calibrate import kernels, steps
from fourfold.calibrate.clock import Meter
from fourfold.calibrate.kernels import ONE_LIBRARY, accumulated_rate, plain_rate, weight_pool
from fourfold.calibrate.machine import describe
from fourfold.calibrate.rounds import step_tables
from fourfold.calibrate.steps import measure_steps
from fourfold.kernels.matmul.libraries import KINDS, LibrarySeconds, by_onednn
from fourfold.model import torch_onednn, torch_operations
from fourfold.model.torch_onednn import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT
from fourfold.model.work import Gemm
from tests.calibrate.machine_table import contention_profile

CPU = torch.device("cpu")
TABLE = step_tables("fp32", True)[0]


class Once(Meter):
    """Calls a function and says that it took a second."""

    def seconds_each(self, function: Callable[[], Any], window_seconds: float) -> float:
        function()
        return 1.0


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of all results that oneDNN computed."""
    shapes: list[tuple[int, ...]] = []
    multiply: Callable[..., torch.Tensor] = torch_onednn._multiply

    def seen(*operands: Any) -> torch.Tensor:
        result = multiply(*operands)
        shapes.append(tuple(result.shape))
        return result

    monkeypatch.setattr(torch_onednn, "_multiply", seen)
    return shapes


def test_kinds_are_chosen_by_the_slowest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {FORWARD: (2.0, 1.0), INPUT_GRADIENT: (2.0, 1.0), WEIGHT_GRADIENT: (1.0, 2.0)}
    elsewhere = torch.tensor([1.0, 1.5, 1.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    monkeypatch.setattr(kernels, "measure", lambda *_: {kind: LibrarySeconds(*pair) for kind, pair in here.items()})
    monkeypatch.setattr("torch.distributed.all_reduce", lambda seconds, op: seconds.copy_(seconds.maximum(elsewhere)))
    found = kernels.choose_library(0, CPU, TABLE)
    assert found.by_onednn == (FORWARD,)
    assert found.torch_speeds == {"plain": (1.5 + 2.0) / (2.0 + 2.0), "accumulated": 1.0}
    assert found.torch_speed == pytest.approx(3 / (2 / (3.5 / 4) + 1)), "of the three products of a matmul's passes"
    assert ONE_LIBRARY.torch_speed is None
    assert kernels.choose_library(0, CPU, step_tables("fp64", True)[0]) == ONE_LIBRARY
    monkeypatch.setattr(kernels, "problem_of_onednn", lambda: "it is wrong")
    assert kernels.choose_library(0, CPU, TABLE) == ONE_LIBRARY


def test_kinds_of_instructions_add_up_to_the_step_though_their_times_are_skewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = [[1.0, 1.0, 4.0], [1.0, 3.0, 1.0], [2.0, 1.0, 1.0], [1.0, 1.0, 90.0]]
    taken = iter([0.0, *(sum(each) + 0.5 for each in blocks)])  # the first warms up
    kinds, clock = iter(blocks), iter(range(8))
    runner = SimpleNamespace(step=lambda *_: next(taken), kind_seconds=lambda _: {"forward block": next(kinds)})
    monkeypatch.setattr("torch.distributed.barrier", lambda: None)
    monkeypatch.setattr(steps, "StepRunner", lambda *_: runner)
    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    (found,) = measure_steps(0, CPU, [TABLE], 2.5, ())
    assert found == {"step": pytest.approx(6.0), "forward block": pytest.approx(5.5 / 3)}


@pytest.mark.parametrize("kind", KINDS)
def test_matmuls_of_a_kind_are_timed_by_its_library(kind: str, entered: list[tuple[int, ...]]) -> None:
    operations, pool = by_onednn(torch_operations, (kind,)), weight_pool(CPU, "fp32", 2**20)
    plain_rate(Gemm(8, 5, 3), pool, Once(CPU), 0.0, operations)
    assert set(entered) == ({(8, 5)} if kind != WEIGHT_GRADIENT else set())
    entered.clear()
    accumulated_rate(Gemm(7, 5, 8, accumulates=True), pool, Once(CPU), 0.0, operations)
    assert set(entered) == ({(7, 5)} if kind == WEIGHT_GRADIENT else set())


def test_steps_are_timed_by_it_too(monkeypatch: pytest.MonkeyPatch, entered: list[tuple[int, ...]]) -> None:
    monkeypatch.setattr("torch.distributed.barrier", lambda: None)
    monkeypatch.setattr("fourfold.calibrate.steps.make_groups", lambda *_: {})
    for by_library in ((), KINDS):
        entered.clear()
        measure_steps(0, CPU, [TABLE], 0.0, by_library)
        assert bool(entered) == bool(by_library)


@pytest.mark.parametrize(("most", "measured"), [(0.0, 1), (75.0, 2), (1e3, 4)])
def test_the_choices_among_kernels_count_in_the_time_of_steps(
    most: float, measured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, runner = iter(range(0, 10_000, 10)), SimpleNamespace(step=lambda *_: 0.1, kind_seconds=lambda clock: {})
    monkeypatch.setattr("torch.distributed.barrier", lambda: None)
    monkeypatch.setattr(steps, "StepRunner", lambda *_: runner)
    monkeypatch.setattr(steps, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    found = measure_steps(0, CPU, [TABLE] * 4, 0.0, (), most=most)
    assert len(found) == measured


def test_the_file_says_which() -> None:
    table = {"cores": 1, "ranks_1": contention_profile(1)}
    for chosen, words in (((FORWARD, INPUT_GRADIENT), "fp32 (by oneDNN: forward, input gradient)"), ((), "fp32,")):
        source = describe(table, "cpu", 10**9, "fp32", "this", chosen)["source"]
        assert words in source
