"""Looks at rows once, with the constants that ship, and keeps what a fit reads of them: it then takes seconds.

    python benchmarks/published/look.py DIR... [--timed timed.npz] [--held held.npz] [--rows 8] [--sweep-rows 50] [--minutes 600]
    python benchmarks/published/look.py DIR... --timed anew.npz --slopes timed.npz

`--timed`: step times, and how they change with each constant. `--held`: memory, of runs that state it and of all that a source with
failed runs reports. Rows come in an order drawn alike every time; after so many minutes the rest is left out. `--slopes`: the step
times of the rows of that file, which keep how they change; that takes a twentieth of the time."""

import gc
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from case import PublishedCase
from fit_constants import joined, joined_times
from fit_file import FITTED, read
from fit_memory import held_rows
from fit_out_of_memory import reporting
from fit_rows import Lowered, TimedRows, logs, named, prepare, say, timed_rows, values_of
from fit_sample import chosen, is_measured, telling, with_memory
from fit_table import Table
from row_command import cases_of, row_parser, rows_or_exit

AT_ONCE = 16
ROWS, SWEEP_ROWS = 8, 50
_Found = TypeVar("_Found")


def main() -> None:
    parser = row_parser(__doc__)
    parser.add_argument("--timed", type=Path)
    parser.add_argument("--held", type=Path)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--sweep-rows", type=int, default=SWEEP_ROWS)
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--slopes", type=Path, help="a file of --timed whose rows are predicted anew, with its slopes")
    options = parser.parse_args()
    every = cases_of(rows_or_exit(parser, options.folders))
    until = time.monotonic() + 60 * options.minutes
    if options.slopes:
        if not options.timed:
            parser.error("--slopes: --timed says where to write, such as --timed anew.npz")
        look_again(TimedRows.load(options.slopes, every), read(FITTED)).save(options.timed)
    elif options.timed:
        look_at_times(every, options.timed, until, options.rows, options.sweep_rows)
    if options.held:
        look_at_memory(every, options.held, until, options.rows)


def look_at_times(
    every: list[PublishedCase], path: Path, until: float = math.inf, rows: int = ROWS, sweep_rows: int = SWEEP_ROWS
) -> None:
    """Writes step times of some rows a file, and how they change with each constant."""
    wanted = drawn(chosen(telling(every), rows, sweep_rows))
    joined_times(list(looked(wanted, timed_rows, read(FITTED), until))).save(path)


def look_again(before: TimedRows, table: Table) -> TimedRows:
    """Looked-at rows where the table is; their slopes are those of before. Rows that nothing predicts any more are left out."""
    slopes = {named(case): row for case, row in zip(before.cases, before.slopes, strict=True)}

    def again(rows: list[Lowered], table: Table) -> TimedRows:
        cases = [row.case for row in rows]
        kept = np.array([slopes[named(case)] for case in cases])
        return TimedRows(cases, logs(rows, table), kept, values_of(cases, table))

    return joined_times(list(looked(before.cases, again, table, math.inf)))


def look_at_memory(every: list[PublishedCase], path: Path, until: float = math.inf, rows: int = ROWS) -> None:
    """Writes the memory of some rows a file that state it, and of all that a source with failed runs reports."""
    measured = filter(is_measured, with_memory(telling(every), rows))
    both = {id(case): case for case in (*measured, *(each for each in reporting(every) if each.layout.pp <= 16))}
    joined(list(looked(drawn(both.values()), held_rows, read(FITTED), until))).save(path)


def drawn(cases: Iterable[PublishedCase]) -> list[PublishedCase]:
    """Cases in an order that is drawn alike every time: where time runs out, the rest is a fair part."""
    shuffled = list(cases)
    random.Random(13).shuffle(shuffled)
    return shuffled


def looked(
    cases: list[PublishedCase], look: Callable[[list[Lowered], Table], _Found], table: Table, until: float
) -> Iterator[_Found]:
    """The finds, of a few rows at a time."""
    for first in range(0, len(cases), AT_ONCE):
        if time.monotonic() > until:
            say(f"{first} of {len(cases)} rows: no time is left")
            return
        yield look(prepare(cases[first : first + AT_ONCE], lambda case, found: True), table)
        gc.unfreeze()
        say(f"{min(first + AT_ONCE, len(cases))} of {len(cases)} rows")


if __name__ == "__main__":
    main()
