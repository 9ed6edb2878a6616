"""The table of published runs that ships: its predictions are those of the constants that ship, its rows those of the sources."""

from pathlib import Path

import pytest

from case import PublishedCase
from fit_evidence import TABLE, published_run, table_text
from fourfold.evidence import published_runs
from normalise import normalise
from row_files import read_rows

COLLECTED = Path(__file__).parents[3] / "benchmarks" / "published" / "rows"
RUNS = {run.id: run for run in published_runs()}
SAMPLE = list(RUNS)[:: max(1, len(RUNS) // 8)]


def test_the_table_is_written_as_it_reads() -> None:
    assert TABLE.read_text(encoding="utf-8") == table_text(list(RUNS.values()))
    assert TABLE.stat().st_size < 400_000


@pytest.mark.parametrize("name", SAMPLE)
def test_a_run_is_predicted_as_the_table_says(name: str) -> None:
    rows = [row for row in read_rows([COLLECTED / f"{name.rpartition(':')[0]}.json"])[0] if row.id == name]
    case = normalise(rows[0])
    assert isinstance(case, PublishedCase)
    now, stated = published_run(case), RUNS[name]
    assert now is not None
    assert now.shape == stated.shape
    assert now.step_seconds == pytest.approx(stated.step_seconds, rel=1e-3)
    assert now.predicted_step_seconds == pytest.approx(stated.predicted_step_seconds, rel=1e-3)
    assert (now.memory_bytes is None) == (stated.memory_bytes is None)
    if stated.memory_bytes is not None:
        assert now.predicted_memory_bytes == pytest.approx(stated.predicted_memory_bytes, rel=1e-3)
