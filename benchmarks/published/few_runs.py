"""How much a few measured runs help: sources left out of the fit, then predicted after `fourfold fit` on 0, 1, 3 and 5 runs.

    python benchmarks/published/few_runs.py DIR... [--sources 40] [--unseen 8] [--draws 2] [--jobs 2] [--shipped] [--out FILE.json]

All constants are fitted without the source's file, as `fit_constants.py --cross` does; with `--shipped` they are those that ship.
The source's runs with one software on one kind of device, of any model, format and length, are drawn at random: some are given to
the fit, others are predicted. The same unseen runs are predicted after every number.
"""

import json
import math
import random
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from as_case import as_case
from case import PublishedCase
from fit_constants import Model, fitted_table, joined, named_as_known
from fit_file import FITTED, PRIOR, read, rounded
from fit_memory import MemoryRows, held_rows
from fit_rows import Shared, say, timed_rows
from fit_sample import chosen, is_telling, telling, with_memory
from fit_table import Table, constants_of
from fourfold.config import UserError
from fourfold.cost.fitted import Fitted
from fourfold.validate import Case, predict_case
from fourfold.validate.fit import fit_software, with_constants
from row_command import cases_of, row_parser, rows_or_exit
from settle import settle

NUMBERS = (0, 1, 3, 5)
SEED = 22


def groups_of(cases: list[PublishedCase], unseen: int) -> dict[str, list[PublishedCase]]:
    """The largest group of each file with one software and one device that has runs to give and to predict."""
    found: dict[str, dict[Any, list[PublishedCase]]] = defaultdict(lambda: defaultdict(list))
    for case in cases:
        found[case.file][case.software, case.device].append(case)
    largest = {file: max(groups.values(), key=len) for file, groups in found.items()}
    return {file: group for file, group in largest.items() if len(group) >= max(NUMBERS) + min(4, unseen)}


def settled(case: PublishedCase, constants: Fitted) -> Case | None:
    """The case as `fourfold validate` takes it; None where it cannot be."""
    try:
        found = as_case(settle(named_as_known(case, constants), constants)[0])
        predict_case(found, constants)
    except UserError:
        return None
    return found if found.measured_seconds or found.measured.peak_memory_bytes else None


def errors_of(cases: list[Case], constants: Fitted) -> dict[str, list[float]]:
    """Relative errors of step time and memory."""
    found: dict[str, list[float]] = {"step": [], "memory": []}
    for case in cases:
        prediction = predict_case(case, constants)
        if prediction.step_seconds and case.measured_seconds:
            found["step"].append(abs(prediction.step_seconds / case.measured_seconds - 1))
        if prediction.memory_bytes and case.measured.peak_memory_bytes:
            found["memory"].append(abs(prediction.memory_bytes / case.measured.peak_memory_bytes - 1))
    return found


def look(file: str, group: list[PublishedCase], table: Table, unseen: int, draws: int) -> dict[str, Any]:
    """Errors of one source by how many of its runs were given, over several draws. `table`: the constants to start from."""
    constants = constants_of(rounded(table))
    draw = random.Random(f"{SEED} {file}")
    errors: dict[int, dict[str, list[float]]] = {number: {"step": [], "memory": []} for number in NUMBERS}
    for _ in range(draws):
        sample = draw.sample(group, min(len(group), max(NUMBERS) + unseen))
        cases = [case for case in (settled(each, constants) for each in sample) if case is not None]
        given, others = cases[: max(NUMBERS)], cases[max(NUMBERS) :]
        if not others or len({case.software.name for case in cases}) != 1:
            continue
        for number in NUMBERS:
            known = constants
            if number:
                fit = fit_software(given[:number], known=constants)
                known = with_constants(constants, fit.base, fit.constants)
            for figure, found in errors_of(others, known).items():
                errors[number][figure] += found
    return {"file": file, "errors": errors}


def main() -> None:
    parser = row_parser(__doc__, jobs=2)
    parser.add_argument("--sources", type=int, default=40, help="so many sources, drawn at random")
    parser.add_argument("--unseen", type=int, default=8, help="runs of a source to predict, at most")
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument(
        "--rows", type=int, default=20, help="rows of a source that the constants are fitted on, at most"
    )
    parser.add_argument("--shipped", action="store_true", help="start from the constants that ship")
    parser.add_argument("--out", type=Path, help="write errors by source here, as JSON")
    options = parser.parse_args()
    cases = telling(cases_of(rows_or_exit(parser, options.folders)))
    groups = groups_of(cases, options.unseen)
    files = sorted(random.Random(SEED).sample(sorted(groups), min(options.sources, len(groups))))
    say(f"{len(files)} of {len(groups)} sources that have runs to give and to predict")
    prior, start = read(PRIOR), read(FITTED)
    known = partial(look, table=start) if options.shipped else _crossed(options, cases, prior, start)
    jobs = [partial(known, file, groups[file], unseen=options.unseen, draws=options.draws) for file in files]
    tell(options.jobs, jobs, options.out)


def _crossed(
    options: Namespace, cases: list[PublishedCase], prior: Table, start: Table
) -> Callable[..., dict[str, Any]]:
    """`look` by constants that are fitted without the source."""
    parts = Shared.among(options.jobs, chosen(cases, options.rows, options.rows), timed_rows).at(start)
    held = joined(Shared.among(options.jobs, with_memory(cases, 3 * options.rows), held_rows, is_telling).at(start))
    return partial(_without, Model.of(parts, prior), held, prior)


def tell(processes: int, jobs: list[Callable[[], dict[str, Any]]], out: Path | None) -> None:
    """Does every source, and prints the table; each source's errors go to `out`."""
    found = []
    with ProcessPoolExecutor(processes) as pool:
        for number, each in enumerate([pool.submit(job) for job in jobs], start=1):
            found.append(each.result())
            say(f"{number} of {len(jobs)}: {found[-1]['file']}")
            if out:
                out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    for line in lines_of(found):
        print(line)


def _without(
    model: Model, held: MemoryRows, prior: Table, file: str, group: list[PublishedCase], unseen: int, draws: int
) -> dict[str, Any]:
    return look(file, group, fitted_table(model, held, prior, file), unseen, draws)


def lines_of(found: list[dict[str, Any]]) -> list[str]:
    """A table: errors of all runs, and the median over sources of their median error."""
    lines = ["| runs given | step time: median | mean | sources' median | memory: median | mean | sources' median |"]
    lines.append("| ---: " * 7 + "|")
    for number in NUMBERS:
        cells = [str(number)]
        for figure in ("step", "memory"):
            by_source = [source["errors"][number][figure] for source in found if source["errors"][number][figure]]
            every = [error for errors in by_source for error in errors if math.isfinite(error)]
            figures = (median(every), mean(every), median(map(median, by_source))) if every else (math.nan,) * 3
            cells += [f"{100 * figure:.1f} %" for figure in figures]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
