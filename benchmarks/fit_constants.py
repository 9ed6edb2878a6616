"""Fits the constants of `src/fourfold/cost/fitted.toml` to published runs, and cross-validates them by source.

    python benchmarks/fit_constants.py DIR... [--write] [--cross FILE.json] [--rows 30] [--sweep-rows 150] [--rounds 3] [--jobs 2]

DIR holds files of rows, as for `fourfold validate`. `prior_constants.toml` is where the fit starts and what every constant is
held to: a stack with few rows stays near it. The loss is the soft L1 of log(predicted / measured), every file weighing by the
square root of its rows, so that no sweep decides alone. The model is linearised (Gauss-Newton): one constant's name is varied
at a time for all devices, or all stacks, at once, because a row depends on one of each.

`--cross` leaves out one file at a time: constants of devices and links are fitted without it, and its stacks fall back to what the
shipped rule gives for an unknown stack (the framework's nearest year among the others, else `default`). It predicts every row.
Needs scipy.
"""

import argparse
import json
import random
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import tomli_w
from scipy.optimize import least_squares

from fit_rows import MEMORY, Lowered, Numbers, fit_memory, memory_rows, prepare, say
from fit_table import (
    DEVICE,
    LEAST_ROWS,
    LINK,
    STACK,
    Table,
    constants_of,
    copied,
    family_of,
    get,
    parameters,
    put,
)
from fourfold.cost.fitted import Fitted
from fourfold.validate import Case, Outcome, Prediction, Skip, read_rows, translate
from fourfold.validate import validate as compare
from fourfold.validate.predict import predict_case

FITTED = Path(__file__).parents[1] / "src" / "fourfold" / "cost" / "fitted.toml"
PRIOR = Path(__file__).parent / "prior_constants.toml"
HEAD = """\
# Constants fitted to measurements: of devices, links, software stacks; never of a row or a model. `rows`: on how many step times,
# `memory_rows`: on how many peaks of memory, `fitted_on`: of which sources; `source`: what else a value is taken from.
# Written by benchmarks/fit_constants.py.

"""
COLLECTED, MEASURED = (
    {path.stem for path in (Path(__file__).parent / "rows").glob("*.json")},
    ("ampere", "hopper", "blackwell", "blackwell ultra"),
)
"""Rows that this project collected say nothing of devices and links that tuned runs and single operators were measured on: half of
them ran on devices of less power or on other networks, and what is slow there is the stack's."""
MEGATRON = ("megatron-zero-bubble", "megatron-deepspeed", "megatron-mindspeed", "vtrain")
TORCH = (
    "nanotron",
    "internevo",
    "llm-foundry",
    "torchtitan",
    "fsdp",
    "deepspeed",
    "pytorch",
    "xtuner",
    "halo",
    "kempnerforge",
    "lightning",
)
DISTURBED = ("nanotron_old_bench_slow",)
"""Files of runs that something outside their configuration held up: they are predicted, and inform nothing."""
OUTLIER = 0.12
SWEEP_FACTOR = 4.0


def logs(rows: list[Lowered], table: Table) -> Numbers:
    """log(predicted / measured) of every row."""
    constants = constants_of(table)
    return np.array([np.log(row.seconds(constants) / (row.case.measured.step_seconds or 1.0)) for row in rows])


def jacobian(rows: list[Lowered], table: Table, names: list[tuple[str, str, str]], base: Numbers) -> Numbers:
    """d log(predicted) / d log(constant): one pass over the rows for each name of a constant."""
    matrix = np.zeros((len(rows), len(names)))
    step = 0.1
    for part, name in dict.fromkeys((part, name) for part, _, name in names):
        mine = [(i, owner) for i, (p, owner, n) in enumerate(names) if (p, n) == (part, name)]
        varied = copied(table)
        for _, owner in mine:
            old = get(table, part, owner, name)
            put(varied, part, owner, name, old * np.exp(-step))
        touched = {owner for _, owner in mine}
        of = [row for row in rows if part == "link" or _owner(part, row.case) in touched]
        change = dict(zip(map(id, of), logs(of, varied), strict=True))
        for i, owner in mine:
            for r, row in enumerate(rows):
                if id(row) in change and (part == "link" or _owner(part, row.case) == owner):
                    moved = np.log(get(varied, part, owner, name) / get(table, part, owner, name)) or -step
                    matrix[r, i] = (change[id(row)] - base[r]) / moved
    return matrix


def _owner(part: str, case: Case) -> str | None:
    return family_of(case.device) if part == "device" else case.stack


def weights_of(cases: list[Case]) -> Numbers:
    count = defaultdict(int)
    for case in cases:
        count[case.file] += 1
    return np.array([count[case.file] ** -0.25 for case in cases])


def solve(base: Numbers, matrix: Numbers, weights: Numbers, names: list, table: Table, prior: Table) -> Numbers:
    """The change of the logarithms of all constants that is best by the linearised model, held to the prior."""
    spread = np.array([{"link": LINK, "device": DEVICE, "stack": STACK}[part][name] for part, _, name in names])
    off = np.array([np.log(get(table, *each) / get(prior, *each)) for each in names])

    def residuals(change: Numbers) -> Numbers:
        error = (base + matrix @ change) / OUTLIER
        soft = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1))
        return np.concatenate([weights * soft, 0.35 * (off + change) / spread])

    return least_squares(residuals, np.zeros(len(names)), bounds=(-0.7, 0.7)).x


def chosen(cases: list[Case], per_file: int, of_sweep: int) -> list[Case]:
    """Rows to fit step times on: of each file as many, of sweeps more, and none that are far from the best of their cell."""
    generator, by_file, best = random.Random(7), defaultdict(list), {}
    for case in cases:
        if case.measured.step_seconds and case.measured.time_counts:
            by_file[case.file].append(case)
            best[case.cell] = min(best.get(case.cell, 1e30), case.measured.step_seconds)
    kept = []
    for file, mine in sorted(by_file.items()):
        near = [c for c in mine if c.layout.pp <= 16 and (c.measured.step_seconds or 0) < SWEEP_FACTOR * best[c.cell]]
        kept += generator.sample(near, min(of_sweep if "sweep" in file else per_file, len(near)))
    return kept


def middle_stack(
    table: Table, counts: dict[str, int], families: dict[str, tuple[str, ...]], names: Iterable[str]
) -> None:
    """Gives each family (`stack.megatron`: others' Megatrons than its makers'; `stack.default`, what an unknown stack is taken to
    be: those on torch's own modules) the middle of its members' constants."""
    for owner, members in families.items():
        for name in names:
            values = [
                get(table, "stack", s, name)
                for s, n in counts.items()
                if n >= LEAST_ROWS and s.startswith(members) and name in table["stack"].get(s, {})
            ]
            if len(values) >= 2:
                table["stack"][owner][name] = float(np.median(values))


@dataclass
class Bench:
    """Rows for times with the linearised model at `table`, rows for memory with theirs."""

    table: Table
    prior: Table
    timed: list[Lowered]
    held: list[Lowered]
    names: list[tuple[str, str, str]] = field(default_factory=list)
    base: Numbers = field(default_factory=lambda: np.zeros(0))
    matrix: Numbers = field(default_factory=lambda: np.zeros((0, 0)))
    memory: tuple[Numbers, Numbers] = field(default_factory=lambda: (np.zeros(0), np.zeros(0)))

    def linearise(self) -> None:
        names = parameters([row.case for row in self.timed], set())
        self.names = [each for each in names if get(self.prior, *each) > 0]
        self.base = logs(self.timed, self.table)
        self.matrix = jacobian(self.timed, self.table, self.names, self.base)
        collected = [i for i, row in enumerate(self.timed) if row.case.file in COLLECTED]
        known = [i for i, (part, owner, _) in enumerate(self.names) if part == "link" or owner in MEASURED]
        self.matrix[np.ix_(collected, known)] = 0.0
        self.memory = memory_rows(self.held, self.table)

    def step(self, left_out: str | None = None) -> Table:
        """The table one step on. `left_out`: a file whose rows are not looked at, and whose stacks, where no other file has
        them, have no entry afterwards; constants of devices that no other row has go back to the prior."""
        table, kept = copied(self.table), [i for i, row in enumerate(self.timed) if row.case.file != left_out]
        rows = [self.timed[i] for i in kept]
        known = {row.case.stack for row in rows}
        gone = {row.case.stack for row in (*self.timed, *self.held) if row.case.file == left_out} - known
        columns = [i for i, (part, owner, _) in enumerate(self.names) if part != "stack" or owner not in gone]
        names = [self.names[i] for i in columns]
        weights = weights_of([row.case for row in rows])
        matrix = self.matrix[np.ix_(kept, columns)]
        for each, amount in zip(names, solve(self.base[kept], matrix, weights, names, table, self.prior), strict=True):
            put(table, *each, get(table, *each) * float(np.exp(amount)))
        for stack in gone:
            table["stack"].pop(stack, None)
        counts: dict[str, int] = defaultdict(int)
        for row in rows:
            counts[row.case.stack] += 1
        middle_stack(table, counts, {"megatron": MEGATRON, "default": TORCH}, ("product_speed", "link_speed", "fused"))
        mine = [i for i, row in enumerate(self.held) if row.case.file != left_out]
        numbers = fit_memory([self.held[i] for i in mine], table, self.memory[0][mine], self.memory[1][mine])
        middle_stack(table, numbers, {"default": TORCH}, ("extra", *MEMORY.keys() - {"gathered_bytes"}))
        _about(table, rows, numbers)
        return table


def _about(table: Table, rows: list[Lowered], memory_counts: dict[str, int]) -> None:
    """Every entry's `rows` and `fitted_on`."""
    parts: list[tuple[dict, list[Lowered]]] = [(table["link"], rows)]
    for device, entry in table["device"].items():
        family = family_of(device)
        parts.append((entry, [row for row in rows if family and family_of(row.case.device) == family]))
    for stack, entry in table["stack"].items():
        parts.append((entry, [row for row in rows if row.case.stack == stack]))
    for entry, mine in parts:
        entry["rows"] = len(mine)
        entry["fitted_on"] = sorted({row.case.file for row in mine})
    for stack, number in memory_counts.items():
        table["stack"][stack]["memory_rows"] = number


def rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return float(f"{value:.3g}") if isinstance(value, float) else value


def predict_by_file(case: Case, constants: dict[str, Fitted]) -> Prediction:
    return predict_case(case, constants.get(case.file) or constants[""])


def cross(bench: Bench, rows: list, jobs: int) -> Outcome:
    """Every row predicted with constants that were fitted without its file."""
    files = sorted({row.case.file for row in (*bench.timed, *bench.held)})
    constants = {file: constants_of(rounded(bench.step(file))) for file in files}  # type: ignore[arg-type]
    constants[""] = constants_of(bench.table)
    predict = partial(predict_by_file, constants=constants)
    with ProcessPoolExecutor(jobs) as pool:
        return compare(rows, predict, _progress(), each=lambda f, cases: pool.map(f, cases, chunksize=8))


def _progress():  # type: ignore[no-untyped-def]
    begun = time.monotonic()

    def show(done: int, total: int) -> None:
        if done % 200 == 0:
            say(f"{done} of {total}, {(time.monotonic() - begun) / done * (total - done):.0f} s left")

    return show


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="write fitted.toml")
    parser.add_argument("--cross", type=Path, help="cross-validate by file and write the outcome as JSON here")
    parser.add_argument("--rows", type=int, default=30)
    parser.add_argument("--sweep-rows", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    rows, _ = read_rows(options.folders, strict=False)
    cases = [case for case in map(translate, rows) if not isinstance(case, Skip)]
    cases = [case for case in cases if "row" not in case.from_memory and case.file not in DISTURBED]
    table = tomllib.loads(PRIOR.read_text(encoding="utf-8"))
    timed = prepare(chosen(cases, options.rows, options.sweep_rows))
    generator = random.Random(11)
    by_file = defaultdict(list)
    for case in cases:
        if case.measured.memory_bytes and not case.measured.failed and case.layout.pp <= 16:
            by_file[case.file].append(case)
    held = prepare(
        [case for mine in by_file.values() for case in generator.sample(mine, min(len(mine), 4 * options.rows))]
    )
    say(f"{len(timed)} rows for times, {len(held)} for memory")
    bench = Bench(table, copied(table), timed, held)
    for number in range(options.rounds):
        bench.linearise()
        say(f"round {number}: mean |error| {np.abs(np.exp(bench.base) - 1).mean():.3f}, {len(bench.names)} constants")
        bench.table = bench.step()
    if options.cross or not options.rounds:
        bench.linearise()
    else:
        bench.base = logs(timed, bench.table)
    result, error = bench.table, np.abs(np.exp(bench.base) - 1)
    for file in sorted({row.case.file for row in timed}):
        say(f"{file}: {error[[row.case.file == file for row in timed]].mean():.3f}")
    if options.write:
        FITTED.write_text(HEAD + tomli_w.dumps(rounded(result)), encoding="utf-8")  # type: ignore[arg-type]
    if options.cross:
        outcome = cross(bench, rows, options.jobs)
        options.cross.write_text(json.dumps(outcome.to_json()), encoding="utf-8")


if __name__ == "__main__":
    main()
