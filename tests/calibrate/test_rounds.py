"""Rounds of measurements as one, and tables of them: constants are found again, ranks that take turns are slower alike."""

from typing import Any

import pytest

from fourfold.calibrate import machine
from fourfold.calibrate.budget import TimeAccount
from fourfold.calibrate.fit import PHASES
from fourfold.calibrate.kernels import Libraries
from fourfold.calibrate.machine import measure_machine
from fourfold.calibrate.rounds import LAYOUTS, TOGETHER, Measurements, drift, merged, slowest, step_tables
from fourfold.calibrate.steps import table_spec
from fourfold.cost.calibration import constants_of
from fourfold.hardware import Cluster, Device, Level
from fourfold.program import rank_view
from tests.calibrate.machine_table import contention_profile

FRAME = 2e-3
SHARE = 0.4
"""Share of their speed that four ranks on two cores keep."""


def _round(seconds: float, rate: float = 1.0) -> Measurements:
    return Measurements({"gemms": {"sizes": [8], "plain": [rate]}}, [{"step": seconds}], [], {}, [])


def test_a_disturbed_round_has_no_part_in_the_median() -> None:
    found = merged([_round(1.0, 10.0), _round(50.0, 0.2), _round(1.1, 11.0)])
    assert found.steps == [{"step": 1.1}]
    assert found.kernels == {"gemms": {"sizes": [8], "plain": [10.0]}}


def test_drift_is_what_the_slowest_round_took_longer() -> None:
    assert drift([_round(1.0), _round(1.3), _round(1.1)]) == pytest.approx(0.3)
    together = [Measurements(None, [], [[1.0], [each]], {}, []) for each in (2.0, 2.5)]
    assert drift(together) == pytest.approx(0.25)


def test_ranks_that_begin_together_have_made_a_step_when_the_last_of_them_has() -> None:
    first, second = [[[1.0, 3.0, 1.0]], [[2.0, 2.0, 6.0]]], [[[0.0, 0.0, 0.0]], [[5.0, 1.0, 1.0]]]
    assert slowest([first, second]) == [[1.0], [5.0]]


class _Group:
    """Stands for processes."""

    def __init__(self, size: int, threads: int, device: str) -> None:
        self.size, self.threads = size, threads

    def __enter__(self) -> "_Group":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(self, function: object, **options: object) -> list[Libraries]:
        return [Libraries(("forward",), {"plain": 0.9, "accumulated": 1.0})]


def _constants(ranks: int) -> Any:
    table = contention_profile(ranks)
    device = Device("this", "this", "by hand", 10**9, 1e9, {"fp32": 1e9})
    levels = (Level("loopback", "shared", max(2, ranks), 1e9, 1e-6),)
    calibration = {"cores": 2, f"ranks_{ranks}": table}
    found = constants_of(
        Cluster("this", "this", "by hand", ranks, device=device, levels=levels, calibration=calibration)
    )
    assert found is not None
    return table, found.profiles[ranks]


def _measured(
    group: _Group, dtype: str, device: str, budget: Any, alone: bool, by_library: tuple[str, ...]
) -> Measurements:
    """The measurements of a machine with the constants of `machine_table`."""
    table, constants = _constants(group.size)
    steps = []
    for each in step_tables(dtype, quick=True):
        spec = table_spec(each, 1, "cpu")
        view = rank_view(spec)
        blocks, m = 2, spec.layout.num_microbatches
        seconds: dict[str, float] = {}
        for name, (kind, op) in PHASES.items():
            segment = next(s for s in spec.segments if s.kind == kind)
            phase = view.footprints.work(segment, view.stages.policies[segment.name], op)
            seconds[name] = sum(constants.kernel(item) for item in phase.items)
        for unit, flat in view.flats.items():
            kind = view.stages.segments[unit].kind if unit in view.stages.segments else unit
            size = spec.update_bytes(flat.shard_numel)
            seconds[f"update {kind}"] = constants.update_seconds + size / constants.update_bytes_per_second
        often = {"forward block": m * blocks, "backward block": m * blocks, "update block": blocks}
        once = {"update embedding": 1, "update head": 1}
        total = sum(value * {**often, **once}.get(name, m) for name, value in seconds.items())
        steps.append({"step": total + FRAME, **seconds})
    own = steps[0]["step"]
    together = [[own]] * min(2, group.size) + [[own / 0.6], [own / SHARE]] * (group.size == 4)
    kernels = {name: table["kernels"][name] for name in ("gemms", "attention")} if alone else None
    layouts = [1.0] * len(LAYOUTS) if group.size > 1 else []
    return Measurements(kernels, steps if alone else [], together, table["links"], layouts)


def test_constants_are_found_again_and_ranks_that_take_turns_are_slower_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "Ranks", _Group)
    monkeypatch.setattr(machine, "measure_round", _measured)
    lines: list[str] = []
    found = measure_machine(
        [1, 2, 4], lambda ranks: max(1, 2 // ranks), "fp32", "cpu", TimeAccount(2.0, [1, 2, 4]), lines.append
    )
    assert len(lines) == 3
    assert found.drift == 0.0
    assert sorted(found.fits) == [1, 2]
    assert all(error < 1e-3 for error in found.fits.values())
    free, crowded = (found.calibration[f"ranks_{ranks}"] for ranks in (2, 4))
    assert all(each["kernels"]["gemms"]["torch_speeds"]["plain"] == 0.9 for each in (free, crowded))
    assert free["kernels"]["memory_bytes_per_second"] == pytest.approx(1e9, rel=0.02)
    assert free["kernels"]["update_seconds"] == pytest.approx(1e-5, rel=0.2)
    assert free["software"]["step_seconds"] == pytest.approx(FRAME, rel=0.1)
    assert crowded["software"]["relative_speeds"] == pytest.approx([1 / SHARE, 1 / SHARE, 0.6 / SHARE, 1.0], rel=1e-3)
    for name in ("memory_bytes_per_second", "update_bytes_per_second"):
        assert crowded["kernels"][name] == pytest.approx(SHARE * free["kernels"][name], rel=1e-3)
    for name in ("launch_seconds", "update_seconds"):
        assert crowded["kernels"][name] == pytest.approx(free["kernels"][name] / SHARE, rel=1e-3)
    sizes = ("gemms", "sizes"), ("attention", "queries")
    assert all(crowded["kernels"][part][key] == free["kernels"][part][key] for part, key in sizes)
    rate = free["kernels"]["gemms"]["plain"][0][0][0]
    assert crowded["kernels"]["gemms"]["plain"][0][0][0] == pytest.approx(SHARE * rate, rel=1e-3)
    assert crowded["software"]["step_seconds"] == pytest.approx(free["software"]["step_seconds"] / SHARE, rel=1e-3)


def test_ranks_that_wait_for_the_last_of_them_are_slower_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "Ranks", _Group)

    def late(*arguments: Any) -> Measurements:
        measured = _measured(*arguments)
        own = [each["step"] for each in measured.steps[TOGETHER]]
        together = [own, [1.1 * each for each in own]][: len(measured.together)]
        return Measurements(measured.kernels, measured.steps, together, measured.links, measured.layouts)

    monkeypatch.setattr(machine, "measure_round", late)
    found = measure_machine(
        [1, 2], lambda ranks: max(1, 2 // ranks), "fp32", "cpu", TimeAccount(2.0, [1, 2]), lambda text: None
    )
    alone, beside = (found.calibration[f"ranks_{ranks}"]["kernels"] for ranks in (1, 2))
    assert alone["memory_bytes_per_second"] == pytest.approx(1e9, rel=0.02)
    assert beside["memory_bytes_per_second"] == pytest.approx(1e9 / 1.1, rel=0.02)
    rates = [each["gemms"]["plain"][0][0][0] for each in (alone, beside)]
    assert rates[1] == pytest.approx(rates[0] / 1.1, rel=0.02)


def test_ranks_that_take_turns_are_never_faster_together_than_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "Ranks", _Group)

    def quick(*arguments: Any) -> Measurements:
        measured = _measured(*arguments)
        together = [[1.0], [1.0], [1.0], [1.2]][: len(measured.together)]
        return Measurements(measured.kernels, measured.steps, together, measured.links, measured.layouts)

    monkeypatch.setattr(machine, "measure_round", quick)
    found = measure_machine(
        [2, 4], lambda ranks: max(1, 2 // ranks), "fp32", "cpu", TimeAccount(2.0, [2, 4]), lambda text: None
    )
    free, crowded = (found.calibration[f"ranks_{ranks}"]["kernels"] for ranks in (2, 4))
    assert crowded["memory_bytes_per_second"] == pytest.approx(free["memory_bytes_per_second"] / 2, rel=1e-3)
