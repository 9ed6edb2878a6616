"""Fits the constants of `src/fourfold/cost/fitted.toml` to published runs, and cross-validates them by source.

    python benchmarks/published/fit_constants.py DIR... [--write] [--cross FILE.json] [--folds FILE.json] [--groups 12]
        [--rows 60] [--sweep-rows 150] [--rounds 3] [--jobs 2] [--start src/fourfold/cost/fitted.toml]
        [--looked timed.npz]

DIR holds files of rows, as for `predict.py`. `prior_constants.toml` is where the fit starts, or, with fewer rounds to
go, the constants of `--start`. Every constant is its prior times the departures of its branch and of itself (`fit_table.py`),
each held to none: a device with few rows stays near its family, a software profile near its framework, a framework near what is
known of its code. The loss is the soft L1 of log(predicted / measured), every file weighing by the square root of its rows, so
that no sweep decides alone. The model is linearised (Gauss-Newton) at the constants of the round before. The written file leaves
out what an entry inherits (`fit_file.py`).

`--looked` fits step times to what `look.py` kept, in a minute; what software holds in memory stays as it ships.

`--cross` leaves out one file at a time, or one of `--groups` of files: all constants are fitted without it, and a software
profile that only it has is what the shipped rule takes an unknown software profile for: the framework's constants; of a
framework that only it has, those of what its name begins with (Megatron's, of a fork of it), else those of a trainer that
nobody names. It predicts every row.
"""

import json
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from case import PublishedCase, SettledPrediction
from compare import validate as compare
from fit_file import FITTED, PRIOR, read, read_informed, rounded, write
from fit_memory import NAMES as MEMORY_NAMES
from fit_memory import MemoryRows, fit_memory, held_rows
from fit_rows import Shared, TimedRows, say, timed_rows
from fit_sample import chosen, is_measured, is_telling, says_nothing, telling, tuned_devices, with_memory
from fit_table import (
    LIMITS,
    NAMES,
    UNKNOWN,
    Constants,
    Node,
    Numbers,
    Table,
    constants_of,
    copied,
    family_of,
    moved_by,
    nodes_of,
    put,
    weights_of,
)
from fourfold.cost.fitted import Fitted, ancestors_of, framework_of
from outcome import PublishedOutcome
from row_command import cases_of, row_parser, rows_or_exit
from settle import predict_case
from software import Trainer, usual_trainer

OUTLIER, HOLD, REWEIGHTED, NEAR_TURNS = 0.12, 0.35, 10, 4
Files = frozenset[str]
NO_FILES: Files = frozenset()
FIRM = 1e6
"""How firmly a constant is held to the limit that it would pass."""


@dataclass(frozen=True)
class Model:
    """The step times of rows as a linear function of departures, in logarithms: `errors` + `matrix` x departures."""

    cases: list[PublishedCase]
    errors: Numbers
    matrix: Numbers
    nodes: list[Node]
    limits: list[tuple[list[int], float, float]]
    """For each constant: the departures it is made of, and the least and the most that they may add up to."""

    @classmethod
    def of(cls, parts: list[TimedRows], prior: Table) -> "Model":
        """From where the rows were looked at back to the prior; what a row says nothing of stays as it was looked at with."""
        before, nodes, entries = Constants(prior), {}, []
        cases = [case for part in parts for case in part.cases]
        tuned = tuned_devices(cases)
        errors, slopes, values = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("errors", "slopes", "values")
        )
        for row, case in enumerate(cases):
            for column, (part, name) in enumerate(NAMES):
                slope, start = slopes[row, column], before.of(part, case, name)
                if start <= 0 or not slope or says_nothing(part, case, tuned):
                    continue
                errors[row] += slope * (np.log(start) - values[row, column])
                for node in nodes_of(part, case, name):
                    if node.level == "family" and says_nothing("family", case, tuned):
                        continue
                    entries.append((row, nodes.setdefault(node, len(nodes)), slope))
        matrix = np.zeros((len(cases), len(nodes)))
        for row, column, slope in entries:
            matrix[row, column] += slope
        return cls(cases, errors, matrix, list(nodes), _limits(nodes, before))

    def holding(self, is_free: Callable[[Node], bool]) -> "Model":
        """A model in which no other constants depart."""
        return replace(self, matrix=self.matrix * np.array([is_free(node) for node in self.nodes]))

    def departures(self, left_out: Files = NO_FILES) -> dict[Node, float]:
        """The departures that are best without the rows of those files, each held to none: the soft L1 of the errors, by
        reweighting."""
        kept = np.array([case.file not in left_out for case in self.cases])
        weights = np.zeros(len(kept))
        weights[kept] = weights_of([case for case in self.cases if case.file not in left_out]) / OUTLIER
        return dict(zip(self.nodes, map(float, self._best(weights)), strict=True))

    def _best(self, weights: Numbers, near: Numbers | None = None) -> Numbers:
        """The departures that are best where rows weigh so much, by reweighting; limits that they would pass are held. `near`:
        departures that are best of almost the same rows, which fewer turns lead from."""
        found = np.zeros(len(self.nodes)) if near is None else near
        ends = self._passed(found)
        for _ in range(REWEIGHTED if near is None else NEAR_TURNS):
            now = weights**2 / np.sqrt(1 + ((self.errors + self.matrix @ found) / OUTLIER) ** 2)
            found = self._solved(now, ends)
            ends = self._pressed(ends, found) | self._passed(found)
        return found

    def _solved(self, weights: Numbers, ends: dict[int, float]) -> Numbers:
        """The departures of the least squares of the errors so weighted, each held to none, limits held where they end."""
        spread = np.array([node.spread for node in self.nodes])
        matrix = self.matrix * spread
        held = matrix.T @ (matrix * weights[:, None]) + HOLD**2 * np.eye(len(spread))
        wanted = -matrix.T @ (weights * self.errors)
        for which, end in ends.items():
            summed = self.limits[which][0]
            held[np.ix_(summed, summed)] += FIRM * np.outer(spread[summed], spread[summed])
            wanted[summed] += FIRM * end * spread[summed]
        return np.linalg.solve(held, wanted) * spread

    @property
    def written(self) -> NDArray[np.bool_]:
        """Whether each departure is written: a trainer's own is not."""
        return np.array([node.level != "trainer" for node in self.nodes])

    def errors_of_written(self, departures: dict[Node, float]) -> Numbers:
        """The error of every row where the departures that are written are these."""
        return self.errors + self.matrix @ (np.array([departures[node] for node in self.nodes]) * self.written)

    def left_out_errors(self, shipped: Numbers, part_of: Callable[[PublishedCase], Hashable]) -> Numbers:
        """The error of every row by constants that are fitted without its part of the rows (its source, say): `shipped`, what it is
        by those that ship, and what leaving that part out changes. A trainer's own departure is not written, and not counted."""
        errors = shipped.copy()
        for mine, change in self.left_out_changes(part_of):
            errors[mine] += self.matrix[mine] @ change
        return errors

    def left_out_changes(
        self, part_of: Callable[[PublishedCase], Hashable]
    ) -> Iterator[tuple[NDArray[np.bool_], Numbers]]:
        """Each part of the rows: which are its own, and by how much leaving it out moves every departure that is written."""
        weights = weights_of(self.cases) / OUTLIER
        every, parts = self._best(weights), [part_of(case) for case in self.cases]
        for part in dict.fromkeys(parts):
            mine = np.array([each == part for each in parts])
            yield mine, (self._best(np.where(mine, 0.0, weights), near=every) - every) * self.written

    def _pressed(self, ends: dict[int, float], departures: Numbers) -> dict[int, float]:
        """The held limits that the rows press against: a held sum is beyond its end by the force on it."""
        pressed = {}
        for which, end in ends.items():
            nodes, least, most = self.limits[which]
            beyond = float(departures[nodes].sum()) - end
            if least == most or (beyond > 0) == (end == most):
                pressed[which] = end
        return pressed

    def _passed(self, departures: Numbers) -> dict[int, float]:
        """The limits that these pass, and where they end."""
        sums = [float(departures[nodes].sum()) for nodes, _, _ in self.limits]
        ends = [min(most, max(least, each)) for each, (_, least, most) in zip(sums, self.limits, strict=True)]
        return {which: end for which, (each, end) in enumerate(zip(sums, ends, strict=True)) if abs(each - end) > 1e-3}


def _limits(nodes: dict[Node, int], before: Constants) -> list[tuple[list[int], float, float]]:
    branch = {"device": "family", "software": "framework"}
    found = []
    for node, index in nodes.items():
        if node.name not in LIMITS or node.level in ("family", "trainer"):
            continue
        part = {"link": "link", "device": "device"}.get(node.level, "software")
        start = before.value(part, node.owner, node.name)
        if start <= 0:
            continue
        above = family_of(node.owner) if node.level == "device" else framework_of(node.owner)
        made_of = [index, *(nodes[up] for up in [Node(branch.get(node.level, ""), above, node.name)] if up in nodes)]
        low, high = LIMITS[node.name]
        found.append((made_of, float(np.log(low / start)) if low else -np.inf, float(np.log(high / start))))
    return found


def fitted_table(model: Model, held: MemoryRows, prior: Table, left_out: Files = NO_FILES) -> Table:
    """The prior moved to the rows of all other files. A framework that only those files have loses its prior too."""
    all_software = {case.software for case in (*model.cases, *held.cases)}
    rows, held = [case for case in model.cases if case.file not in left_out], held.without(left_out)
    known = {case.software for case in (*rows, *held.cases)}
    gone, table = all_software - known, copied(prior)
    for software in gone:
        table["software"].pop(software, None)
        if framework_of(software) not in map(framework_of, known):
            table["software"].pop(framework_of(software), None)
    before, table = table, moved_by(table, model.departures(left_out), known)
    fit_memory(held, before, table)
    return table


def informed(table: Table, rows: list[PublishedCase], held: list[PublishedCase]) -> Table:
    """Which rows every entry was fitted on: how many step times, how many peaks of memory, and their files."""
    tuned = tuned_devices(rows)

    def informed_by(mine: list[PublishedCase], memory: int = 0) -> dict:
        measured = {"memory_rows": memory} if memory else {}
        return {"rows": len(mine), **measured, "files": sorted({row.file for row in mine})}

    def of_device(device: str) -> dict:
        siblings = [row for row in rows if family_of(row.device) == family_of(device)]
        return informed_by(
            [row for row in siblings if not says_nothing("device" if row.device == device else "family", row, tuned)]
        )

    def of_software(software: str) -> dict:
        measured = sum(software in (case.software, framework_of(case.software)) for case in held if is_measured(case))
        return informed_by([row for row in rows if software in (row.software, framework_of(row.software))], measured)

    return {
        "link": informed_by([row for row in rows if not says_nothing("link", row, tuned)]),
        "device": {device: of_device(device) for device in sorted(table["device"])},
        "software": {software: of_software(software) for software in sorted(table["software"])},
    }


def joined(parts: list[MemoryRows]) -> MemoryRows:
    return MemoryRows([case for part in parts for case in part.cases], np.concatenate([part.parts for part in parts]))


def joined_times(parts: list[TimedRows]) -> TimedRows:
    together = (np.concatenate([getattr(part, name) for part in parts]) for name in ("errors", "slopes", "values"))
    return TimedRows([case for part in parts for case in part.cases], *together)


def errors_by_file(model: Model) -> list[tuple[str, float]]:
    """Mean |error| of each file's rows at the best departures."""
    found = model.departures()
    error = np.abs(np.exp(model.errors + model.matrix @ np.array([found[node] for node in model.nodes])) - 1)
    files = np.array([case.file for case in model.cases])
    return [(str(file), float(error[files == file].mean())) for file in np.unique(files)]


def predict_by_file(case: PublishedCase, constants: dict[str, Fitted]) -> SettledPrediction:
    known = constants.get(case.file) or constants[""]
    return predict_case(named_as_known(case, known), known)


def named_as_known(case: PublishedCase, known: Fitted) -> PublishedCase:
    """A case whose framework nobody knows, nor what its name begins with (a fork's does), is one of a trainer that nobody names."""
    if not set(ancestors_of(case.software)).isdisjoint(map(framework_of, known.profiles)):
        return case
    layout, unknown = case.layout, Trainer(UNKNOWN, 0)
    usual = usual_trainer(unknown, case.device, case.num_devices, layout.tp, layout.pp, layout.zero == 3)
    return replace(case, software=usual.profile)


def folds_of(model: Model, held: MemoryRows, prior: Table, groups: int, jobs: int) -> dict[str, Table]:
    """The constants that are fitted without each file, and the rest of its group, by file; under an empty name, those of all."""
    files = sorted({case.file for case in (*model.cases, *held.cases)})
    left_out = [NO_FILES, *(frozenset(files[group::groups]) for group in range(min(groups, len(files))))]
    with ProcessPoolExecutor(jobs) as pool:
        tables = map(rounded, pool.map(partial(fitted_table, model, held, prior), left_out))
        return {file: table for gone, table in zip(left_out, tables, strict=True) for file in gone or ("",)}


def cross(folds: dict[str, Table], rows: list, jobs: int) -> PublishedOutcome:
    """Every row predicted with constants that were fitted without its file."""
    constants = {file: constants_of(table) for file, table in folds.items()}
    predict = partial(predict_by_file, constants=constants)
    with ProcessPoolExecutor(jobs) as pool:
        return compare(rows, predict, _progress(), each=lambda f, cases: pool.map(f, cases, chunksize=8))


def fit_to_looked(timed: TimedRows, prior: Table, writes: bool) -> None:
    """Step times alone, of rows that were looked at. Says the errors by what ships and by what is fitted, and with the source left
    out of either."""
    shipped = read(FITTED)
    model = Model.of([timed], prior)
    departures = model.departures()
    fitted = model.errors_of_written(departures)
    say_errors("shipped", timed.errors)
    say_errors("shipped, source left out", model.left_out_errors(timed.errors, lambda case: case.file))
    say_errors("fitted", fitted)
    say_errors("fitted, source left out", model.left_out_errors(fitted, lambda case: case.file))
    table = moved_by(prior, departures, {case.software for case in model.cases})
    with_memory_of(shipped, table)
    if writes:
        found = informed(table, model.cases, [])
        write(table, {**found, "software": with_memory_rows(found["software"], read_informed()["software"])})


def with_memory_rows(software: Table, known: Table) -> Table:
    """Which rows software profiles were fitted on, with those of memory as they are known: step times alone were fitted."""
    return {
        name: {"rows": each["rows"], **_memory_rows(known.get(name, {})), "files": each["files"]}
        for name, each in software.items()
    }


def _memory_rows(entry: Mapping[str, int]) -> dict[str, int]:
    return {"memory_rows": entry["memory_rows"]} if "memory_rows" in entry else {}


def with_memory_of(shipped: Table, table: Table) -> None:
    """Gives all software of `table` what it holds in memory by the constants that ship."""
    before = Constants(shipped)
    for software in table["software"]:
        for name in MEMORY_NAMES:
            put(table, "software", software, name, before.value("software", software, name))


def say_errors(name: str, errors: Numbers) -> None:
    error, signed = np.abs(np.exp(errors) - 1), np.exp(errors) - 1
    say(f"{name}: {len(error)} rows, median {np.median(error):.1%}, mean {error.mean():.1%}, bias {signed.mean():+.1%}")


def _progress():  # type: ignore[no-untyped-def]
    begun = time.monotonic()

    def show(done: int, total: int) -> None:
        if done % 200 == 0:
            say(f"{done} of {total}, {(time.monotonic() - begun) / done * (total - done):.0f} s left")

    return show


def main() -> None:
    parser = row_parser(__doc__, jobs=2)
    parser.add_argument("--write", action="store_true", help="write fitted.toml and fitted_on.json")
    parser.add_argument("--cross", type=Path, help="cross-validate by file and write the outcome as JSON here")
    parser.add_argument("--folds", type=Path, help="write the constants that are fitted without each file as JSON here")
    parser.add_argument(
        "--groups", type=int, default=1000, help="into how many groups files are divided to be left out"
    )
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--sweep-rows", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--start", type=Path, default=PRIOR, help="the constants that rows are first looked at with")
    parser.add_argument("--looked", type=Path, help="step times that look.py kept")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error("--rounds: 1 at least")
    rows = rows_or_exit(parser, options.folders)
    cases = telling(cases_of(rows))
    prior = read(PRIOR)
    if options.looked:
        fit_to_looked(TimedRows.load(options.looked, cases), prior, options.write)
        return
    timed = Shared.among(options.jobs, chosen(cases, options.rows, options.sweep_rows), timed_rows)
    weighed = Shared.among(options.jobs, with_memory(cases, 3 * options.rows), held_rows, is_telling)
    table = read(options.start)
    for number in range(options.rounds):
        parts = timed.at(table)
        model, held = Model.of(parts, prior), joined(weighed.at(table))
        error = np.abs(np.exp(np.concatenate([part.errors for part in parts])) - 1)
        say(f"round {number}: {len(error)} rows, mean |error| {error.mean():.3f}, {len(model.nodes)} departures")
        table = fitted_table(model, held, prior)
    for file, error in errors_by_file(model):
        say(f"{file}: {error:.3f} by the linear model")
    if options.write:
        write(table, informed(table, model.cases, held.cases))
    if options.cross or options.folds:
        folds = folds_of(model, held, prior, options.groups, options.jobs)
        if options.folds:
            options.folds.write_text(json.dumps(folds), encoding="utf-8")
        if options.cross:
            options.cross.write_text(json.dumps(cross(folds, rows, options.jobs).to_json()), encoding="utf-8")


if __name__ == "__main__":
    main()
