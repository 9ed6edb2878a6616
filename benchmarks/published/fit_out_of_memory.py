"""Writes `out_of_memory` of `src/fourfold/evidence/intervals.toml`: how likely a run is to run out of memory.

    python benchmarks/published/fit_out_of_memory.py benchmarks/published/rows [--jobs 2] [--held held.npz] [--write]

The runs of sources that report failed runs beside those that ran, in full. Each is predicted with the constants that ship (some
were fitted to it), once as it is, and once as if nobody named its software, at fourfold's own prices. The curve has the greatest
likelihood of failed and not, by the predicted share of the device's memory; every source weighs by the square root of its runs.
Then, by probability: the share of runs that failed, each judged by the other sources.

With `--held`, rows as `look.py` wrote them, what a run holds is predicted by constants fitted without its source too, and the curve
of software that somebody names alone is fitted."""

import itertools
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tomli_w

from as_case import as_case
from case import PublishedCase
from fit_file import FITTED, PRIOR, read
from fit_intervals import HEAD, PRICED_AS_OWN, TABLE, weighed
from fit_memory import MemoryRows, left_out_memory, live_bytes
from fit_table import constants_of
from fourfold.config import UserError
from fourfold.cost.fitted import fitted
from fourfold.evidence.out_of_memory import OutOfMemory
from fourfold.simulate.prediction import check_size, predict_memory
from fourfold.simulate.run_prices import OWN_SOFTWARE
from fourfold.validate import case_prices, case_spec
from row_command import cases_of, row_parser, rows_or_exit
from settle import settle

LEAST = 0.03
"""The probability of failing far below a device's memory. A fit finds 0.02 to 0.05 as likely."""
HALVES, STEEPNESSES, ABOVE = np.arange(0.8, 1.4, 0.02), np.arange(2.0, 24.0, 1.0), np.arange(2.5, 8.1, 0.5)
"""Above the half a fit would take 1.5 as gladly: nine of the ten runs beyond 1.6 times their device failed, which is steeper."""
FEWEST_BEYOND = 5
"""Runs that failed beyond all that ran, from which on these say more than the curve."""
EDGES = (0.0, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
NAMES = ("named", "unnamed")


class Run(NamedTuple):
    """A published run: its file, whether it failed, the share of its device that it is predicted to fill, by what is known."""

    file: str
    failed: bool
    shares: tuple[float, ...]


def reporting(cases: Iterable[PublishedCase]) -> list[PublishedCase]:
    """The cases that state all that memory depends on, of files with failed runs and others."""
    by_file = defaultdict(list)
    for case in cases:
        if not (case.offloaded or case.microbatch_open or case.recompute_open or case.zero_open):
            by_file[case.file].append(case)
    return [case for mine in by_file.values() if len({each.measured.failed for each in mine}) == 2 for case in mine]


def run_of(case: PublishedCase) -> Run | None:
    """A case as a run; None where it cannot be predicted."""
    constants = fitted()
    own = replace(constants, profiles={**constants.profiles, PRICED_AS_OWN: constants.profiles[OWN_SOFTWARE]})
    try:
        settled, _ = settle(case, constants)
        shares = []
        for software, known in ((settled.software, constants), (PRICED_AS_OWN, own)):
            asked = as_case(replace(settled, software=software))
            spec = case_spec(asked)
            check_size(spec)
            held = max(predict_memory(spec, case_prices(asked, spec, known)))
            shares.append(held / asked.cluster.device.memory_bytes)
    except UserError:
        return None
    return Run(case.file, case.measured.failed, tuple(shares))


def blind_runs(held: MemoryRows) -> list[Run]:
    """Runs whose share of their device is predicted by constants that are fitted without their source."""
    shipped, prior = read(FITTED), read(PRIOR)
    errors, constants = left_out_memory(held, prior, shipped, lambda case: case.file), constants_of(shipped)
    found = []
    for case, error in zip(held.cases, errors, strict=True):
        software = constants.software(case.software)
        reserved = float(np.exp(error)) * live_bytes(case, software) * (1 + software.fragmentation)
        share = (reserved + software.context_bytes) / case.hardware.memory_bytes
        found.append(Run(case.file, case.measured.failed, (share,)))
    return found


def fit(runs: list[Run], which: int) -> OutOfMemory:
    """The curve of the greatest likelihood."""
    share, failed = np.array([run.shares[which] for run in runs]), np.array([run.failed for run in runs])
    weights, best, found = weighed([run.file for run in runs]), -np.inf, None
    about = (len(runs), int(failed.sum()), len({run.file for run in runs}))
    for half, steepness, above in itertools.product(HALVES, STEEPNESSES, ABOVE):
        curve = OutOfMemory(LEAST, round(float(half), 2), float(steepness), *about, float(above))
        likelihood = float((weights * np.log(np.abs(~failed - curve.probability(share)))).sum())
        if likelihood > best:
            best, found = likelihood, curve
    assert found is not None
    ran = float(share[~failed].max())
    beyond = int((share > ran).sum())
    return replace(found, ran_up_to=round(ran, 2), failed_beyond=beyond) if beyond >= FEWEST_BEYOND else found


def by_probability(runs: list[Run], which: int) -> list[tuple[float, float, int, float]]:
    """From which probability to which, how many runs, and the share of them that failed; every file is judged by the others."""
    judged = []
    for file in sorted({run.file for run in runs}):
        curve = fit([run for run in runs if run.file != file], which)
        judged += [(curve.probability(run.shares[which]), run.failed) for run in runs if run.file == file]
    found = []
    for low, high in itertools.pairwise(EDGES):
        inside = [failed for chance, failed in judged if low <= chance < high]
        if inside:
            found.append((low, high, len(inside), sum(inside) / len(inside)))
    return found


def print_blind(runs: list[Run], which: int) -> None:
    print(f"{NAMES[which]}: probability, runs, failed")
    for low, high, number, share in by_probability(runs, which):
        print(f"  {low:.2f} to {high:.2f}  {number:4}  {share:.2f}")


def main() -> None:
    parser = row_parser(__doc__)
    parser.add_argument("--held", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    cases = reporting(cases_of(rows_or_exit(parser, options.folders)))
    if options.held:
        runs = blind_runs(MemoryRows.load(options.held, cases))
    else:
        with ProcessPoolExecutor(options.jobs) as pool:
            runs = [run for run in pool.map(run_of, cases, chunksize=4) if run is not None]
    names = NAMES[: len(runs[0].shares)]
    for which in range(len(names)):
        print_blind(runs, which)
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    table["out_of_memory"] |= {name: vars(fit(runs, which)) for which, name in enumerate(names)}
    print(tomli_w.dumps(table["out_of_memory"]))
    if options.write:
        TABLE.write_text(HEAD + tomli_w.dumps(table), encoding="utf-8")


if __name__ == "__main__":
    main()
