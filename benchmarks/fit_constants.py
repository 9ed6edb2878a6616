"""Fits the constants of `src/fourfold/cost/fitted.toml` to published runs, and cross-validates them by source.

    python benchmarks/fit_constants.py DIR [--write] [--cross FILE.json] [--rows 30] [--sweep-rows 150] [--rounds 3] [--jobs 2]

DIR holds files of rows, as for `fourfold validate`. `prior_constants.toml` is where the fit starts and what every constant is
held to: a stack with few rows stays near it. The loss is the soft L1 of log(predicted / measured), every file weighing by the
square root of its rows, so that no sweep decides alone. The model is linearised (Gauss-Newton): one constant's name is varied
at a time for all devices, or all stacks, at once, because a row depends on one of each.

`--cross` leaves out one file at a time: constants of devices and links are fitted without it, and its stacks fall back to what the
shipped rule gives for an unknown stack (the framework's nearest year among the others, else `default`). It predicts every row.
Needs scipy.
"""

import argparse
import gc
import json
import random
import sys
import time
import tomllib
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import tomli_w
from numpy.typing import NDArray
from scipy.optimize import least_squares, lsq_linear

from fourfold.config import UserError
from fourfold.cost import memory as memory_model
from fourfold.cost.fitted import Fitted
from fourfold.program import Program, lower_pipeline
from fourfold.program.buffers import Lowering
from fourfold.program.liveness import memory_peak
from fourfold.simulate.step import simulate, steady_microbatches, with_microbatches
from fourfold.validate import Case, Outcome, Prediction, Skip, read_rows, translate
from fourfold.validate import validate as compare
from fourfold.validate.predict import case_facts, case_prices, check_size, predict_case

FITTED = Path(__file__).parents[1] / "src" / "fourfold" / "cost" / "fitted.toml"
PRIOR = Path(__file__).parent / "prior_constants.toml"
HEAD = """\
# Constants fitted to measurements: of devices, links, software stacks; never of a row or a model. `rows`: on how many step times,
# `memory_rows`: on how many peaks of memory, `fitted_on`: of which sources; `source`: what else a value is taken from.
# Written by benchmarks/fit_constants.py.

"""
Table = dict[str, dict]

FAMILIES = {
    "volta": ("v100-sxm-16", "v100-sxm-32"),
    "ampere": ("a100-pcie-40", "a100-pcie-80", "a100-sxm-40", "a100-sxm-80", "a800-sxm-80"),
    "hopper": ("h100-nvl", "h100-pcie", "h100-sxm", "h20", "h200-sxm", "h800-sxm"),
    "blackwell": ("b200", "gb200"),
    "blackwell ultra": ("b300", "gb300"),
}
LINK = {"share": 0.02, "network_share": 0.03, "node_hop_seconds": 0.3, "network_hop_seconds": 0.5}
DEVICE = {"product_share": 0.12, "attention_share": 0.15, "low_share": 0.1, "grouped_share": 0.15, "memory_share": 0.1}
STACK = {
    "product_speed": 0.1,
    "attention_speed": 0.12,
    "link_speed": 0.2,
    "fused": 0.3,
    "host_launch_seconds": 0.8,
    "host_crowded_seconds": 0.3,
    "network_hops": 0.5,
}
ALWAYS = ("product_speed", "attention_speed", "link_speed", "fused")
SEEN = {"nanotron": ("host_launch_seconds", "host_crowded_seconds", "network_hops"), "nemo": ("host_launch_seconds",)}
"""What shows only in layouts that are bad enough, or in models of many small kernels: by framework."""
"""Names of constants that are fitted to step times, and how far, in logarithm, one is likely to be from its prior."""
LEAST_ROWS = 6
LIMITS = {"fused": (0.05, 1.0), "share": (0.5, 0.9), "network_share": (0.7, 1.15), "product_share": (0.3, 0.9)}
OUTLIER = 0.12
SWEEP_FACTOR = 4.0


@dataclass
class Lowered:
    """A case whose programs are lowered: one number of microbatches, or two and where their line is read."""

    case: Case
    facts: Lowering
    runs: list[tuple[Lowering, tuple[Program, ...]]] = field(default_factory=list)
    ratio: float | None = None

    def seconds(self, constants: Fitted) -> float:
        prices = case_prices(self.case, self.facts, constants)
        times = [simulate(facts, prices, programs).seconds for facts, programs in self.runs]
        return times[0] if self.ratio is None else times[0] + self.ratio * (times[1] - times[0])


def lowered(case: Case) -> Lowered:
    facts = case_facts(case)
    check_size(facts)
    wanted, period = facts.layout.num_microbatches, max(1, facts.layout.pp)
    least = steady_microbatches(facts)
    if wanted <= least + period:
        return Lowered(case, facts, [(facts, tuple(lower_pipeline(facts)))])
    fewer = least + (wanted - least) % period
    both = [with_microbatches(facts, number) for number in (fewer, fewer + period)]
    return Lowered(case, facts, [(each, tuple(lower_pipeline(each))) for each in both], (wanted - fewer) / period)


def constants_of(table: Table) -> Fitted:
    return Fitted(table["device"], table["stack"], table["link"])


# Parameters: (part, owner, name); the owner of a device's constant is its family.


def family_of(device: str) -> str | None:
    return next((family for family, members in FAMILIES.items() if device in members), None)


def parameters(cases: list[Case], left_out: set[str]) -> list[tuple[str, str, str]]:
    devices, stacks, low = defaultdict(int), defaultdict(int), defaultdict(int)
    for case in cases:
        devices[family_of(case.device) or ""] += 1
        stacks[case.stack] += 1
        low[family_of(case.device) or ""] += case.precision.low is not None
    found = [("link", "", name) for name in LINK]
    for family in sorted(f for f, n in devices.items() if f and n >= LEAST_ROWS):
        found += [("device", family, name) for name in DEVICE if name != "low_share" or low[family] >= LEAST_ROWS]
    for stack in sorted(s for s, n in stacks.items() if n >= LEAST_ROWS and s not in left_out):
        seen = SEEN.get(stack.partition("-")[0], ())
        found += [("stack", stack, n) for n in STACK if n in ALWAYS or n in seen]
    return found


def get(table: Table, part: str, owner: str, name: str) -> float:
    if part == "link":
        return float(table["link"][name])
    owner = FAMILIES[owner][-1] if part == "device" else owner
    return float(table[part].get(owner, {}).get(name, table[part]["default"].get(name, 1.0)))


def put(table: Table, part: str, owner: str, name: str, value: float) -> None:
    low, high = LIMITS.get(name, (0.0, 1e9))
    value = min(high, max(low, value))
    if part == "link":
        table["link"][name] = value
        return
    for each in FAMILIES[owner] if part == "device" else (owner,):
        entry = table[part].setdefault(each, {})
        if name == "attention_share":
            default = table[part]["default"]
            ratio = default["attention_backward_share"] / default["attention_share"]
            entry["attention_backward_share"] = value * ratio
        entry[name] = value


def copied(table: Table) -> Table:
    return json.loads(json.dumps(table))


Numbers = NDArray[np.float64]


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


def middle_stack(table: Table, counts: dict[str, int]) -> None:
    """Gives `stack.default` the middle of the stacks of many sources: what an unknown stack is taken to be."""
    for name in ("product_speed", "link_speed", "fused"):
        values = [
            get(table, "stack", s, name)
            for s, n in counts.items()
            if n >= LEAST_ROWS and name in table["stack"].get(s, {})
        ]
        if len(values) >= 3:
            table["stack"]["default"][name] = float(np.median(values))


# Memory: linear in what a stack keeps beyond the program


MEMORY = {"saved_bytes": 8.0, "gathered_bytes": 4.0, "logits_bytes": 16.0}


def memory_rows(rows: list[Lowered], table: Table) -> tuple[Numbers, Numbers]:
    """Of each row: peak of the bare program, and what one unit of each constant adds; bytes measured."""
    constants, matrix = constants_of(table), []
    for row in rows:
        stack = case_prices(row.case, row.facts, constants).stack
        bare = replace(stack, **dict.fromkeys(MEMORY, 0.0))
        base = _peak(row, bare)
        added = [_peak(row, replace(bare, **{name: unit})) - base for name, unit in MEMORY.items()]
        matrix.append([base, *added])
    return np.array(matrix, dtype=float), np.array([row.case.measured.memory_bytes for row in rows], dtype=float)


def _peak(row: Lowered, stack: object) -> int:
    facts, programs = row.runs[-1]
    peaks = [memory_peak(memory_model.held_program(program, facts, stack)).bytes for program in programs]  # type: ignore[arg-type]
    return peaks[-1] if row.case.measured.last_rank_alone else max(peaks)


def fit_memory(rows: list[Lowered], table: Table, matrix: Numbers, measured: Numbers) -> dict[str, int]:
    """Sets `extra` and the three constants of every stack with enough rows; returns their numbers."""
    counts: dict[str, int] = {}
    for stack in sorted({row.case.stack for row in rows}):
        mine = [i for i, row in enumerate(rows) if row.case.stack == stack]
        if len(mine) < LEAST_ROWS:
            continue
        weights = np.ones(len(mine))
        relative = matrix[mine] / measured[mine, None]
        held = np.diag([0.5, 0.12, 0.12, 0.12]) * np.sqrt(len(mine)) * 0.3
        starts = [get(table, "stack", stack, name) if name != "gathered_bytes" else 0.0 for name in MEMORY]
        target = np.array([1.0, *(start / unit for start, unit in zip(starts, MEMORY.values(), strict=True))])
        for _ in range(12):  # least absolute relative errors by reweighting
            left = np.concatenate([weights[:, None] * relative, held])
            right = np.concatenate([weights, held @ target])
            found = lsq_linear(left, right, bounds=([1.0, 0, 0, 0], [1.3, 4, 2, 2])).x
            weights = 1 / np.sqrt(np.maximum(np.abs(relative @ found - 1), 0.02))
        entry = table["stack"].setdefault(stack, {})
        entry["extra"] = float(found[0] - 1)
        for value, (name, unit) in zip(found[1:], MEMORY.items(), strict=True):
            entry[name] = float(max(value * unit, 1.0)) if name == "logits_bytes" else round(float(value * unit), 3)
        counts[stack] = len(mine)
        say(
            f"memory of {stack}: {len(mine)} rows, mean |error| {np.abs(relative @ found - 1).mean():.3f}, {np.round(found, 2)}"
        )
    return counts


# The whole


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def prepare(cases: list[Case]) -> list[Lowered]:
    rows = []
    for case in cases:
        try:
            rows.append(lowered(case))
        except UserError as error:
            say(f"{case.id}: {error}")
    gc.collect()
    gc.freeze()
    return rows


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
        self.names = parameters([row.case for row in self.timed], set())
        self.base = logs(self.timed, self.table)
        self.matrix = jacobian(self.timed, self.table, self.names, self.base)
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
        middle_stack(table, {s: n for s, n in counts.items() if not s.startswith("nanotron")})
        mine = [i for i, row in enumerate(self.held) if row.case.file != left_out]
        numbers = fit_memory([self.held[i] for i in mine], table, self.memory[0][mine], self.memory[1][mine])
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
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="write fitted.toml")
    parser.add_argument("--cross", type=Path, help="cross-validate by file and write the outcome as JSON here")
    parser.add_argument("--rows", type=int, default=30)
    parser.add_argument("--sweep-rows", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    rows, _ = read_rows([options.folder], strict=False)
    cases = [case for case in map(translate, rows) if not isinstance(case, Skip)]
    table = tomllib.loads(PRIOR.read_text(encoding="utf-8"))
    timed = prepare(chosen(cases, options.rows, options.sweep_rows))
    generator = random.Random(11)
    by_file = defaultdict(list)
    for case in cases:
        if case.measured.memory_bytes and not case.measured.failed and case.layout.pp <= 16:
            by_file[case.file].append(case)
    held = prepare(
        [case for mine in by_file.values() for case in generator.sample(mine, min(len(mine), 2 * options.rows))]
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
