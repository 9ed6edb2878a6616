"""Writes every table and plot of the accuracy pages from the rows alone, by one command.

    python benchmarks/published/record.py benchmarks/published/rows [--jobs 2] [--keep DIR] [--write]

Predicts all rows, and looks at a sample of each source, so that each run of it is also predicted by constants fitted without its
source (in the linear model of the fit). That takes an hour on one core. `--keep` holds what was found, by the digest of
constants, code and rows; what is there is not made again. Without `--write` the tables are printed. In the pages (`PAGES`) a table
stands between `<!-- record: NAME -->` and `<!-- end of record -->`."""

import hashlib
import json
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from case import PublishedCase, Skip
from compare import validate as compare
from fit_constants import Model
from fit_file import FITTED, PRIOR, read
from fit_intervals import TABLE
from fit_memory import MemoryRows, left_out_memory
from fit_out_of_memory import blind_runs, by_probability, reporting
from fit_pairs import OUT, Coverage, left_out_ratios
from fit_rows import TimedRows, named, say
from fit_sample import chosen, is_measured, telling
from fit_table import Numbers
from fourfold.config import UserError
from fourfold.cost.fitted import framework_of
from look import ROWS, SWEEP_ROWS, look_at_memory, look_at_times
from normalise import normalise
from outcome import RowOutcome
from record_tables import (
    Run,
    alike,
    by_source,
    coverage,
    defaults,
    devices,
    families,
    headline,
    nulls,
    out_of_memory,
    skipped,
)
from row import Row
from row_command import row_parser, rows_or_exit
from scatter import write_scatters
from settle import predict_case

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
PLOTS = DOCS / "accuracy"
PREDICTED = "predicted.json"
AFTERWARDS = ("record", "page_table", "null_models", "other_planners", "peer")
"""Beginnings of files that read what was found, and find nothing."""
PAGES = (DOCS / "accuracy.md", HERE / "accuracy.md", HERE / "accuracy_by_source.md")
BLOCK = re.compile(r"(<!-- record: ([a-z-]+) -->\n)(.*?)(\n<!-- end of record -->)", re.DOTALL)


def main() -> None:
    parser = row_parser(__doc__, jobs=2)
    parser.add_argument("--keep", type=Path, help="a folder for what was found")
    parser.add_argument("--write", action="store_true", help="write the tables into the pages")
    options = parser.parse_args()
    rows = rows_or_exit(parser, options.folders)
    with tempfile.TemporaryDirectory() as anew:
        kept = (options.keep or Path(anew)) / _digest(rows)
        made = tables_of(rows, kept, options.jobs)
        if options.write:
            write_scatters(_outcomes(kept), PLOTS, by_file=False)
    for page in PAGES:
        try:
            text = written(page.read_text(encoding="utf-8"), made)
        except UserError as error:
            sys.exit(f"error: {page}: {error}")
        if options.write:
            page.write_text(text, encoding="utf-8")
    if not options.write:
        print("\n\n".join(f"{name}\n\n{lines}" for name, lines in made.items()))


def _digest(rows: Sequence[Row]) -> str:
    """A name for finds by this code and these constants, of these rows."""
    found = hashlib.sha256(repr(rows).encode())
    package = DOCS.parent / "src" / "fourfold"
    rooms = (each for each in package.iterdir() if each.is_dir() and each.name != "explore")
    for room in (HERE, *sorted(rooms)):
        for path in sorted(each for each in room.rglob("*") if each.suffix in (".py", ".toml", ".json")):
            if not path.name.startswith(AFTERWARDS):
                found.update(path.read_bytes())
    return found.hexdigest()[:16]


def written(text: str, made: dict[str, str]) -> str:
    """A page with its tables. Raises `UserError` for a name that no table has."""
    names = [match[2] for match in BLOCK.finditer(text)]
    unknown = sorted({*names} - made.keys())
    if unknown or len(names) != text.count("<!-- record:"):
        raise UserError(f"record: {', '.join(unknown) or 'one has no end'}; allowed: {', '.join(made)}")
    return BLOCK.sub(lambda match: f"{match[1]}\n{made[match[2]]}\n{match[4]}", text)


def tables_of(rows: Sequence[Row], kept: Path, jobs: int) -> dict[str, str]:
    """All tables, by name."""
    kept.mkdir(parents=True, exist_ok=True)
    cases = [normalise(row) for row in rows]
    every = [case for case in cases if not isinstance(case, Skip)]
    timed, held = kept / "timed.npz", kept / "held.npz"
    _make(kept / PREDICTED, lambda path: path.write_text(json.dumps(_predicted(rows, jobs)), encoding="utf-8"))
    _make(timed, partial(look_at_times, every))
    _make(held, partial(look_at_memory, every))

    outcomes = _outcomes(kept)
    known, prior, shipped = telling(every), read(PRIOR), read(FITTED)
    times, memory = TimedRows.load(timed, known), MemoryRows.load(held, every)
    model = Model.of([times], prior)
    time_errors = _by_name(times.cases, model.left_out_errors(times.errors, lambda case: case.file))
    by_family = _by_name(times.cases, model.left_out_errors(times.errors, lambda case: framework_of(case.software)))
    informs = {case.file for case in known}
    silent = {named(case) for case in chosen([case for case in every if case.file not in informs], ROWS, SWEEP_ROWS)}
    memory_errors = _by_name(memory.cases, left_out_memory(memory, prior, shipped, lambda case: case.file))
    runs = []
    for case, outcome in zip(cases, outcomes, strict=True):
        if isinstance(case, Skip):
            continue
        name, counts = named(case), case.measured.time_counts
        # nothing was fitted on a source that informs nothing: the constants that ship know nothing of it
        left_out = outcome.step_error if name in silent else time_errors.get(name)
        memory_out = memory_errors.get(name) if is_measured(case) else None
        family = outcome.step_error if name in silent else by_family.get(name)
        runs.append(Run(case, outcome, left_out if counts else None, memory_out, family if counts else None))
    intervals = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    ratios = left_out_ratios(known, prior, timed, held)
    covered = [Coverage.of(of, out, ratios[of][out], intervals[of]) for of in ratios for out in OUT]
    blind = by_probability(blind_runs(MemoryRows.load(held, reporting(every))), 0)
    return {
        "headline": headline(runs),
        "constants": nulls(runs),
        "families": families(runs),
        "devices": devices(runs),
        "coverage": coverage(covered),
        "out-of-memory": out_of_memory(blind),
        "alike": alike(runs),
        "sources": by_source(runs),
        "skipped": skipped(outcomes),
        "defaults": defaults(),
    }


def _make(path: Path, make: Callable[[Path], object]) -> None:
    """Makes a file that is not there; half of one is never left."""
    if path.exists():
        return
    say(f"making {path.name}")
    part = path.with_stem(f"{path.stem}-part{os.getpid()}")
    make(part)
    part.rename(path)


def _predicted(rows: Sequence[Row], jobs: int) -> list[dict[str, Any]]:
    with ProcessPoolExecutor(jobs) as pool:
        return list(compare(rows, predict_case, each=partial(pool.map, chunksize=16)).to_json()["rows"])


def _outcomes(kept: Path) -> list[RowOutcome]:
    return [RowOutcome(**each) for each in json.loads((kept / PREDICTED).read_text(encoding="utf-8"))]


def _by_name(cases: Sequence[PublishedCase], errors: Numbers) -> dict[str, float]:
    """predicted / measured - 1 of each case, by its name; from logarithms."""
    return {named(case): float(each) for case, each in zip(cases, np.expm1(errors), strict=True)}


if __name__ == "__main__":
    main()
