"""Cases whose programs are lowered once, to be priced again and again; and the fit of what stacks hold in memory."""

import gc
import sys
import time
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from fit_table import LEAST_ROWS, Table, constants_of, get
from fourfold.config import UserError
from fourfold.cost import memory as memory_model
from fourfold.cost.fitted import Fitted
from fourfold.cost.stack import Stack
from fourfold.program import Program, lower_pipeline
from fourfold.program.facts import Lowering
from fourfold.program.liveness import memory_peak
from fourfold.simulate.step import simulate, steady_microbatches, with_microbatches
from fourfold.validate import Case
from fourfold.validate.predict import case_facts, case_prices, check_size

Numbers = NDArray[np.float64]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


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


STEP = 0.1
MEMORY = {"saved_bytes": 8.0, "gathered_bytes": 4.0, "logits_bytes": 16.0}


def memory_rows(rows: list[Lowered], table: Table) -> tuple[Numbers, Numbers]:
    """Of each row: what one unit of each constant adds to the peak where the table is now, and before them the peak less all of
    that; bytes measured. The peak is the highest of many moments, so it is no straight line."""
    constants, matrix, live = constants_of(table), [], []
    for row in rows:
        stack = case_prices(row.case, row.facts, constants).stack
        now, peak = {name: getattr(stack, name) / unit for name, unit in MEMORY.items()}, _peak(row, stack)
        more = [replace(stack, **{name: (now[name] + STEP) * unit}) for name, unit in MEMORY.items()]
        added = [(_peak(row, each) - peak) / STEP for each in more]
        live.append(_live_bytes(row.case, stack))
        matrix.append([peak - sum(a * n for a, n in zip(added, now.values(), strict=True)), *added])
    return np.array(matrix, dtype=float), np.array(live)


def _live_bytes(case: Case, stack: Stack) -> float:
    """Of what the source counts, what tensors hold: without the allocator's slack, and the context where the driver counted."""
    measured, held = case.measured, float(case.measured.memory_bytes or 0)
    if measured.memory_kind == "device":
        held = max(0.5 * held, held - stack.context_bytes)
    return held / (1 + stack.slack) if measured.memory_kind in ("device", "reserved") else held


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
            found = lsq_linear(left, right, bounds=([1.0, 0, 0, 0], [1.3, 2.5, 2, 0.75])).x
            weights = 1 / np.sqrt(np.maximum(np.abs(relative @ found - 1), 0.02))
        entry = table["stack"].setdefault(stack, {})
        entry["extra"] = float(found[0] - 1)
        for value, (name, unit) in zip(found[1:] / found[0], MEMORY.items(), strict=True):
            entry[name] = float(max(value * unit, 1.0)) if name == "logits_bytes" else round(float(value * unit), 3)
        counts[stack] = len(mine)
        say(
            f"memory of {stack}: {len(mine)} rows, mean |error| {np.abs(relative @ found - 1).mean():.3f}, {np.round(found, 2)}"
        )
    return counts
