"""A rehearsed step of every layout passes, waits for the device once, and allocates and sends what its program declares."""

import functools

import pytest

from fourfold.program import lower_pipeline
from fourfold.program.instruction import Op
from fourfold.program.liveness import ledger
from fourfold.rehearse.rank import RankRehearsal
from fourfold.rehearse.run import rehearse
from tests.rehearse.layouts import FEW, LAYOUTS
from tests.rehearse.rehearsed import layout_spec
from tests.support.grid import others_are_rest

COUNTED = ("host_counts", "host_sizes")


@functools.cache
def _results(name: str) -> list[RankRehearsal]:
    spec, optimizer = layout_spec(name)
    return rehearse(spec, optimizer)


@pytest.mark.parametrize("name", others_are_rest(LAYOUTS, FEW))
def test_a_step(name: str) -> None:
    spec, _ = layout_spec(name)
    programs = lower_pipeline(spec)
    for result in _results(name):
        program = programs[result.pp_rank]
        routed = [s for s in program.instructions if s.op in (Op.FORWARD, Op.RECOMPUTE) and _routes(spec, s.segment)]
        waits = [wait for wait in result.waits if not wait.what.startswith(COUNTED)]
        assert [wait.instruction for wait in waits] == ["end"], waits
        # A dispatcher must know how many rows each rank gets, and a matmul an expert at a time how many each has.
        stay = spec.layout.ep == 1 and spec.compute == "bf16" and spec.model.capacity_factor is None
        assert len(result.waits) - 1 == (0 if stay else len(routed))
        assert result.peak_bytes == pytest.approx(program_peak(result), rel=0.05)
        declared = {axes: size for axes, size in ledger(program).items() if size}
        sent = {axes: size for axes, size in result.sent_bytes.items() if size}
        assert set(sent) == set(declared)
        if not routed:
            assert sent == declared
        assert result.copies >= 2 * spec.layout.num_microbatches  # tokens and targets, all of them from pinned memory


def program_peak(result: RankRehearsal) -> int:
    return result.predicted_peak_bytes


def _routes(spec, segment: str | None) -> bool:
    return any(each.moe for each in spec.segments if each.name == segment)


@pytest.mark.parametrize("name", ["hsdp, zero 2", "hsdp, zero 3", "tp, hsdp, zero 3"])
def test_a_reduction_of_several_phases_does_not_stop_the_computing_stream(name: str) -> None:
    for result in _results(name):
        assert not [short for short in result.joins if short.startswith("R ")]


def test_there_are_thirty() -> None:
    assert len(LAYOUTS) >= 30
