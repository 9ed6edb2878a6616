"""Measurements of one device: in the time that they have; on CUDA by events, rehearsed on tensors without data."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from fourfold.calibrate import device as measuring
from fourfold.calibrate.budget import WEIGHTS, Shares
from fourfold.calibrate.clock import Meter
from fourfold.calibrate.device import OPERATORS, PROCESSOR, on_device, recorded
from fourfold.calibrate.findings import LOW_MATMULS, MATMULS
from fourfold.model import torch_operations

CUDA = torch.device("cuda")
CALL = 2e-4
"""Seconds of every call on the device that is made up here."""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "barrier", lambda: None)


class _Ticks:
    """A clock that goes on when it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_of_a_device_is_dealt_out_and_what_takes_longer_leaves_others_less() -> None:
    clock, lines = _Ticks(), list[str]()
    shares = Shares(100.0, lines.append, clock)
    first = shares.next("peaks")
    assert first == pytest.approx(100 * WEIGHTS["peaks"] / sum(WEIGHTS.values()))
    clock.now = 60.0
    shares.skip("fp8 matmuls")
    rest = [name for name in WEIGHTS if name not in ("peaks", "fp8 matmuls")]
    assert sum(map(shares.peek, rest)) == pytest.approx(40.0)
    shares.next("matmuls")
    assert lines == ["peaks, some 100 s left", "matmuls, some 40 s left"]
    clock.now = 130.0
    assert shares.next("attention") == pytest.approx(0.05), "what must be measured is, in as little time as can be"


def test_shapes_are_measured_while_there_is_time_and_the_shortest_always(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Ticks()
    monkeypatch.setattr(measuring.time, "monotonic", clock)
    done = []
    for shape, window in measuring.in_time(8.0, [0.2, 50.0, 0.1, 2.0, 0.4, 0.3], lambda seconds: seconds):
        done.append(shape)
        clock.now += shape + window
    assert sorted(done) == [0.1, 0.2, 0.3, 0.4], "the long ones would take most of the time"
    assert clock.now <= 8.0 + 0.4
    assert [shape for shape, _ in measuring.in_time(0.0, [5.0, 3.0], lambda seconds: seconds)] == [3.0]


class _Event:
    """An event of a stream on which every call takes `CALL`."""

    calls = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at = 0

    def record(self) -> None:
        self.at = _Event.calls

    def synchronize(self) -> None: ...

    def elapsed_time(self, later: "_Event") -> float:
        return 1e3 * CALL * (later.at - self.at)


def _called(*_: object, **__: object) -> None:
    _Event.calls += 1


class _Graph:
    """A CUDA graph: what is called while it is captured does not run, and runs when it is replayed."""

    calls = 0

    def replay(self) -> None:
        _Event.calls += self.calls

    @contextmanager
    def capture(self, capture_error_mode: str = "global") -> Iterator[None]:
        before = _Event.calls
        yield
        self.calls, _Event.calls = _Event.calls - before, before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CUDA as far as measuring needs it: kernels are calls that are counted, tensors have no data."""
    _Event.calls = 0
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", _Graph)
    monkeypatch.setattr(torch.cuda, "graph", _Graph.capture)
    monkeypatch.setattr(measuring, "back_ends", lambda device: (torch_operations,))
    with _OnMeta():
        yield


class _OnMeta(TorchFunctionMode):
    """Tensors of a CUDA device are made without data; nothing is pinned."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = "meta"
        kwargs.pop("pin_memory", None)
        _called()
        return func(*args, **kwargs)


def test_on_cuda_calls_are_timed_by_events_whatever_the_processors_clock_says(cuda: None) -> None:
    meter = Meter(CUDA, now=lambda: pytest.fail("the processor's clock times no kernel"))
    assert meter.seconds_each(_called, 0.02) == pytest.approx(CALL)


def test_a_call_that_is_disturbed_now_and_then_takes_what_it_takes_else() -> None:
    clock, number = _Ticks(), 0

    def call() -> None:
        nonlocal number
        number += 1
        clock.now += 0.01 + 0.05 * (number % 3 == 0)

    found = [Meter(torch.device("cpu"), clock)._batch(call, 1) for _ in range(30)]
    assert sorted(found)[(len(found) - 1) // 4] == pytest.approx(0.01)


def test_every_measurement_takes_its_cuda_branch(cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = measuring.shapes_of("cuda")
    small = shapes.__class__(
        **{
            **shapes.__dict__,
            "rows": (64, 512),
            "widths": (512, 1024),
            "largest": (256, 512),
            "queries": (128, 256),
            "tokens": 256,
            "operators": ((128, 256),),
            "copied_bytes": 2**20,
            "pool_bytes": 2**22,
        }
    )
    monkeypatch.setattr(measuring, "shapes_of", lambda kind: small)
    monkeypatch.setattr(measuring, "in_time", lambda seconds, shapes, calls: [(shape, 0.0) for shape in shapes])
    peaks = measuring.measure_peaks(0, CUDA, "bf16", 0.2)
    assert list(peaks) == ["bf16", "fp32", "tf32", "fp16", "fp8"]
    assert torch.get_float32_matmul_precision() == "highest"
    assert measuring.measure_load(0, CUDA, "bf16", peaks["bf16"], 0.1)
    matmuls = measuring.measure_matmuls(0, CUDA, "bf16", 1e15, 0.3, ())
    assert {each.family for each in matmuls} == {MATMULS}
    assert {item.accumulates for each in matmuls for item in each.work.items} == {True, False}  # type: ignore[union-attr]
    assert {each.family for each in measuring.measure_low_matmuls(0, CUDA, 1e15, 0.1)} == {LOW_MATMULS}
    assert len(measuring.measure_attentions(0, CUDA, "bf16", 1e15, 0.2)) == 2 * 2 * 2


def test_memory_on_cuda_is_the_drivers_and_what_the_process_takes_beside_its_tensors(
    cuda: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = SimpleNamespace(total_memory=80 * 2**30, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (60 * 2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 19 * 2**30)
    found = measuring.measure_memory(0, CUDA, 0.1)
    assert (found.total_bytes, found.units) == (80 * 2**30, 132)
    assert found.from_host_bytes_per_second is not None
    assert found.host_launch_seconds > 0
    assert measuring.measure_context(0, CUDA) == 2**30
    launch = measuring.measure_operators(0, CUDA, "bf16", 0.1)[-1]
    assert (launch.family, launch.seconds) == ("launches", pytest.approx(CALL))


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_recorded_as_the_memory_bound_kernels_that_it_runs(name: str) -> None:
    work = recorded(name, 16, 128, is_cuda=False, dtype="fp32")
    assert work.flops == 0
    assert work.elementwise_bytes >= 4 * 16 * 128 * 2
    for _ in range(50):
        on_device(name, 16, 128, torch.device("cpu"), "fp32")()


def test_models_to_check_with_are_not_those_that_constants_are_fitted_to() -> None:
    fitted, checked = (
        [each["model"]["hidden_size"] for each in tables]
        for tables in (PROCESSOR.fitted_tables("fp32"), PROCESSOR.checked_tables("fp32"))
    )
    assert not set(fitted) & set(checked)
