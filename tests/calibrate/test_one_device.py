"""All of `calibrate --device` on a synthetic GPU: its constants and steps are found again, and its file says so."""

from collections.abc import Callable
from typing import Any

import pytest

from fourfold.calibrate import one_device as measuring
from fourfold.calibrate.budget import Shares
from fourfold.calibrate.device import GPU
from fourfold.calibrate.findings import LOW_MATMULS, MATMULS, PASSES, DeviceMemory, Sample
from fourfold.calibrate.fit import PHASES
from fourfold.calibrate.kernels import Libraries
from fourfold.calibrate.steps import table_spec
from fourfold.config import parse_run
from fourfold.cost.phase import phase_cost
from fourfold.hardware import one_device, parse_device
from fourfold.model.work import Gemm, Work
from fourfold.program.view import rank_view
from fourfold.report.format_device import device_text, screen
from fourfold.simulate.run_prices import prices_for
from fourfold.simulate.step import simulate
from tests.calibrate.synthetic_device import A_GPU, TRUE, run_of, samples_of


class _Rank:
    """Answers as the rank of the synthetic GPU would; notes what is asked of it."""

    asked: list[str]

    def __init__(self, size: int, threads: int, device: str) -> None:
        assert (size, device) == (1, "cuda")
        _Rank.asked = []

    def __enter__(self) -> "_Rank":
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, function: Callable[..., Any], **options: Any) -> list[Any]:
        _Rank.asked.append(function.__name__)
        samples = samples_of(A_GPU, run_of("bf16"), GPU)
        answers: dict[str, Callable[[], Any]] = {
            "measure_context": lambda: 600_000_000,
            "measure_peaks": lambda: {"bf16": 600e12, "fp8": 1400e12},
            "choose_library": lambda: Libraries(("forward",), {"plain": 0.8, "accumulated": 1.0}),
            "measure_load": lambda: [690e12, 700e12, 640e12, 630e12],
            "measure_matmuls": lambda: [each for each in samples if each.family == MATMULS],
            "measure_low_matmuls": lambda: [Sample(LOW_MATMULS, Work((Gemm(8192, 8192, 8192),)), 1.5e-3)],
            "measure_attentions": lambda: [each for each in samples if each.family == "attention"],
            "measure_operators": lambda: [each for each in samples if each.family in ("operators", "launches")],
            "measure_memory": lambda: DeviceMemory(80 * 2**30, 3e12, 50e9, 0.0, 132),
            "measure_steps": lambda: [_step(table) for table in options["tables"]],
        }
        return [answers[function.__name__]()]


def _step(table: dict[str, Any]) -> dict[str, float]:
    """Seconds of a step of the synthetic GPU and of the kinds of its instructions."""
    spec = table_spec(table, 1, "cuda")
    prices, view = prices_for(parse_run(dict(table)), spec, one_device(A_GPU)), rank_view(spec)
    found = {"step": simulate(spec, prices).seconds}
    for name, (kind, op) in PHASES.items():
        segment = next(each for each in view.segments if each.kind == kind)
        work = view.footprints.work(segment, view.stages.policies[segment.name], op)
        found[name] = phase_cost(work, prices).seconds
    return found


def test_a_gpu_is_measured_fitted_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "Ranks", _Rank)
    lines: list[str] = []
    found = measuring.measure_device("A GPU", "cuda", 1, 10**9, "bf16", Shares(100.0, lines.append))
    assert _Rank.asked.count("measure_context") == 2, "the driver loads kernels while they are measured"
    assert len(found.checks) == len(GPU.checked_tables("bf16"))
    assert all(abs(check.error) < 0.03 and 0 < check.mfu < 1 for check in found.checks), found.checks
    assert {each.family for each in found.residuals} >= {PASSES, LOW_MATMULS, "launches"}
    assert found.throttled == pytest.approx(0.0857, abs=1e-3)
    device = found.device
    assert device.peak_flops_per_second == {"bf16": 700e12, "fp8": 1400e12}, "the load was faster than the search"
    assert (device.memory_bytes, device.units, device.context_bytes) == (80 * 2**30, 132, 600_000_000)
    for name in ("gemm_share", "attention_share", "memory_share", "launch_seconds"):
        assert device.kernels[name] == pytest.approx(TRUE[name], rel=0.06), name
    assert 0.5 < device.kernels["low_share"] < 1.1
    text = device_text(found, "mine.toml", "synthetic")
    again = parse_device(text, "mine.toml")
    assert again.kernels == device.kernels
    assert again.peak("bf16") == 700e12
    assert again.torch_matmul_speed == pytest.approx(3 / (2 / 0.8 + 1), rel=1e-3)
    assert again.host_bytes_per_second == pytest.approx(50e9, rel=0.01)
    assert any("9 % lost" in line for line in screen(found))


def test_without_fp8_its_time_goes_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(_Rank):
        def run(self, function: Callable[..., Any], **options: Any) -> list[Any]:
            if function.__name__ == "measure_peaks":
                return [{"bf16": 700e12}]
            return super().run(function, **options)

    monkeypatch.setattr(measuring, "Ranks", Older)
    lines: list[str] = []
    found = measuring.measure_device("A GPU", "cuda", 1, 10**9, "bf16", Shares(100.0, lines.append))
    assert "measure_low_matmuls" not in _Rank.asked
    assert "low_share" not in found.device.kernels
    assert not any("fp8" in line for line in lines)


def test_models_too_large_for_the_memory_or_the_time_are_left_out() -> None:
    tables = GPU.fitted_tables("bf16")
    most = [each["model"]["hidden_size"] for each in measuring._affordable(tables, "cuda", 7e14, 80 * 2**30, 60.0)]
    assert set(most) == {2048, 4096}
    small = [each["model"]["hidden_size"] for each in measuring._affordable(tables, "cuda", 7e14, 16 * 2**30, 60.0)]
    assert set(small) == {2048}
    assert measuring._affordable(tables, "cuda", 7e14, 80 * 2**30, 0.0) == tables[:1]
