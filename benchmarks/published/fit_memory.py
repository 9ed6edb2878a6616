"""The fit of what software profiles hold in memory: five constants, each its prior plus its profile's departure; a trainer's
own is not written. Runs whose memory nobody measured say what they hold at most, as they ran, or at least, as they ran out
of memory."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from case import PublishedCase
from fit_rows import Lowered, named, say
from fit_sample import is_measured
from fit_table import UNKNOWN, Constants, Numbers, Table, constants_of, copied, put, weights_of
from fourfold.cost import memory as memory_model
from fourfold.cost.fitted import framework_of
from fourfold.cost.software import SoftwareProfile
from fourfold.program.liveness import memory_peak
from fourfold.program.view import rank_views
from fourfold.validate import case_prices

STEP = 0.1
UNITS = {"saved_bytes": 8.0, "gathered_bytes": 4.0, "logits_bytes": 16.0, "unit_bytes": 8.0}
NAMES = ("extra", *UNITS)
SPREAD = {"extra": 0.08, "saved_bytes": 0.35, "gathered_bytes": 0.28, "logits_bytes": 0.28, "unit_bytes": 0.35}
"""How far a framework's is likely to be from its prior, in units, and a software profile's from its framework's."""
LARGEST = {"extra": 0.3, "saved_bytes": 2.5, "gathered_bytes": 2.0, "logits_bytes": 1.5, "unit_bytes": 1.5}
SMALL_ERROR, REWEIGHTED = 0.03, 10


@dataclass(frozen=True)
class MemoryRows:
    """Rows whose memory was measured or is bounded. `parts`: of each row, before any constant and for one unit of each of four, in
    shares of what its tensors were measured to hold, or may hold."""

    cases: list[PublishedCase]
    parts: Numbers

    @property
    def bounds(self) -> Numbers:
        """For each row: 0 where its memory was measured, 1 where it ran, -1 where it did not fit."""
        return np.array([0.0 if is_measured(case) else -1.0 if case.measured.failed else 1.0 for case in self.cases])

    def of_known(self) -> "MemoryRows":
        return self.of([case.software.partition("-")[0] != UNKNOWN for case in self.cases])

    def save(self, path: Path) -> None:
        """Writes what was looked at, the cases by their names, as `.npz`."""
        np.savez_compressed(path, ids=np.array([named(case) for case in self.cases]), parts=self.parts)

    @classmethod
    def load(cls, path: Path, cases: Iterable[PublishedCase]) -> "MemoryRows":
        """Reads what `save` wrote. Rows that are no longer among the cases are left out."""
        known = {named(case): case for case in cases}
        with np.load(path, allow_pickle=False) as found:
            rows = [row for row, name in enumerate(found["ids"]) if str(name) in known]
            return cls([known[str(found["ids"][row])] for row in rows], found["parts"][rows])

    def without(self, files: frozenset[str]) -> "MemoryRows":
        return self.of([case.file not in files for case in self.cases])

    def of(self, which: list[bool]) -> "MemoryRows":
        """Some of the rows."""
        kept = [i for i, keeps in enumerate(which) if keeps]
        return MemoryRows([self.cases[i] for i in kept], self.parts[kept])


def held_rows(rows: list[Lowered], table: Table) -> MemoryRows:
    """The peak is the largest of many sums, and so not linear in the constants: its slope is taken at the table's values."""
    constants, parts = constants_of(table), []
    for row in rows:
        software = case_prices(row.run, row.spec, constants).software
        now, peak = {name: getattr(software, name) / unit for name, unit in UNITS.items()}, _peak(row, software)
        more = [replace(software, **{name: (now[name] + STEP) * unit}) for name, unit in UNITS.items()]
        added = [(_peak(row, each) - peak) / STEP for each in more]
        before = peak - sum(a * n for a, n in zip(added, now.values(), strict=True))
        parts.append(np.array([before, *added]) / live_bytes(row.case, software))
    return MemoryRows([row.case for row in rows], np.array(parts, dtype=float).reshape(-1, len(NAMES)))


def live_bytes(case: PublishedCase, software: SoftwareProfile) -> float:
    """Bytes of tensors in what the source counts: without the allocator's fragmentation, and the context where the driver counted.
    Where nobody measured, what the device has room for."""
    if not is_measured(case):
        return case.hardware.memory_bytes - software.context_bytes
    measured, held = case.measured, float(case.measured.memory_bytes or 0)
    if measured.memory_kind == "device":
        held = max(0.5 * held, held - software.context_bytes)
    return held / (1 + software.fragmentation) if measured.memory_kind in ("device", "reserved") else held


def _peak(row: Lowered, software: SoftwareProfile) -> int:
    spec, programs = row.runs[-1]
    both = zip(programs, rank_views(spec), strict=True)
    peaks = [memory_peak(memory_model.held_program(program, view, software)).bytes for program, view in both]
    return peaks[-1] if row.case.measured.last_rank_alone else max(peaks)


def fit_memory(held: MemoryRows, prior: Table, table: Table) -> None:
    """Sets the five constants of every software and framework of the rows in `table`, by least absolute relative errors."""
    before, held = Constants(prior), held.of_known()
    if not held.cases:
        return
    leaves = sorted({case.software for case in held.cases})
    owners = sorted({framework_of(software) for software in leaves})
    trainers = sorted({case.trainer for case in held.cases})
    named = (("framework", owners), ("software", leaves), ("trainer", trainers))
    nodes = [(level, name) for level, names in named for name in names]
    columns = {node: column for column, node in enumerate(nodes)}
    start = np.array([_start(before, case.software) for case in held.cases])
    spread = np.array([[SPREAD[name] for name in NAMES]] * len(nodes))
    member = np.zeros((len(held.cases), len(nodes)))
    for row, case in enumerate(held.cases):
        member[row, [columns["framework", framework_of(case.software)], columns["trainer", case.trainer]]] = 1.0
        if case.software != framework_of(case.software):
            member[row, columns["software", case.software]] = 1.0
    moved, weights, bounds = np.zeros_like(spread), weights_of(held.cases), held.bounds
    for _ in range(REWEIGHTED):
        now = np.clip(start + member @ moved, 0.0, [LARGEST[name] for name in NAMES])
        inner = held.parts[:, 0] + (held.parts[:, 1:] * now[:, 1:]).sum(1)
        error = (1 + now[:, 0]) * inner - 1
        slope = np.concatenate([inner[:, None], (1 + now[:, :1]) * held.parts[:, 1:]], 1)
        matrix = (member[:, :, None] * slope[:, None, :] * spread).reshape(len(error), -1)
        wrong = (bounds == 0) | (bounds * error > 0)
        weighted = matrix * (weights**2 * wrong * 10 / np.maximum(np.abs(error), SMALL_ERROR))[:, None]
        at = (moved / spread).ravel()
        found = np.linalg.solve(weighted.T @ matrix + np.eye(len(at)), weighted.T @ (matrix @ at - error))
        moved = (at + 0.7 * (found - at)).reshape(spread.shape) * spread
    exact, beyond = bounds == 0, (bounds * error > 0).sum()
    off = np.abs(error[exact]).mean() if exact.any() else 0.0
    say(f"memory: {exact.sum()} rows, mean |error| {off:.3f}; {beyond} of {(~exact).sum()} beyond their bounds")
    for software in leaves:
        departed = moved[columns["framework", framework_of(software)]] + moved[columns["software", software]]
        _put(table, software, _start(before, software) + departed)


def left_out_memory(
    held: MemoryRows, prior: Table, shipped: Table, part_of: Callable[[PublishedCase], Hashable]
) -> Numbers:
    """log(predicted / measured), or of the bound where nobody measured, of every row by constants that are fitted without its part
    of the rows (its source, say): those that ship, and what leaving that part out changes."""
    before, now = Constants(shipped), _constants_of(held, held, prior)
    errors, parts = np.zeros(len(held.cases)), [part_of(case) for case in held.cases]
    for part in dict.fromkeys(parts):
        mine = [each == part for each in parts]
        at = np.array([_start(before, case.software) for case in held.of(mine).cases])
        without = _constants_of(held.of([not each for each in mine]), held, prior)
        at += np.array([without[case.software] - now[case.software] for case in held.of(mine).cases])
        at = np.clip(at, 0.0, [LARGEST[name] for name in NAMES])
        rows = held.parts[np.array(mine)]
        errors[mine] = np.log((1 + at[:, 0]) * (rows[:, 0] + (rows[:, 1:] * at[:, 1:]).sum(1)))
    return errors


def _constants_of(fitted_on: MemoryRows, wanted: MemoryRows, prior: Table) -> dict[str, Numbers]:
    """The five constants of the software of all rows that are wanted, fitted on some."""
    table = copied(prior)
    fit_memory(fitted_on, prior, table)
    after = Constants(table)
    return {case.software: _start(after, case.software) for case in wanted.cases}


def _start(prior: Constants, software: str) -> Numbers:
    return np.array([prior.value("software", software, name) / UNITS.get(name, 1.0) for name in NAMES])


def _put(table: Table, owner: str, values: Numbers) -> None:
    for name, value in zip(NAMES, values, strict=True):
        value = min(max(float(value), 0.0), LARGEST[name]) * UNITS.get(name, 1.0)
        put(table, "software", owner, name, max(value, 1.0) if name == "logits_bytes" else value)
