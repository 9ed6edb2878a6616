"""Writes `src/fourfold/evidence/intervals.toml`: how far measured runs lie from their predictions, by what is known of them.

    python benchmarks/published/fit_constants.py DIR... --cross cross.json --folds folds.json
    python benchmarks/published/fit_intervals.py DIR... --folds folds.json [--rows 10] [--jobs 2] [--write]
    python benchmarks/published/fit_intervals.py DIR... --looked rows.npz [--write]

Each run is predicted with the constants that were fitted without its source, in four ways: as it is; as if nobody named its
software, at fourfold's own prices; as if nobody knew its device; and both. The ends of an interval are the quantiles of
measured / predicted, every source weighing by the square root of its runs. Coverage: the share of a source's runs that lie
in the intervals of all other sources.

With `--looked`, rows as `fit_constants.py --looked` wrote them, step times of known software on known devices alone are fitted, by
pair of software family and device: the pair's own runs count in full, all others of the family together as `OTHERS` sources,
and so do all others. A pair without runs has its family's interval."""

import argparse
import json
import random
import tomllib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import tomli_w

from as_case import as_case
from case import PublishedCase
from fit_constants import Model, named_as_known
from fit_file import PRIOR, read
from fit_rows import TimedRows
from fit_sample import is_measured, telling
from fit_table import Numbers, Table, constants_of
from fourfold.config import UserError
from fourfold.cost.fitted import Fitted, fitted, framework_of
from fourfold.simulate.run_prices import OWN_SOFTWARE
from fourfold.validate import predict_case
from row_command import cases_of, row_parser, rows_or_exit
from settle import settle

TABLE = Path(__file__).parents[2] / "src" / "fourfold" / "evidence" / "intervals.toml"
INFORMED = Path(__file__).parent / "fitted_on.json"
SHARE = 0.8
PRICED_AS_OWN = "own"
"""The name under which a case has fourfold's constants of a fold."""
STATES = ("named_profiled", "unnamed_profiled", "named_unprofiled", "unnamed_unprofiled")
QUANTITIES = ("time", "memory")
HEAD = """\
# Quantiles of measured / predicted over published runs whose sources the constants had not seen, by whether published runs inform
# the software and the device. Written by benchmarks/published/fit_intervals.py; out_of_memory by fit_out_of_memory.py.

"""


@dataclass(frozen=True)
class Ratio:
    """One run's measured / predicted, of time or memory, in one state of knowledge."""

    quantity: str
    state: str
    file: str
    value: float


def ratios(case: PublishedCase, folds: dict[str, Table]) -> list[Ratio]:
    """A run's ratios, blind: what of them its source measured and the prediction gives."""
    constants = constants_of(folds[case.file] if case.file in folds else folds[""])
    own = {**constants.profiles, PRICED_AS_OWN: constants.profiles[OWN_SOFTWARE]}
    found = []
    for state in STATES:
        names, devices = state.split("_")
        known = (
            constants
            if devices == "profiled"
            else replace(constants, devices={"default": constants.devices["default"]})
        )
        try:
            if names == "named":
                named = named_as_known(case, known)
                if framework_of(named.software) == "unknown":
                    continue
                _, prediction = settle(named, known)
            else:
                prediction = predict_case(as_case(replace(case, software=PRICED_AS_OWN)), replace(known, profiles=own))
        except UserError:
            continue
        measured = case.measured
        if measured.step_seconds and measured.time_counts and prediction.step_seconds:
            found.append(Ratio("time", state, case.file, measured.step_seconds / prediction.step_seconds))
        if is_measured(case) and measured.memory_bytes and prediction.memory_bytes:
            found.append(Ratio("memory", state, case.file, measured.memory_bytes / prediction.memory_bytes))
    return found


def weighed(files: list[str]) -> Numbers:
    """The weight of each ratio: a source weighs by the square root of its runs."""
    count: dict[str, int] = defaultdict(int)
    for file in files:
        count[file] += 1
    return np.array([count[file] ** -0.5 for file in files])


def ends(values: Numbers, weights: Numbers) -> tuple[float, float]:
    """The weighted quantiles that leave half of the rest on either side; 1, the prediction itself, is between them."""
    order = np.argsort(values)
    below = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    low, high = np.interp([(1 - SHARE) / 2, (1 + SHARE) / 2], below, values[order])
    return min(1.0, float(low)), max(1.0, float(high))


def table_of(found: list[Ratio]) -> Table:
    """The intervals of every quantity and state."""
    table: Table = {}
    for quantity in QUANTITIES:
        for state in STATES:
            mine = [each for each in found if (each.quantity, each.state) == (quantity, state)]
            files = [each.file for each in mine]
            low, high = ends(np.array([each.value for each in mine]), weighed(files))
            entry = {"low": round(low, 3), "high": round(high, 3), "runs": len(mine), "sources": len(set(files))}
            table.setdefault(quantity, {})[state] = entry
    return table


def coverage(found: list[Ratio]) -> dict[str, dict[str, float]]:
    """For each quantity and state, the share of runs in the intervals of all other sources, each source weighing as in the fit."""
    shares: dict[str, dict[str, float]] = {}
    for quantity in QUANTITIES:
        for state in STATES:
            mine = [each for each in found if (each.quantity, each.state) == (quantity, state)]
            values, files = np.array([each.value for each in mine]), np.array([each.file for each in mine])
            weights, inside = weighed(list(files)), np.zeros(len(mine))
            for file in np.unique(files):
                rest = files != file
                low, high = ends(values[rest], weights[rest])
                inside[~rest] = (values[~rest] >= low) & (values[~rest] <= high)
            shares.setdefault(quantity, {})[state] = float((inside * weights).sum() / weights.sum())
            shares[quantity][f"{state}_by_run"] = float(inside.mean())
    return shares


@dataclass(frozen=True)
class PairRatio:
    """One run's measured / predicted step time, blind, with its source and the pair that it is of."""

    value: float
    file: str
    family: str
    device: str


OTHERS = 15.0
"""From 2 to 30, and with all, left-out sources are covered to 78 to 81 % and left-out pairs to 78 to 80 %; the mean interval score
(Gneiting & Raftery 2007) is least here."""
MOST_KNOWN = 2
"""Sources from which on a pair has an interval of its own."""


def pair_ratios(model: Model, known: Fitted, by_pair: bool = False) -> list[PairRatio]:
    """The ratio of every row, with its source, or all rows of its pair, left out."""

    def pair(case: PublishedCase) -> tuple[str, str]:
        return known.family(case.software), case.device

    errors = model.left_out_errors(pair if by_pair else lambda case: case.file)
    both = zip(model.cases, errors, strict=True)
    return [PairRatio(float(np.exp(-error)), case.file, *pair(case)) for case, error in both]


def pair_ends(found: Sequence[PairRatio], family: str, device: str | None) -> tuple[float, float]:
    """The interval of a pair, or of a family on any device (None)."""
    weights = weighed([each.file for each in found])
    of_family = np.array([each.family == family for each in found])
    own = of_family & np.array([device in (None, each.device) for each in found])
    for others in (of_family & ~own, ~of_family):
        total = weights[others].sum()
        weights[others] *= min(1.0, OTHERS / total) if total else 1.0
    return ends(np.array([each.value for each in found]), weights)


def pair_coverage(found: Sequence[PairRatio], out_of: Callable[[PairRatio], Hashable]) -> float:
    """The share of runs that lie in the intervals made of all others, `out_of` saying what is left out together."""
    inside, ends_of = [], dict[Hashable, tuple[float, float]]()
    for each in found:
        key = (out_of(each), each.family, each.device)
        if key not in ends_of:
            others = [other for other in found if out_of(other) != out_of(each)]
            ends_of[key] = pair_ends(others, each.family, each.device)
        low, high = ends_of[key]
        inside.append(low <= each.value <= high)
    return float(np.mean(inside))


def pair_table(found: Sequence[PairRatio]) -> Table:
    """Intervals by family and device, and by family alone."""
    table: Table = {"pairs": {}, "families": {}}
    for family in sorted({each.family for each in found} - {"unknown"}):
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


def fit_pairs(options: argparse.Namespace, cases: list[PublishedCase]) -> None:
    """Intervals of step times by pair: prints their coverage, and writes them where that is asked for."""
    prior = read(PRIOR)
    model, known = Model.of([TimedRows.load(options.looked, cases)], prior), constants_of(prior)
    by_source, by_pair = pair_ratios(model, known), pair_ratios(model, known, by_pair=True)
    for name, found, out_of in (
        ("sources", by_source, lambda each: each.file),
        ("pairs", by_pair, lambda each: (each.family, each.device)),
    ):
        errors = np.abs(1 / np.array([each.value for each in found]) - 1)
        covered = pair_coverage(found, out_of)
        print(
            f"{name} left out: {len(found)} runs, median {np.median(errors):.1%}, mean {errors.mean():.1%}, {covered:.1%} covered"
        )
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    low, high = ends(np.array([each.value for each in by_source]), weighed([each.file for each in by_source]))
    counted = {"runs": len(by_source), "sources": len({each.file for each in by_source})}
    table["time"]["named_profiled"] = {"low": round(low, 3), "high": round(high, 3), **counted}
    table["time"] |= pair_table(by_source)
    table["devices"] = sorted({each.device for each in by_source})
    table["software"] = sorted({each.family for each in by_source} - {"unknown"})
    if options.write:
        TABLE.write_text(HEAD + tomli_w.dumps(table), encoding="utf-8")


def informed_names() -> dict[str, list[str]]:
    """Devices that the runs of one source at least inform, and software that two do."""
    informed = json.loads(INFORMED.read_text(encoding="utf-8"))
    return {
        "devices": sorted(name for name, entry in informed["device"].items() if entry["rows"] and name != "default"),
        "software": sorted({fitted().family(name) for name, entry in informed["software"].items() if entry["rows"]}),
    }


def chosen(cases: list[PublishedCase], of_file: int) -> list[PublishedCase]:
    """Cases, so many of each file, drawn alike every time."""
    generator, by_file = random.Random(3), defaultdict(list)
    for case in cases:
        if not case.offloaded and not case.measured.failed:
            by_file[case.file].append(case)
    return [case for mine in by_file.values() for case in generator.sample(mine, min(len(mine), of_file))]


def main() -> None:
    parser = row_parser(__doc__)
    parser.add_argument("--folds", type=Path)
    parser.add_argument("--looked", type=Path)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    cases = telling(cases_of(rows_or_exit(parser, options.folders)))
    if options.looked is not None:
        fit_pairs(options, cases)
        return
    if options.folds is None:
        parser.error("--folds or --looked: one is needed")
    cases = chosen(cases, options.rows)
    folds = json.loads(options.folds.read_text(encoding="utf-8"))
    with ProcessPoolExecutor(options.jobs) as pool:
        found = [each for some in pool.map(partial(ratios, folds=folds), cases, chunksize=16) for each in some]
    table = {"share": SHARE, **informed_names(), **table_of(found)}
    print(tomli_w.dumps(table), json.dumps(coverage(found), indent=1), sep="\n")
    if options.write:
        table["out_of_memory"] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["out_of_memory"]
        TABLE.write_text(HEAD + tomli_w.dumps(table), encoding="utf-8")


if __name__ == "__main__":
    main()
