"""Cases whose programs are lowered once, to be priced again and again; and processes that share them."""

import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from as_case import as_case
from case import Prediction, PublishedCase
from fit_table import NAMES, Constants, Numbers, Table, constants_of, scaled
from fourfold.config import UserError
from fourfold.cost.fitted import Fitted, fitted
from fourfold.program import Program, StepSpec, lower_pipeline
from fourfold.simulate.prediction import check_size, steady_microbatches
from fourfold.simulate.step import simulate
from fourfold.validate import Case, case_prices, case_spec, host_update_seconds
from settle import settle

_Found = TypeVar("_Found")
VARIED = 0.1
"""By how much the logarithm of a constant is varied."""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


@dataclass
class Lowered:
    """A case whose programs are lowered: one number of microbatches, or two and where their line is read."""

    case: PublishedCase
    run: Case
    spec: StepSpec
    runs: list[tuple[StepSpec, tuple[Program, ...]]] = field(default_factory=list)
    ratio: float | None = None

    def seconds(self, constants: Fitted) -> float:
        prices = case_prices(self.run, self.spec, constants)
        times = [simulate(spec, prices, programs).seconds for spec, programs in self.runs]
        host = host_update_seconds(self.spec, self.run.cluster.device) if self.case.offloaded == "optimizer" else 0.0
        return host + (times[0] if self.ratio is None else times[0] + self.ratio * (times[1] - times[0]))


def lowered(case: PublishedCase) -> Lowered:
    run = as_case(case)
    spec = case_spec(run)
    check_size(spec)
    wanted, period = spec.layout.num_microbatches, max(1, spec.layout.pp)
    least = steady_microbatches(spec)
    if least is None or wanted <= least + period:
        return Lowered(case, run, spec, [(spec, tuple(lower_pipeline(spec)))])
    fewer = least + (wanted - least) % period
    both = [spec.with_microbatches(number) for number in (fewer, fewer + period)]
    return Lowered(case, run, spec, [(each, tuple(lower_pipeline(each))) for each in both], (wanted - fewer) / period)


def prepare(cases: list[PublishedCase], keeps: Callable[[PublishedCase, Prediction], bool]) -> list[Lowered]:
    """The cases to keep, lowered. Settings that a source leaves open are settled by the constants that ship."""
    rows = []
    for case in cases:
        try:
            settled, found = settle(case, fitted())
            if keeps(settled, found):
                rows.append(lowered(settled))
        except UserError as error:
            say(f"{case.id}: {error}")
    gc.collect()
    gc.freeze()
    return rows


@dataclass(frozen=True)
class TimedRows:
    """Rows whose step times were measured, where a table is. `errors`: log(predicted / measured); `slopes` [row, name]: how
    log(predicted) changes with the logarithm of each of `NAMES`; `values`: the logarithms of those constants as the row has
    them."""

    cases: list[PublishedCase]
    errors: Numbers
    slopes: Numbers
    values: Numbers

    def save(self, path: Path) -> None:
        """Writes what was looked at, the cases by their names, as `.npz`."""
        ids = np.array([named(case) for case in self.cases])
        names = np.array(["/".join(each) for each in NAMES])
        np.savez_compressed(path, ids=ids, names=names, errors=self.errors, slopes=self.slopes, values=self.values)

    @classmethod
    def load(cls, path: Path, cases: Iterable[PublishedCase]) -> "TimedRows":
        """Reads what `save` wrote. Rows that are no longer among the cases are left out; so are names that are no longer fitted."""
        known = {named(case): case for case in cases}
        with np.load(path, allow_pickle=False) as found:
            rows = [row for row, name in enumerate(found["ids"]) if str(name) in known]
            columns = [list(found["names"]).index("/".join(each)) for each in NAMES]
            mine = [known[str(found["ids"][row])] for row in rows]
            return cls(
                mine, found["errors"][rows], *(found[key][np.ix_(rows, columns)] for key in ("slopes", "values"))
            )


def named(case: PublishedCase) -> str:
    """A case's name in a file of rows that were looked at."""
    return f"{case.id} {case.source}"


def timed_rows(rows: list[Lowered], table: Table) -> TimedRows:
    """One pass over the rows for each name: a constant is varied for all its owners at once, as a row has one of each."""
    cases = [row.case for row in rows]
    base, columns = logs(rows, table), []
    for part, name in NAMES:
        varied = scaled(table, cases, part, name, float(np.exp(-VARIED)))
        columns.append((base - logs(rows, varied)) / VARIED)
    return TimedRows(cases, base, np.array(columns).T, values_of(cases, table))


def values_of(cases: list[PublishedCase], table: Table) -> Numbers:
    """[row, name]: the logarithm of each of `NAMES`, where the table is."""
    constants = Constants(table)
    return np.array([[np.log(max(constants.of(part, case, name), 1e-30)) for part, name in NAMES] for case in cases])


def logs(rows: list[Lowered], table: Table) -> Numbers:
    """log(predicted / measured) of every row."""
    constants = constants_of(table)
    return np.array([np.log(row.seconds(constants) / (row.case.measured.step_seconds or 1.0)) for row in rows])


@dataclass
class Shared(Generic[_Found]):
    """Cases divided among processes; each lowers its own once, and looks at them where a table is."""

    connections: list[Connection]

    @classmethod
    def among(
        cls,
        jobs: int,
        cases: list[PublishedCase],
        look: Callable[[list[Lowered], Table], _Found],
        keeps: Callable[[PublishedCase, Prediction], bool] = lambda case, found: True,
    ) -> "Shared[_Found]":
        connections = []
        for job in range(jobs):
            here, there = multiprocessing.Pipe()
            multiprocessing.Process(target=_serve, args=(there, cases[job::jobs], look, keeps), daemon=True).start()
            connections.append(here)
        return cls(connections)

    def at(self, table: Table) -> list[_Found]:
        for connection in self.connections:
            connection.send(table)
        return [connection.recv() for connection in self.connections]


def _serve(
    connection: Connection,
    cases: list[PublishedCase],
    look: Callable[[list[Lowered], Table], object],
    keeps: Callable[[PublishedCase, Prediction], bool],
) -> None:
    rows = prepare(cases, keeps)
    while True:
        try:
            table = connection.recv()
        except EOFError:
            return
        connection.send(look(rows, table))
