"""Writes `src/fourfold/evidence/intervals.toml`: how far measured runs lie from their predictions, by what is known of them.

    python benchmarks/published/fit_constants.py DIR... --cross cross.json --folds folds.json
    python benchmarks/published/fit_intervals.py DIR... --folds folds.json [--rows 10] [--jobs 2] [--write]

Each run is predicted with the constants that were fitted without its source, in four ways: as it is; as if nobody named its
software, at fourfold's own prices; as if nobody knew its device; and both. The ends of an interval are the quantiles of
measured / predicted, every source weighing by the square root of its runs. Coverage: the share of a source's runs that lie
in the intervals of all other sources."""

import json
import random
import tomllib
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import tomli_w

from as_case import as_case
from case import PublishedCase
from fit_constants import named_as_known
from fit_file import read_informed
from fit_sample import is_measured, telling
from fit_table import Numbers, Table, constants_of
from fourfold.config import UserError
from fourfold.cost.fitted import framework_of
from fourfold.simulate.run_prices import OWN_SOFTWARE
from fourfold.validate import predict_case
from row_command import cases_of, row_parser, rows_or_exit
from settle import settle

TABLE = Path(__file__).parents[2] / "src" / "fourfold" / "evidence" / "intervals.toml"
SHARE = 0.8
PRICED_AS_OWN = "own"
"""The name under which a case has fourfold's constants of a fold."""
STATES = ("named_profiled", "unnamed_profiled", "named_unprofiled", "unnamed_unprofiled")
QUANTITIES = ("time", "memory")
HEAD = """\
# Quantiles of measured / predicted over published runs whose sources the constants had not seen, by whether published runs inform
# the software and the device. Written by benchmarks/published/fit_intervals.py; pairs and families by fit_pairs.py,
# out_of_memory by fit_out_of_memory.py.

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


def informed_names() -> dict[str, list[str]]:
    """Devices that the runs of one source at least inform, and software that two do."""
    informed = read_informed()
    return {
        "devices": sorted(name for name, entry in informed["device"].items() if entry["rows"] and name != "default"),
        "software": sorted({framework_of(name) for name, entry in informed["software"].items() if entry["rows"]}),
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
    parser.add_argument("--folds", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    cases = chosen(telling(cases_of(rows_or_exit(parser, options.folders))), options.rows)
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
