"""The views of a simulation agree with it and with each other: critical path, communication, memory over time, trace, figures."""

import json
from itertools import groupby, pairwise
from pathlib import Path

import pytest

from fourfold.config import RunFailure
from fourfold.model.work import sent_bytes
from fourfold.program import Op
from fourfold.program.liveness import ledger, memory_peak
from fourfold.simulate.critical_path import critical_path
from fourfold.simulate.memory import memory_along, memory_over_time
from fourfold.simulate.prediction import StepPrediction, predict_step
from fourfold.simulate.step import Simulation, simulate
from fourfold.simulate.summary import (
    BUSY,
    BYTES,
    EXPOSED,
    OF_GROUPS,
    StepSummary,
    collective_counts,
    level_bytes,
    traffic,
)
from fourfold.simulate.trace import COMPUTE_TRACK, trace_events, write_trace
from tests.support.opcodes import COMPUTE_OPS
from tests.support.programs import MIXTRAL, make_spec
from tests.support.simulated import free_prices, one_block_a_stage, real_prices

MODEL = {"num_layers": 6, "hidden_size": 64, "tie_embeddings": True}
LAYOUTS = {
    "one rank": {"pp": 1, "accumulation": 3},
    "1f1b": {"pp": 4, "accumulation": 6, "dp_shard": 2, "zero": 1},
    "zero 3": {"pp": 1, "accumulation": 2, "dp_shard": 16, "zero": 3},
    "interleaved": {
        **{"pp": 2, "virtual_stages": 2, "schedule": "interleaved_1f1b", "accumulation": 4},
        **{"tp": 2, "sequence_parallel": True, "zero": 2, "dp_shard": 4, "dp_replicate": 2},
    },
    "zero bubble": {"pp": 2, "virtual_stages": 2, "schedule": "zb_v", "accumulation": 5, "recompute": "full"},
    "experts": {"pp": 2, "accumulation": 4, "dp_shard": 4, "zero": 1, "ep": 4},
}


@pytest.fixture(params=LAYOUTS)
def simulation(request: pytest.FixtureRequest) -> Simulation:
    model = {**MODEL, **(MIXTRAL if request.param == "experts" else {})}
    options = LAYOUTS[request.param]
    spec = make_spec(model, sequence_length=64, transport="native", precision={"compute": "bf16"}, **options)
    return simulate(spec, real_prices(spec))


def test_the_critical_path_is_a_chain_from_start_to_end(simulation: Simulation) -> None:
    """Each part begins where the one before ends; the reasons sum to the makespan."""
    links = critical_path(simulation).links
    assert links[0].start == 0.0
    assert links[-1].end == simulation.times.makespan
    for before, after in pairwise(links):
        assert before.end == after.start
    for link in links:
        assert sum(seconds for _, seconds in link.reasons) == pytest.approx(link.end - link.start, rel=1e-9, abs=1e-15)
    assert sum(critical_path(simulation).reasons.values()) == pytest.approx(simulation.times.makespan)
    assert "waiting" not in critical_path(simulation).reasons  # every wait has a cause that is named


def test_computation_alone_is_its_own_critical_path() -> None:
    spec = make_spec(MODEL, accumulation=3)
    found = simulate(spec, real_prices(spec))
    path = critical_path(found)
    assert path.crossings == 0
    assert {link.rank for link in path.links} == {0}
    steps = found.programs[0].instructions
    took = [
        i for i, (a, b) in enumerate(zip(found.times.ranks[0].starts, found.times.ranks[0].ends, strict=True)) if b > a
    ]
    assert [link.index for link in path.links] == took
    assert any(steps[i].op is Op.UPDATE for i in took)


def test_a_pipeline_s_critical_path_goes_down_and_up_again() -> None:
    """One microbatch: through all ranks forward, then back."""
    spec = one_block_a_stage("1f1b", 4, 1, 1)
    path = critical_path(simulate(spec, free_prices(spec)))
    visited = [rank for rank, _ in groupby(link.rank for link in path.links)]
    assert visited[:7] == [0, 1, 2, 3, 2, 1, 0]


def test_what_is_sent_is_the_ledger_s_and_no_more_is_exposed_than_busy(simulation: Simulation) -> None:
    for program, sums, spent in zip(simulation.programs, traffic(simulation), simulation.spent, strict=True):
        sent = {axes: size for (axes, what), size in sums.items() if what == BYTES}
        assert sent == {axes: size for axes, size in ledger(program).items() if size}
        for (axes, what), seconds in sums.items():
            if what == EXPOSED and axes != "pp":  # what a receiver waits for counts as busy at the sender
                assert seconds <= sums[axes, BUSY] * (1 + 1e-9)
        inside = sum(seconds for kind, seconds in spent.items() if kind.startswith("exposed "))
        axes = {a for p in program.instructions if p.op in COMPUTE_OPS for c in p.collectives for a in [c.axes]}
        assert inside <= sum(sums.get((a, EXPOSED), 0.0) for a in axes) * (1 + 1e-9)


def test_every_byte_that_is_sent_goes_through_one_level(simulation: Simulation) -> None:
    for program, sums in zip(simulation.programs, level_bytes(simulation), strict=True):
        by_axes: dict[str, float] = {}
        for (axes, _), size in sums.items():
            by_axes[axes] = by_axes.get(axes, 0.0) + size
        assert by_axes == pytest.approx({axes: size for axes, size in ledger(program).items() if size})
    summary = StepSummary(StepPrediction(simulation.seconds, simulation), simulation.spec.layout.num_microbatches)
    names = {name: sum(link.sent_bytes.get(name, 0.0) for link in summary.links) for name in by_axes}
    sent = {each.axes: each.sent_bytes for each in summary.communication if each.axes in names}
    assert names == pytest.approx(sent)


def test_collectives_are_those_of_the_programs_and_send_their_bytes(simulation: Simulation) -> None:
    for program, counts in zip(simulation.programs, collective_counts(simulation), strict=True):
        sent = dict[str, int]()
        for each in (found for p in program.instructions for found in p.collectives if found.kind in OF_GROUPS):
            sent[each.axes] = sent.get(each.axes, 0) + each.sent_bytes
        sizes = dict[str, float]()
        layout = simulation.spec.layout
        for (axes, kind, size), number in counts.items():
            ranks = len(layout.group_of(0, tuple(axes.split("+"))))
            sizes[axes] = sizes.get(axes, 0.0) + number * sent_bytes(kind, size, ranks)
        assert sizes == {axes: size for axes, size in sent.items() if size}
    summary = StepSummary(StepPrediction(simulation.seconds, simulation), simulation.spec.layout.num_microbatches)
    for each in summary.communication:
        assert each.ranks == len(layout.group_of(0, tuple(each.axes.split("+")))) >= each.ranks_per_node >= 1
        assert all(kind.number > 0 and kind.buffer_bytes > 0 for kind in each.collectives)


@pytest.mark.parametrize("spans", [1, 7, 120, 10_000])
def test_memory_over_time_has_the_peak_of_the_program(simulation: Simulation, spans: int) -> None:
    for rank in range(len(simulation.programs)):
        curve = memory_over_time(simulation, rank, spans)
        peak = simulation.peaks[rank]
        assert max(curve.bytes) == peak.bytes
        assert len(curve.bytes) == len(curve.ends) <= spans
        assert curve.ends[-1] == pytest.approx(simulation.times.makespan)
        for span in range(len(curve.bytes)):
            assert sum(sizes[span] for sizes in curve.by_kind.values()) == curve.bytes[span]
        at_peak = {kind: sizes[curve.peak] for kind, sizes in curve.by_kind.items() if sizes[curve.peak]}
        assert at_peak == {kind: size for kind, size in peak.by_kind().items() if size}


def test_what_is_held_stays_when_no_instruction_begins_any_more(simulation: Simulation) -> None:
    starts = simulation.times.ranks[0].starts
    curve = memory_along(simulation.programs[0], starts, 3 * max(starts), 30)
    assert len(set(curve.bytes[11:])) == 1
    assert curve.bytes[-1] > 0
    assert sum(sizes[-1] for sizes in curve.by_kind.values()) == curve.bytes[-1]


def test_no_kind_of_memory_is_below_zero() -> None:
    """An input gradient lets go of what its forward saved before all that its weight gradient needs is there."""
    spec = make_spec(MODEL, sequence_length=64, pp=2, schedule="zb_h1", accumulation=4)
    found = simulate(spec, free_prices(spec))
    assert min(step.workspace_bytes for step in found.programs[0].instructions) < 0
    for rank in range(2):
        curve = memory_over_time(found, rank, 10_000)
        assert min(min(sizes) for sizes in curve.by_kind.values()) >= 0
        assert [sum(each) for each in zip(*curve.by_kind.values(), strict=True)] == list(curve.bytes)
        peak = memory_peak(found.programs[rank])
        assert min(peak.by_kind().values()) >= 0
        assert sum(peak.by_kind().values()) == peak.bytes


def test_a_trace_is_what_was_simulated(simulation: Simulation, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    count = write_trace(simulation, path)
    events = json.loads(path.read_text())["traceEvents"]
    assert len(events) == count
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]
    spans = [e for e in events if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(1e6 * simulation.times.makespan)
    for rank, times in enumerate(simulation.times.ranks):
        own = [e for e in spans if e["pid"] == rank and e["tid"] == COMPUTE_TRACK]
        assert len(own) == sum(b > a for a, b in zip(times.starts, times.ends, strict=True))
        assert all(a["ts"] + a["dur"] <= b["ts"] * (1 + 1e-12) + 1e-9 for a, b in pairwise(own))
        carried = [e for e in spans if e["pid"] == rank and e["tid"] > COMPUTE_TRACK]
        steps = simulation.programs[rank].instructions
        assert len(carried) == sum(b > a for i, (a, b) in times.streams.items() if steps[i].stream != "compute")
        most = max(e["args"]["bytes"] for e in events if e["ph"] == "C" and e["pid"] == rank)
        assert most == simulation.peaks[rank].bytes
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in spans} <= named


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    spec = make_spec(MODEL)
    found = simulate(spec, real_prices(spec))
    with pytest.raises(RunFailure, match="--trace"):
        write_trace(found, tmp_path / "none" / "trace.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunFailure, match="--trace"):
        write_trace(found, tmp_path / "folder")
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]
    assert len(list(trace_events(found))) > 10


def test_figures_of_a_step_hold_together(simulation: Simulation) -> None:
    spec = simulation.spec
    summary = StepSummary(predict_step(spec, simulation.prices), spec.layout.num_microbatches)
    layout = spec.layout
    assert summary.tokens == layout.num_microbatches * layout.microbatch_sequences * layout.data_degree * 64
    assert summary.mfu * summary.peak_flops_per_second * layout.world_size * summary.seconds == pytest.approx(
        summary.flops_per_token * summary.tokens
    )
    assert summary.mfu > 0
    assert 0 < summary.hfu < 1
    assert all(sum(rank.values()) == pytest.approx(summary.seconds) for rank in summary.spent)
    assert sum(summary.path.values()) == pytest.approx(summary.seconds)
    assert 0 <= summary.bubble_fraction < 1


def test_many_microbatches_sum_up_like_few() -> None:
    """Along the straight line, what ranks spend and what makes the critical path still sum to the step."""
    spec = make_spec(MODEL, pp=2, accumulation=64, dp_shard=2, zero=3, transport="native")
    prices = real_prices(spec)
    predicted = StepSummary(predict_step(spec, prices), 64)
    found = simulate(spec, prices)
    full = StepSummary(StepPrediction(found.seconds, found), 64)
    assert not predicted.step.is_full
    assert predicted.seconds == pytest.approx(full.seconds, rel=1e-3)
    assert predicted.executed_flops == pytest.approx(full.executed_flops)
    assert sum(predicted.path.values()) == pytest.approx(predicted.seconds)
    for ours, theirs in zip(predicted.communication, full.communication, strict=True):
        assert (ours.axes, ours.sent_bytes) == (theirs.axes, pytest.approx(theirs.sent_bytes, rel=1e-3))
