"""The accuracy pages' tables: what is left out of a constant, which runs are stated alike, and one command for all of them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import record
from case import PublishedCase, SettledPrediction
from fourfold.config import UserError
from null_models import by_other_sources, seconds_at_peak
from outcome import predicted_row
from record_tables import Run, alike, nearest, nulls, percent, stated
from row_files import read_rows
from tests.support.published import CASES

FAILING = ("coat_fsdp_h100_llama2", "rocm_te_issues_78_79_llama3")
"""Two small sources with runs that failed."""


def _run(seconds: float, predicted: float, file: str, left_out: float | None = None, **changes: object) -> Run:
    base: PublishedCase = CASES["sweep:0"]
    measured = replace(base.measured, step_seconds=seconds, time_counts=True)
    case = replace(base, id=f"{file}{seconds}", file=file, measured=measured, **changes)  # type: ignore[arg-type]
    return Run(case, predicted_row(case, SettledPrediction(step_seconds=predicted)), left_out)


def _cells(lines: str) -> list[list[str]]:
    """A table's rows but for its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines()[2:]]


def test_constants_stand_beside_predictions_of_the_same_runs() -> None:
    runs = [
        _run(1.0, 1.0, "a", 0.1),
        _run(1.1, 1.0, "a", -0.1),
        _run(2.0, 1.0, "b", 0.0),
        _run(4.0, 1.0, "c"),
        _run(1.0, 1.0, "d", 0.2),
    ]
    ours, every, *_ = _cells(nulls(runs))
    assert (ours[1], ours[2], ours[3]) == ("4", percent(0.1), percent(0.1)), "a run that nobody left out is not counted"
    cases = [run.case for run in runs if run.left_out_time is not None]
    least, measured = np.array([seconds_at_peak(case) for case in cases]), np.array([1.0, 1.1, 2.0, 1.0])
    errors = np.abs(by_other_sources(cases, least, measured, lambda case: "") / measured - 1)
    assert every[1:4] == ["4", percent(float(np.median(errors))), percent(float(errors.mean()))]
    assert float(every[4]) == pytest.approx(0.1 / errors.mean(), abs=0.005)


def test_runs_that_differ_in_nothing_stated_bound_what_a_prediction_can_be() -> None:
    runs = [_run(1.0, 1.0, "a"), _run(1.5, 1.0, "a"), _run(1.5, 1.0, "a"), _run(9.0, 1.0, "a", sequence_length=8)]
    one = _cells(alike(runs))
    assert one == [["of one source", "1", "3", "50.0", "16.7", "22.2"]], "another length is another run"
    (several,) = _cells(alike([*runs, _run(1.2, 1.0, "b"), _run(1.0, 1.0, "b")]))
    assert several[:3] == ["of several sources", "1", "4"], "a run that another source tells again counts once"


def test_the_nearest_prediction_of_a_group_is_no_farther_than_any() -> None:
    seconds = np.array([1.0, 1.3, 1.5, 4.0])
    assert nearest(seconds) == min(np.linspace(0.5, 5, 451), key=lambda each: np.abs(each / seconds - 1).mean()).round(
        6
    )


def test_names_and_measurements_are_nothing_stated() -> None:
    base = CASES["sweep:0"]
    named = replace(
        base, id="x", file="y", source="z", defaults=("w",), measured=replace(base.measured, step_seconds=77.0)
    )
    assert stated(named) == stated(base)
    assert stated(replace(base, num_devices=base.num_devices + 1)) != stated(base)
    assert stated(replace(base, measured=replace(base.measured, failed=True))) != stated(base)


def test_a_page_gets_its_tables_again_and_again() -> None:
    page = "a\n<!-- record: one -->\n\nold\n\n<!-- end of record -->\nb\n"
    new = record.written(page, {"one": "| new |"})
    assert new == "a\n<!-- record: one -->\n\n| new |\n\n<!-- end of record -->\nb\n"
    assert record.written(new, {"one": "| new |"}) == new
    for wrong in (page.replace("one", "two"), page.replace("<!-- end of record -->", "")):
        with pytest.raises(UserError, match="allowed: one"):
            record.written(wrong, {"one": ""})


def test_one_command_makes_every_table_of_the_pages(tmp_path: Path) -> None:
    folder = Path(record.__file__).parent / "rows"
    rows = read_rows([folder / f"{file}.json" for file in FAILING])[0]
    made = record.tables_of(rows, tmp_path, 1)
    pages = [page.read_text(encoding="utf-8") for page in record.PAGES]
    assert sorted(name for page in pages for name in re.findall("<!-- record: (.*?) -->", page)) == sorted(made)
    for page in pages:
        record.written(page, made)
        assert all(len(match[3].strip()) > 100 for match in record.BLOCK.finditer(page)), "no table is empty"
    assert {cells[0] for cells in _cells(made["sources"])} == {*FAILING}
    assert _only(made["headline"], "step time, every")[1] == "19"
    assert _only(made["headline"], "the sample, the run")[1] == "16", "at most eight of a source"
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert record.tables_of(rows, tmp_path, 1) == made
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == kept, (
        "what is there is not made again"
    )


def _only(lines: str, start: str) -> Sequence[str]:
    (found,) = [cells for cells in _cells(lines) if cells[0].startswith(start)]
    return found
