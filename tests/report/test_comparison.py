"""A run whose ranks measured what was predicted, but for what a test changes: the report finds the change and nothing else."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fourfold.config import UserError, dump_run, parse_run
from fourfold.hardware import load_cluster
from fourfold.launch.resolve import ResolvedRun, resolve_run
from fourfold.launch.run_folder import RunFolder
from fourfold.program import lower_pipeline, memory_peak, rank_view
from fourfold.program.kinds import instruction_kinds, seconds_by_kind
from fourfold.program.liveness import ledger
from fourfold.program.stage_map import stage_map
from fourfold.report.format_comparison import comparison_lines
from fourfold.report.run_trace import write_run_trace
from fourfold.report.side_by_side import measured_side
from fourfold.report.units import format_bytes
from fourfold.results.comparison import compare
from fourfold.results.step_timeline import comparison_document
from fourfold.runtime.clock import TimedStep
from fourfold.simulate.run_prices import prices_for
from fourfold.simulate.step import Simulation, simulate
from fourfold.train.measured import RankMeasured, measured_path, rank_measured, read_measured, write_measured

CLUSTER = "dgx-h100:8"
RUN = {
    "model": {"num_layers": 4, "hidden_size": 64, "num_heads": 4, "ffn_size": 128, "vocab_size": 256},
    "data": {"corpus": "texts"},
    "batch": {"global_sequences": 8, "sequence_length": 32, "steps": 10},
    "layout": {"pp": 2, "schedule": "1f1b", "dp_shard": 2, "zero": 3, "microbatch_sequences": 1},
}


def resolved() -> ResolvedRun:
    return resolve_run(parse_run(RUN), None, None)


def simulated(run: ResolvedRun) -> Simulation:
    return simulate(run.spec, prices_for(run.config, run.spec, load_cluster(CLUSTER)))


def as_predicted(folder: Path, stretch: dict[str, float] | None = None, rank_changed: int | None = None) -> RunFolder:
    """A run's folder in which every rank measured what is predicted; `stretch`: seconds more for every instruction of a kind."""
    run = resolved()
    simulation = simulated(run)
    folder.mkdir()
    (folder / "run.toml").write_text(dump_run(run.config))
    for rank in range(run.layout.world_size):
        pp = run.layout.coordinates(rank)["pp"]
        program, view = simulation.programs[pp], rank_view(run.spec, pp)
        kinds = instruction_kinds(program, view.stages.segments)
        more = stretch if stretch and rank_changed in (None, rank) else {}
        ends, late = [], 0.0
        for kind, end in zip(kinds, simulation.times.ranks[pp].ends, strict=True):
            late += more.get(kind, 0.0)
            ends.append(end + late)
        full = max(simulation.seconds, ends[-1])
        steps = [TimedStep(number, 1000.0 + number, full, tuple(ends)) for number in (7, 8, 9)]
        peak = memory_peak(program).bytes
        write_measured(folder, rank_measured(view, program, rank, "cpu", steps, ledger(program), peak))
    return RunFolder(folder)


def changed(folder: RunFolder, rank: int, /, **values: object) -> None:
    path = measured_path(folder.path, rank)
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_what_was_measured_as_predicted_has_no_difference(tmp_path: Path) -> None:
    found = compare(as_predicted(tmp_path / "run"), CLUSTER)
    assert found.error == pytest.approx(0.0, abs=1e-12)
    assert found.differences == []
    assert [rank.measured.rank for rank in found.ranks] == [0, 1, 2, 3]
    for rank in found.ranks:
        assert rank.sent_equal
        assert rank.predicted_peak == rank.measured.peak_memory_bytes
        assert sum(kind.measured for kind in rank.kinds) == pytest.approx(rank.measured.step_seconds)
        assert sum(kind.predicted or 0.0 for kind in rank.kinds) == pytest.approx(found.predicted_seconds)
    assert "equal on every rank and axis" in "\n".join(comparison_lines(found))


def test_a_kind_that_took_longer_on_one_rank_is_named_with_that_rank(tmp_path: Path) -> None:
    second = 1.0
    found = compare(as_predicted(tmp_path / "run", {"forward block": second}, rank_changed=3), CLUSTER)
    first = found.differences[0]
    count = next(kind.count for kind in found.ranks[3].kinds if kind.kind == "forward block")
    assert (first.kind, first.rank) == ("forward block", 3)
    assert first.rank_seconds == pytest.approx(count * second)
    assert first.seconds == pytest.approx(count * second / 4)
    text = "\n".join(comparison_lines(found))
    assert "largest differences\n  forward block" in text
    assert "most on rank 3 (8.00 s more)" in text
    document = comparison_document(found)
    assert document["differences"][0]["kind"] == "forward block"
    assert len(document["ranks"]) == 4
    json.dumps(document, allow_nan=False)


def test_bytes_that_differ_are_named(tmp_path: Path) -> None:
    folder = as_predicted(tmp_path / "run")
    counted = read_measured(folder.path)[2].sent_bytes
    changed(folder, 2, sent_bytes={**counted, "pp": counted["pp"] + 1})
    found = compare(folder, CLUSTER)
    assert [rank.sent_equal for rank in found.ranks] == [True, True, False, True]
    assert "different on rank 2" in "\n".join(comparison_lines(found))
    assert [rank["sent_bytes_equal"] for rank in comparison_document(found)["ranks"]] == [True, True, False, True]


def test_without_a_cluster_bytes_and_memory_are_still_compared(tmp_path: Path) -> None:
    found = compare(as_predicted(tmp_path / "run"))
    assert found.predicted_seconds is None
    text = "\n".join(comparison_lines(found))
    assert "fourfold calibrate" in text
    assert "equal on every rank and axis" in text
    assert "fourfold calibrate" in comparison_document(found)["why_not_predicted"]


def test_where_nothing_measured_the_peak_the_predicted_one_stands_alone(tmp_path: Path) -> None:
    folder = as_predicted(tmp_path / "run")
    changed(folder, 1, peak_memory_bytes=None)
    changed(folder, 2, peak_memory_bytes=1_000)
    found = compare(folder)
    assert "measured 1.00 kB on rank 2, which is furthest off" in "\n".join(comparison_lines(found))
    assert measured_side("run", folder, None, None).figures["memory_bytes"] > 1_000
    for rank in range(4):
        changed(folder, rank, peak_memory_bytes=None)
    found = compare(folder)
    text = "\n".join(comparison_lines(found))
    assert f"predicted {format_bytes(max(rank.predicted_peak for rank in found.ranks))} at most; not measured" in text
    assert [rank["measured_peak_bytes"] for rank in comparison_document(found)["ranks"]] == [None] * 4
    assert measured_side("run", folder, None, None).figures["memory_bytes"] is None


def test_a_missing_rank_and_another_program_are_noted(tmp_path: Path) -> None:
    folder = as_predicted(tmp_path / "run")
    measured_path(folder.path, 1).write_text('{"rank": 1, "steps": "many"}')
    changed(folder, 0, program="0123")
    notes = " ".join(compare(folder, CLUSTER).notes)
    assert "ranks 1 have measured nothing" in notes
    assert "rank 0 ran another program" in notes
    assert "not the same machine" in notes


@pytest.mark.parametrize(
    "damage",
    [
        {"step_seconds": -1.0},
        {"rank": True},
        {"kinds": {"forward block": {"count": 2}}},
        {"kinds": []},
        {"sent_bytes": {"pp": 1.5}},
        {"timeline": {"step": 1, "begun": 0.0, "ends": ["soon"]}},
        {"timeline": {}},
    ],
)
def test_a_damaged_file_is_no_measurement(tmp_path: Path, damage: dict) -> None:
    folder = as_predicted(tmp_path / "run")
    changed(folder, 0, **damage)
    assert [each.rank for each in read_measured(folder.path)] == [1, 2, 3]


def test_a_run_without_measurements_says_what_it_needs(tmp_path: Path) -> None:
    folder = as_predicted(tmp_path / "run")
    for rank in range(4):
        measured_path(folder.path, rank).unlink()
    with pytest.raises(UserError, match="two steps and a save"):
        compare(folder, CLUSTER)


def test_the_files_of_an_earlier_launch_with_other_ranks_do_not_count(tmp_path: Path) -> None:
    folder = as_predicted(tmp_path / "run")
    old = read_measured(folder.path)[3]
    write_measured(folder.path, replace(old, rank=7, world_size=8, last_step=3))
    assert len(compare(folder, CLUSTER).ranks) == 4


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    run = resolved()
    program = lower_pipeline(run.spec)[1]
    ends = tuple(0.5 * (index + 1) for index in range(len(program.instructions)))
    steps = [TimedStep(n, 12.5, seconds, ends) for n, seconds in enumerate((3.0, 1.0, 2.0))]
    measured = rank_measured(rank_view(run.spec, 1), program, 2, "cpu", steps, {"pp": 10}, 99)
    assert measured.timeline is not None
    assert measured.step_seconds == 2.0
    write_measured(tmp_path, measured)
    assert read_measured(tmp_path) == [measured]
    other: RankMeasured = rank_measured(rank_view(run.spec, 1), program, 3, "cpu", steps, {"pp": 10}, 99)
    assert other.timeline is None


def test_timelines_are_the_step_as_it_ran_and_as_it_was_predicted(tmp_path: Path) -> None:
    found = compare(as_predicted(tmp_path / "run"), CLUSTER)
    document = comparison_document(found)
    assert [each["pp_rank"] for each in document["timelines"]] == [0, 1]
    for each, program in zip(document["timelines"], found.programs, strict=True):
        assert each["instructions"] == [step.short for step in program.instructions]
        measured, predicted = each["measured"], each["predicted"]
        assert measured["ends"] == pytest.approx(predicted["ends"], abs=1e-6)
        assert measured["starts"][0] == 0.0
        for timeline in (measured, predicted):
            assert [begin for _, begin, _, _ in timeline["streams"]] == sorted(
                begin for _, begin, _, _ in timeline["streams"]
            )
            for index, begin, end, stream in timeline["streams"]:
                assert stream == program.instructions[index].stream != "compute"
                assert timeline["starts"][index] - 1e-6 <= begin < end
        joined = {index: end for index, _, end, _ in measured["streams"]}
        for index, _, end, _ in predicted["streams"]:
            assert end <= joined[index] + 1e-6  # a join comes after what it joins


def test_memory_over_a_measured_step_has_the_programs_peak(tmp_path: Path) -> None:
    found = compare(as_predicted(tmp_path / "run"))
    curves = comparison_document(found)["memory_over_time"]
    assert [max(curve["bytes"]) for curve in curves] == [memory_peak(program).bytes for program in found.programs]
    for curve in curves:
        for span, size in enumerate(curve["bytes"]):
            assert sum(kind[span] for kind in curve["by_kind_bytes"].values()) == size


def test_the_trace_has_both_steps(tmp_path: Path) -> None:
    found = compare(as_predicted(tmp_path / "run"), CLUSTER)
    path = tmp_path / "trace.json"
    count = write_run_trace(found, path)
    events = json.loads(path.read_text())["traceEvents"]
    assert count == len(events)
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert [name.partition(":")[0] for name in names] == [
        "pipeline rank 0, measured",
        "pipeline rank 1, measured",
        "pipeline rank 0, predicted",
        "pipeline rank 1, predicted",
    ]


def test_kinds_of_every_instruction_take_the_full_program() -> None:
    run = resolved()
    simulation = simulated(run)
    for program, times in zip(simulation.programs, simulation.times.ranks, strict=True):
        kinds = instruction_kinds(program, stage_map(run.spec).segments)
        found = seconds_by_kind(kinds, times.ends)
        assert sum(map(sum, found.values())) == pytest.approx(times.ends[-1])
        assert sum(map(len, found.values())) == len(program.instructions)
    assert {"forward block", "wait for gather block", "wait for recv activation", "clip norm"} <= set(kinds)
