"""Set-ups of published runs: one for each run that ships, priced by the page as the run was."""

import json
from pathlib import Path
from statistics import median

import pytest

from case import PublishedCase
from fit_setups import TABLE, setup_of, table_text, with_null
from fourfold.evidence import published_runs
from fourfold.explore.accuracy.document import accuracy_run, setups
from normalise import normalise
from row_files import read_rows

COLLECTED = Path(__file__).parents[3] / "benchmarks" / "published" / "rows"
RUNS = {run.id: run for run in published_runs()}
OPENED = [name for name in RUNS if setups()[name]["keys"] is not None]
SAMPLE = [*list(RUNS)[:: max(1, len(RUNS) // 6)], "azure_nemo_megatron_a100_2022:1"]


def test_the_table_is_written_as_it_reads() -> None:
    assert list(setups()) == list(RUNS), (
        "what works: python benchmarks/published/fit_setups.py benchmarks/published/rows"
    )
    assert TABLE.read_text(encoding="utf-8") == table_text(setups())
    assert with_null(setups(), list(RUNS.values())) == setups()
    assert TABLE.stat().st_size < 600_000
    assert len(OPENED) > 500


@pytest.mark.parametrize("name", SAMPLE)
def test_a_set_up_is_what_its_row_says(name: str) -> None:
    rows = [row for row in read_rows([COLLECTED / f"{name.rpartition(':')[0]}.json"])[0] if row.id == name]
    case = normalise(rows[0])
    assert isinstance(case, PublishedCase)
    stated = {key: value for key, value in setups()[name].items() if key != "null_step_seconds"}
    assert json.loads(json.dumps(setup_of(case))) == stated


def test_the_page_prices_a_set_up_as_the_run_was_priced() -> None:
    """Where the set-up states all that the source does, to the digits that the table keeps but for the network's levels."""
    ratios = {name: accuracy_run(name)["step_seconds"] / RUNS[name].predicted_step_seconds for name in OPENED[::12]}
    complete = [ratio for name, ratio in ratios.items() if not setups()[name]["unsaid"]]
    assert len(complete) > 8
    assert sorted(abs(ratio - 1) for ratio in complete)[len(complete) * 3 // 4] < 0.01
    assert max(abs(ratio - 1) for ratio in complete) < 0.2
    assert median(ratios.values()) == pytest.approx(1, abs=0.01)
