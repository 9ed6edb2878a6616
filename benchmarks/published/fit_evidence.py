"""Writes `src/fourfold/evidence/published_runs.json`: well described published runs, as measured and as predicted; and
their set-ups (`fit_setups.py`).

    python benchmarks/published/fit_evidence.py benchmarks/published/rows [--jobs 2]

A run is well described where its source states its layout, microbatch, recomputation and sharding itself, on a device that ships,
and its step time counts; none is from memory as a whole. The fastest is kept of runs that differ in
their layouts alone."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from as_case import as_case
from case import PublishedCase
from fit_setups import TABLE as SETUPS
from fit_setups import write_setups
from fourfold.config import UserError
from fourfold.cost.fitted import fitted
from fourfold.evidence import PublishedRun, RunShape, published_runs
from fourfold.hardware import device_names
from fourfold.validate import case_prices, case_spec
from row_command import cases_of, row_parser, rows_or_exit
from settle import settle

TABLE = Path(__file__).parents[2] / "src" / "fourfold" / "evidence" / "published_runs.json"
OF_A_SOURCE = 8
"""Runs kept of a source, spread evenly over them."""
DIGITS = 4
SOURCE_LENGTH = 100


def well_described(cases: Iterable[PublishedCase]) -> list[PublishedCase]:
    """The cases that the table holds, in the order of their files."""
    devices, cells = set(device_names()), defaultdict(list)
    for case in cases:
        measured = case.measured
        left_open = case.recompute_open or case.microbatch_open or case.zero_open
        stated = measured.step_seconds and measured.time_counts and not measured.failed
        if stated and not left_open and "row" not in case.from_memory and not case.offloaded and case.device in devices:
            cells[case.cell].append(case)
    sources = defaultdict(list)
    for cell in cells.values():
        fastest = min(cell, key=lambda case: case.measured.step_seconds)
        sources[fastest.file].append(fastest)
    return [mine[index] for mine in sources.values() for index in _spread(len(mine), OF_A_SOURCE)]


def _spread(number: int, most: int) -> list[int]:
    """At most so many of `number` indices, evenly."""
    kept = min(number, most)
    return [index * number // kept for index in range(kept)]


def published_run(case: PublishedCase) -> PublishedRun | None:
    """The case with its prediction; None where there is none."""
    try:
        settled, found = settle(case, fitted())
        run = as_case(settled)
        spec = case_spec(run)
        shape = RunShape.of(spec, case_prices(run, spec, fitted()))
    except UserError:
        return None
    if found.step_seconds is None:
        return None
    measured = case.measured
    return PublishedRun(
        id=case.id,
        source=case.source[:SOURCE_LENGTH],
        model=case.model_name,
        shape=shape,
        step_seconds=measured.step_seconds,
        predicted_step_seconds=found.step_seconds,
        memory_bytes=measured.memory_bytes,
        predicted_memory_bytes=found.memory_bytes if measured.memory_bytes else None,
    )


def table_text(runs: Sequence[PublishedRun]) -> str:
    """The table, one line a run."""
    rows = [run.document() for run in runs]
    columns = list(rows[0])
    lines = ",\n".join(json.dumps([_short(key, row[key]) for key in columns], ensure_ascii=False) for row in rows)
    return f'{{"columns": {json.dumps(columns)},\n"rows": [\n{lines}\n]}}\n'


def _short(key: str, value: Any) -> Any:
    measured = key.endswith(("_seconds", "_bytes")) and value is not None
    return float(f"{value:.{DIGITS}g}") if measured else value


def main() -> None:
    parser = row_parser(__doc__)
    options = parser.parse_args()
    cases = well_described(cases_of(rows_or_exit(parser, options.folders)))
    with ProcessPoolExecutor(options.jobs) as pool:
        runs = [run for run in pool.map(published_run, cases, chunksize=8) if run is not None]
    TABLE.write_text(table_text(runs), encoding="utf-8")
    published_runs.cache_clear()
    opened = write_setups(cases, published_runs())  # as the table has them, rounded
    print(
        f"{len(runs)} runs of {len({case.file for case in cases})} sources in {TABLE}, {opened} of them as set-ups in {SETUPS}"
    )


if __name__ == "__main__":
    main()
