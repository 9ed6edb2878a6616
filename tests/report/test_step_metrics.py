"""Laws of a run's numbers in memory of one size: no peak is lost, nothing grows with the run, whatever the file went through."""

import json
import os
import random
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fourfold.launch.run_folder import RunFolder
from fourfold.report.run_files import KEPT_EVENTS, RunRecord
from fourfold.report.step_metrics import BINS, MOST_POINTS, StepMetrics, thinned
from fourfold.results.goodput import goodput

BLOCK = 500


def row(step: int, seed: int = 0) -> dict:
    """A row like a run's, with a spike now and then."""
    loss = 50.0 + step / 1e6 if step % 7_919 == 5 else 3 + random.Random(step + seed).random()
    values = {
        "step": step,
        "loss": loss,
        "step_seconds": 0.5 + (step % 7) / 16,
        "tokens": step,
        "comm_bytes": {"dp": 1},
    }
    return {**values, "validation_loss": 2.5} if step % 1_000 == 999 else values


def write(path: Path, first: int, last: int, seed: int = 0) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row(step, seed)) + "\n" for step in range(first, last))


def taken(rows: list[dict], parts: int = 1, **options) -> StepMetrics:
    metrics = StepMetrics(**options)
    size = max(1, len(rows) // parts)
    for first in range(0, len(rows), size):
        metrics.add(rows[first : first + size])
    return metrics


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return [row(step) for step in range(5 * BINS + 123)]


@pytest.mark.parametrize("parts", [1, 7, 1000])
def test_a_long_runs_bins_hold_each_ones_least_most_sum_and_count(rows, parts: int) -> None:
    metrics = taken(rows, parts)
    assert metrics.width == 8
    losses = np.array([each["loss"] for each in rows])
    column = metrics.columns["loss"]
    for number in range(0, len(rows) // 8, 97):
        part = losses[8 * number : 8 * number + 8]
        assert (column.least[number], column.most[number]) == (part.min(), part.max())
        assert column.least_step[number] == 8 * number + part.argmin()
        assert column.most_step[number] == 8 * number + part.argmax()
        assert column.total[number] == pytest.approx(part.sum())
        assert column.count[number] == len(part)
    assert metrics.num_steps == len(rows)
    assert metrics.columns["validation_loss"].count.sum() == len(rows) // 1000
    assert sum(each["step_seconds"] for each in metrics.step_times()) == pytest.approx(
        sum(each["step_seconds"] for each in rows)
    )


def test_a_curve_keeps_its_ends_and_every_spike_and_says_how_many_there_are(rows) -> None:
    for steps in (BINS // 2, len(rows)):
        curve = taken(rows[:steps]).curve("loss", 0, steps)
        points = dict(zip(curve.steps, curve.values, strict=True))
        assert curve.steps == sorted(points)
        assert len(points) <= MOST_POINTS + 2
        assert curve.num_values == steps
        assert {0, steps - 1} <= set(points)
        for spike in range(5, steps, 7_919):
            assert points[spike] == pytest.approx(rows[spike]["loss"])
        assert min(points.values()) == pytest.approx(min(each["loss"] for each in rows[:steps]))


@pytest.mark.parametrize("most", [4, 100, 1200])
def test_thinning_keeps_each_spans_least_and_most_and_both_ends(most: int) -> None:
    draw = np.random.default_rng(most)
    steps, values = np.cumsum(draw.integers(1, 9, 10_007)), draw.normal(size=10_007)
    kept, points = thinned(steps, values, most)
    assert len(kept) <= most + 2
    assert (kept[0], kept[-1]) == (steps[0], steps[-1])
    stands, spans = set(zip(kept.tolist(), points.tolist(), strict=True)), most // 2
    for number in range(spans):
        part = slice(number * len(steps) // spans, (number + 1) * len(steps) // spans)
        lowest, highest = values[part].argmin(), values[part].argmax()
        assert {(steps[part][index], values[part][index]) for index in (lowest, highest)} <= stands
    assert stands <= set(zip(steps.tolist(), values.tolist(), strict=True)), "every point is one of the run"
    assert thinned(steps[:most], values[:most], most)[0].tolist() == steps[:most].tolist()


def held_bytes(steps: int, events: int, folder: Path) -> int:
    """Memory that a record of a run holds, followed as it grows."""
    run = RunFolder(folder)
    folder.mkdir()
    tracemalloc.start()
    record = RunRecord(run)
    for first in range(0, steps, BLOCK):
        write(run.metrics, first, min(steps, first + BLOCK))
        record.refresh()
    for first in range(0, events, BLOCK):
        with run.events.open("a") as file:
            file.writelines(
                json.dumps({"time": 1.0 + each, "event": "save", "step": each, "seconds": 0.1}) + "\n"
                for each in range(first, min(events, first + BLOCK))
            )
        record.refresh()
    assert record.metrics.last_step == steps - 1
    assert record.num_events == events
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return held


@pytest.mark.parametrize(("steps", "events"), [(2000, 100), (100, 2 * KEPT_EVENTS)], ids=["steps", "events"])
def test_a_records_memory_does_not_grow_with_the_run(tmp_path: Path, monkeypatch, steps: int, events: int) -> None:
    """A supervisor's record is compared after N and 10 N steps, and N and 3 N events, once its bins are made."""
    monkeypatch.setattr("fourfold.report.step_metrics.BINS", 256)
    more = (10 * steps, events) if events == 100 else (steps, 3 * events)
    once, many = held_bytes(steps, events, tmp_path / "a"), held_bytes(*more, tmp_path / "b")
    assert many < 1.05 * once + 30_000


def record_of(folder: Path) -> RunRecord:
    record = RunRecord(RunFolder(folder))
    record.refresh()
    return record


def check_equal(found: StepMetrics, rows: list[dict]) -> None:
    """Bin by bin what the rows alone give, in bins as coarse."""
    expected = taken(rows)
    while expected.width < found.width:
        expected.width *= 2
        for column in expected.columns.values():
            column.halve()
    assert (found.last_step, found.last_row) == (expected.last_step, expected.last_row)
    for key, column in expected.columns.items():
        size = int(np.flatnonzero(column.count)[-1]) + 1
        for name in ("least", "most", "least_step", "most_step", "count"):
            own, others = getattr(found.columns[key], name), getattr(column, name)
            assert own[:size].tolist() == others[:size].tolist(), (key, name)
        assert not found.columns[key].count[size:].any()
        assert found.columns[key].total[:size] == pytest.approx(column.total[:size])
        assert found.columns[key].last == column.last


@pytest.mark.grid(1)
@pytest.mark.parametrize("back", [1, 3_001, 20_000, 2 * BINS + 1])
@pytest.mark.parametrize("how", ["cut", "replaced", "written behind"])
def test_steps_that_are_trained_again_replace_what_followed(tmp_path: Path, monkeypatch, back: int, how: str) -> None:
    """A record that has followed a run through a restart equals one that reads what is left from its start."""
    monkeypatch.setattr("fourfold.report.run_files._PLACE_BYTES", 2**16)
    monkeypatch.setattr("fourfold.config.json_lines._BLOCK_BYTES", 2**16)
    if how != "written behind":  # that a run's own files need no second reading, however often it is started again
        monkeypatch.setattr("fourfold.report.step_metrics._MOST_READ_AGAIN", 0)
    path, steps = tmp_path / "metrics.jsonl", 2 * BINS + 777
    write(path, 0, steps)
    followed = record_of(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    left = b"".join(lines[: steps - back])
    if how == "cut":
        os.truncate(path, len(left))
    elif how == "replaced":
        (tmp_path / "new").write_bytes(left)
        (tmp_path / "new").replace(path)
    if back == 3_001 and how == "cut":
        followed.refresh()  # a look between the cut and what follows it
        assert followed.metrics.last_step == steps - back - 1
    write(path, steps - back, steps - back + 50, seed=1)
    followed.refresh()
    check_equal(
        followed.metrics, [row(step, 1) if step >= steps - back else row(step) for step in range(steps - back + 50)]
    )


def test_a_part_of_a_long_run_is_drawn_from_its_rows(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fourfold.report.run_files._PLACE_BYTES", 2**16)
    monkeypatch.setattr("fourfold.config.json_lines._BLOCK_BYTES", 2**16)
    write(tmp_path / "metrics.jsonl", 0, 3 * BINS)
    record = record_of(tmp_path)
    assert record.metrics.width == 4
    curve = record.curves(30_001, 30_700)["loss"]
    assert (curve.steps, curve.num_values) == (list(range(30_001, 30_701)), 700)
    assert curve.values == pytest.approx([row(step)["loss"] for step in curve.steps])
    coarse = record.curves(1_000, 45_000)["loss"]
    assert min(coarse.steps) >= 1_000
    assert max(coarse.steps) <= 45_000
    assert max(coarse.values) == pytest.approx(max(row(step)["loss"] for step in range(1_000, 45_001)))


def test_a_record_reads_some_blocks_at_a_time_and_says_that_it_is_behind(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("fourfold.config.json_lines._BLOCK_BYTES", 2**16)
    write(tmp_path / "metrics.jsonl", 0, 5_000)
    record, looks = RunRecord(RunFolder(tmp_path)), 0
    while record.refresh(1) and record.behind:
        assert record.metrics.last_step < 4_999
        looks += 1
    assert looks > 5
    assert record.metrics.last_step == 4_999


def test_a_table_has_every_step_of_a_short_run_and_the_peaks_of_a_long_one(rows) -> None:
    short = taken(rows[:3_000]).table()
    assert short["steps"] == list(range(3_000))
    assert short["columns"]["loss"] == pytest.approx([each["loss"] for each in rows[:3_000]])
    assert short["columns"]["validation_loss"][:1000] == [None] * 999 + [2.5]
    long = taken(rows).table()
    assert (long["num_steps"], len(long["steps"]) < 6_000) == (len(rows), True)
    assert max(filter(None, long["columns"]["loss"])) == pytest.approx(max(each["loss"] for each in rows))


def test_many_numbers_do_not_make_a_table_long() -> None:
    names = [f"layer{index}_grad_norm" for index in range(60)]
    metrics = taken([{"step": step} | {name: float(step % 13) for name in names} for step in range(6_000)])
    assert len(json.dumps(metrics.table())) < 3_000_000


def test_a_step_that_is_trained_again_replaces_what_followed_it() -> None:
    rows = [{"step": step, "loss": loss, "mfu": 0.5} for step, loss in ((0, 3.0), (1, 2.0), (2, 1.0), (1, 2.5))]
    for parts in (1, 4):
        metrics = taken(rows, parts)
        table = metrics.table()
        assert (table["steps"], table["columns"]) == ([0, 1], {"loss": [3.0, 2.5], "mfu": [0.5, 0.5]})
        assert metrics.last_step == 1
        assert metrics.latest("loss", 5) == [3.0, 2.5]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), True, "9", None, [1], {"a": 1}, 10**400])
def test_what_is_no_finite_number_is_no_point(value: object) -> None:
    metrics = taken([{"step": 0, "loss": value, "lr": 1.0}, {"step": value, "lr": 1.0}])
    assert (metrics.table()["steps"], metrics.table()["columns"]) == ([0], {"lr": [1.0]})


def test_goodput_of_a_long_run_counts_every_steps_seconds(rows) -> None:
    """Bins tell what rows do, up to a bin at the borders of launches."""
    events = [{"time": 0.0, "event": "launch"}, {"time": 5.0, "event": "start", "step": 0}]
    events += [{"time": 50_000.0, "event": "failure", "step": 70_000}, {"time": 50_001.0, "event": "restart"}]
    events += [
        {"time": 50_010.0, "event": "resume", "step": 65_001},
        {"time": 90_000.0, "event": "finish", "step": len(rows)},
    ]
    exact, binned = goodput(events, rows, 0.0), goodput(events, taken(rows).step_times(), 0.0)
    assert binned.kept_seconds == pytest.approx(exact.kept_seconds)
    assert binned.total_seconds == exact.total_seconds
    for cause, seconds in exact.seconds.items():
        assert binned.seconds[cause] == pytest.approx(seconds, abs=8 * 1.0), cause
