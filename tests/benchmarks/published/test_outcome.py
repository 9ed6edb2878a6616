"""Rows, a predictor and the outcome: every row stands in it once, with a prediction or a reason."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from case import PublishedCase, SettledPrediction
from compare import validate
from explain import explain_case, explanation_lines
from fourfold.config import UserError
from normalise import normalise
from outcome import predicted_row
from row_files import read_rows
from settle import predict_case
from tables import defaults_lines, summary_lines

ROWS, UNREAD = read_rows([Path(__file__).parent / "rows"])


def _measured(case: PublishedCase) -> SettledPrediction:
    """A predictor that is right about everything."""
    return SettledPrediction(case.measured.step_seconds, case.measured.memory_bytes, not case.measured.failed)


def test_every_row_stands_in_the_outcome_in_order() -> None:
    seen: list[tuple[int, int]] = []
    outcome = validate(ROWS, _measured, lambda done, total: seen.append((done, total)), UNREAD)
    assert [row.id for row in outcome.rows] == [row.id for row in ROWS]
    assert seen == [(i + 1, len(ROWS)) for i in range(len(ROWS))]
    for row in outcome.rows:
        assert row.skipped is None or row.predicted_step_seconds is None
    assert sum(s.rows for s in outcome.by_source.values()) == outcome.overall.rows == len(ROWS)
    assert sum(outcome.overall.skipped.values()) == outcome.overall.rows - outcome.overall.cases


def test_a_right_predictor_has_no_error() -> None:
    outcome = validate(ROWS, _measured)
    metrics = outcome.overall.metrics
    assert (metrics.step.mean, metrics.memory.mean, metrics.skill, metrics.fit.share) == (0, 0, 0, 1)
    for row in outcome.rows:
        assert row.step_error in (None, 0)
        assert row.predicted_mfu == row.measured_mfu or row.skipped or row.predicted_step_seconds is None


def test_figures_of_a_row_agree() -> None:
    outcome = validate(ROWS, lambda case: SettledPrediction(step_seconds=5.0))
    row = next(row for row in outcome.rows if row.id == "sweep:0")
    assert row.step_error == pytest.approx(0.25)
    assert row.predicted_tokens_per_second_per_device == pytest.approx(256 * 4096 / (16 * 5))
    assert row.measured_mfu is not None
    assert row.predicted_mfu == pytest.approx(row.measured_mfu * 4 / 5)
    low, high = row.step_seconds_interval or (0.0, 0.0)
    assert low < row.predicted_step_seconds < high
    assert (row.memory_bytes_interval, row.probability_out_of_memory) == (None, None), (
        "nothing is predicted of its memory"
    )
    assert (row.predicted_memory_bytes, row.software, row.device) == (None, "nanotron", "h100-sxm")


def test_a_network_that_nobody_states_is_a_range_that_widens_the_interval() -> None:
    row = replace(ROWS[[row.id for row in ROWS].index("sweep:0")], notes="")
    stated, silent = (
        normalise(replace(row, hardware=replace(row.hardware, internode=text))) for text in ("400 Gb/s per GPU", "")
    )
    assert isinstance(stated, PublishedCase)
    assert isinstance(silent, PublishedCase)
    assert (stated.network.assumed, silent.network.assumed) == (False, True)
    assert predict_case(stated).network_step_seconds is None
    found = predict_case(silent)
    slowest, fastest = found.network_step_seconds or (0.0, 0.0)
    assert slowest > found.step_seconds >= fastest > 0
    low, high = predicted_row(silent, found).step_seconds_interval or (0.0, 0.0)
    narrow_low, narrow_high = predicted_row(
        silent, replace(found, network_step_seconds=None)
    ).step_seconds_interval or (
        0.0,
        0.0,
    )
    assert high / narrow_high == pytest.approx(slowest / found.step_seconds)
    assert low / narrow_low == pytest.approx(fastest / found.step_seconds)
    lines = "\n".join(explanation_lines(explain_case(silent)))
    assert f"{slowest:.4g} s with 12 GB/s a device, {fastest:.4g} s with 50 GB/s a device" in lines
    assert "not stated: " not in "\n".join(explanation_lines(explain_case(stated)))


def test_refusals_are_reasons() -> None:
    def refuse(case: PublishedCase) -> SettledPrediction:
        if case.file == "sweep":
            raise UserError("layout.tp = 2 is not liked")
        return (
            SettledPrediction(step_seconds=float("nan"))
            if case.file == "flags"
            else SettledPrediction(refused="no such thing")
        )

    outcome = validate(ROWS, refuse)
    reasons = Counter(row.skipped for row in outcome.rows)
    assert reasons["layout.tp = 2 is not liked"] == 5
    assert reasons["no such thing"] > 10
    assert reasons["the prediction has step_seconds = nan"] == outcome.by_source["flags"].cases
    assert outcome.overall.predicted == 0
    assert outcome.overall.metrics.step.count == 0


def test_the_json_form_is_json() -> None:
    table = validate(ROWS, _measured, unread=UNREAD).to_json()
    again = json.loads(json.dumps(table, allow_nan=False))
    assert {"rows", "by_source", "overall", "unread"} == set(again)
    needed = {"id", "predicted_step_seconds", "predicted_memory_bytes", "skipped", "defaults", "software"}
    assert all(needed <= set(row) for row in again["rows"])
    assert again["overall"]["metrics"]["fit"]["share"] == 1
    assert again["unread"][0]["file"] == "tables.json"


def test_the_summary_is_plain_aligned_lines() -> None:
    lines = summary_lines(validate(ROWS, _measured, unread=UNREAD))
    first = lines[: lines.index("")]
    assert len({len(line) for line in first}) == 1
    assert {"papers", "sweep", "vendor", "all"} <= {line.split()[0] for line in first}
    assert any(line.startswith("skipped: ") for line in lines)
    assert lines[-1].startswith("not read: tables.json")
    assert all("\n" not in line and len(line) <= 110 for line in lines)


def test_no_rows_give_an_empty_summary() -> None:
    lines = summary_lines(validate([], _measured))
    assert lines[0] == "step time: nothing to compare"


def test_the_defaults_are_one_sentence_each() -> None:
    assert all(line.rstrip().endswith(".") for line in defaults_lines())
