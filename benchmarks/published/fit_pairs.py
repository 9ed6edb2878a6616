"""Writes intervals by software and device into `src/fourfold/evidence/intervals.toml`, and prints what left-out runs they cover.

    python benchmarks/published/look.py DIR... --timed timed.npz --held held.npz
    python benchmarks/published/fit_pairs.py DIR... --timed timed.npz --held held.npz [--write]

Each run is predicted with the constants that ship, moved by what a fit without its source changes. The runs of a pair of software
family and device count in full, all others of the family together as `OTHERS` sources, and so do all others; a pair of one source
has its family's interval. Coverage: the share of runs that lie in the intervals made without their source, or without all runs of
their pair, which the constants were then fitted without too."""

import tomllib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tomli_w

from case import PublishedCase
from fit_constants import Model
from fit_file import FITTED, PRIOR, read
from fit_intervals import HEAD, SHARE, TABLE, ends, weighed
from fit_memory import MemoryRows, left_out_memory
from fit_rows import TimedRows
from fit_sample import is_measured, telling
from fit_table import UNKNOWN, Numbers, Table
from fourfold.cost.fitted import framework_of
from fourfold.evidence.interval import nearest_interval
from row_command import cases_of, row_parser, rows_or_exit

OTHERS = 15.0
MOST_KNOWN = 2
"""Sources from which on a pair has an interval of its own."""
PARTS: dict[str, Callable[[PublishedCase], Hashable]] = {
    "sources": lambda case: case.file,
    "pairs": lambda case: (framework_of(case.software), case.device),
}
"""Parts of the cases that are left out together; below, of their ratios."""
OUT: dict[str, Callable[["PairRatio"], Hashable]] = {
    "sources": lambda run: run.file,
    "pairs": lambda run: (run.family, run.device),
}


@dataclass(frozen=True)
class PairRatio:
    """One run's measured / predicted, blind, with its source and the pair that it is of."""

    value: float
    file: str
    family: str
    device: str


def pair_ratios(cases: Sequence[PublishedCase], errors: Numbers | float) -> list[PairRatio]:
    """Ratios of runs whose software somebody names. `errors`: log(predicted / measured)."""
    both = zip(cases, np.broadcast_to(errors, len(cases)), strict=True)
    found = [
        PairRatio(float(np.exp(-error)), case.file, framework_of(case.software), case.device) for case, error in both
    ]
    return [each for each in found if each.family != UNKNOWN]


def pair_ends(found: Sequence[PairRatio], family: str, device: str | None) -> tuple[float, float]:
    """The interval of a pair, or of a family on any device (None)."""
    weights = weighed([each.file for each in found])
    of_family = np.array([each.family == family for each in found])
    own = of_family & np.array([device in (None, each.device) for each in found])
    for others in (of_family & ~own, ~of_family):
        total = weights[others].sum()
        weights[others] *= min(1.0, OTHERS / total) if total else 1.0
    return ends(np.array([each.value for each in found]), weights)


def pair_table(found: Sequence[PairRatio]) -> Table:
    """Intervals by family and device, and by family alone."""
    table: Table = {"pairs": {}, "families": {}}
    for family in sorted({each.family for each in found}):
        mine = [each for each in found if each.family == family]
        for device in (None, *sorted({each.device for each in mine})):
            runs = [each for each in mine if device in (None, each.device)]
            sources = len({each.file for each in runs})
            if device is not None and sources < MOST_KNOWN:
                continue
            low, high = pair_ends(found, family, device)
            entry = {"low": round(low, 3), "high": round(high, 3), "runs": len(runs), "sources": sources}
            if device is None:
                table["families"][family] = entry
            else:
                table["pairs"].setdefault(family, {})[device] = entry
    return table


def names_in(found: Sequence[PairRatio]) -> dict[str, list[str]]:
    """Devices and software that runs are of themselves."""
    return {"devices": sorted({each.device for each in found}), "software": sorted({each.family for each in found})}


def covered(found: Sequence[PairRatio], out_of: Callable[[PairRatio], Hashable], shipped: Table) -> list[bool]:
    """Whether each run, in order, lies in the interval that it would have, had all of its part not been published. `shipped`: the
    quantity's intervals by what is known, for software or a device that nothing else tells of."""
    tables: dict[Hashable, tuple[Table, dict[str, list[str]]]] = {}
    for part in dict.fromkeys(map(out_of, found)):
        others = [each for each in found if out_of(each) != part]
        by_state = {key: each for key, each in shipped.items() if "_" in key}
        tables[part] = ({**by_state, **pair_table(others)}, names_in(others))
    inside = []
    for each in found:
        table, names = tables[out_of(each)]
        interval = nearest_interval(table, each.family, each.device, names)
        inside.append(interval["low"] <= each.value <= interval["high"])
    return inside


@dataclass(frozen=True)
class Coverage:
    """How well runs were predicted with a part left out, and the share of them in the intervals made without that part."""

    out: str
    quantity: str
    runs: int
    sources: int
    median: float
    mean: float
    covered: float

    @classmethod
    def of(cls, quantity: str, out: str, found: Sequence[PairRatio], shipped: Table) -> "Coverage":
        errors = np.abs(1 / np.array([each.value for each in found]) - 1)
        inside = covered(found, OUT[out], shipped)
        sources = len({each.file for each in found})
        errors_of = (float(np.median(errors)), float(errors.mean()), float(np.mean(inside)))
        return cls(out, quantity, len(found), sources, *errors_of)

    def __str__(self) -> str:
        about = f"{self.quantity}, {self.out} left out: {self.runs} runs of {self.sources} sources"
        return f"{about}, median {self.median:.1%}, mean {self.mean:.1%}, covered {self.covered:.1%}"


def main() -> None:
    parser = row_parser(__doc__)
    parser.add_argument("--timed", type=Path)
    parser.add_argument("--held", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    cases, prior = telling(cases_of(rows_or_exit(parser, options.folders))), read(PRIOR)
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    assert table["share"] == SHARE
    table |= names_in(pair_ratios([case for case in cases if case.measured.step_seconds], 0.0))
    for quantity, found in left_out_ratios(cases, prior, options.timed, options.held).items():
        for out, mine in found.items():
            print(Coverage.of(quantity, out, mine, table[quantity]))
        table[quantity] |= pair_table(found["sources"])
    if options.write:
        TABLE.write_text(HEAD + tomli_w.dumps(table), encoding="utf-8")


def left_out_ratios(
    cases: Sequence[PublishedCase], prior: Table, timed: Path | None, held: Path | None
) -> dict[str, dict[str, list[PairRatio]]]:
    """By quantity and by what is left out, the runs that `look.py` wrote."""
    found = {}
    if timed:
        rows = TimedRows.load(timed, cases)
        model = Model.of([rows], prior)
        found["time"] = {
            out: pair_ratios(rows.cases, model.left_out_errors(rows.errors, of)) for out, of in PARTS.items()
        }
    if held:
        both, shipped = MemoryRows.load(held, cases), read(FITTED)
        exact = [is_measured(case) for case in both.cases]
        errors = {out: left_out_memory(both, prior, shipped, of)[np.array(exact)] for out, of in PARTS.items()}
        found["memory"] = {out: pair_ratios(both.of(exact).cases, mine) for out, mine in errors.items()}
    return found


if __name__ == "__main__":
    main()
