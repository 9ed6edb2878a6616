"""Planners of others on the same rows: each predicts the runs that it can express, beside fourfold and constant efficiencies.

    python benchmarks/published/other_planners.py DIR... [--calculon CHECKOUT] [--simumax CHECKOUT] [--python PYTHON]
        [--llm-analysis PYTHON] [--timed timed.npz...] [--json]

CHECKOUT: a folder of the peer's repository. `--python`: that has what both of them import; of `--llm-analysis`: that has
`llm-analysis`. Nothing is installed here. Which runs a peer can express is decided by its adapter (`peer_calculon.py`,
`peer_simumax.py`, `peer_llm_analysis.py`) and counted with the reasons.

Lines of a table: the peer with the constants that it ships; fourfold with those that ship, which were fitted on many of these runs;
fourfold with the run's source left out of the fit, by `--timed` (`look.py`): the constants that ship, moved by what leaving it out
changes; and two null models, a constant MFU of all devices and one of the device and number format, made of all other sources that
the folders hold, each source counting as one run. llm-analysis asks for an efficiency: it is given its own default, 1, and that of
the device and format by which its predictions of other sources' runs are nearest.

Settings that a source leaves open are settled as for fourfold (`settle.py`), and everyone predicts the same settled run. Order and
regret are of groups of at least three layouts, by step time alone: whether a layout fits is not asked."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import peer_calculon
import peer_llm_analysis
import peer_simumax
from as_case import as_case
from case import PublishedCase, SettledPrediction
from fit_constants import Model
from fit_file import FITTED, PRIOR, read
from fit_rows import TimedRows, say
from fit_table import Numbers, Table, constants_of, moved_by
from fourfold.config import UserError
from fourfold.cost.fitted import fitted
from fourfold.cost.kernel_choice import usual_kernels
from fourfold.validate import predict_case
from fourfold.validate.metrics import Errors, Ranking, errors, ranking
from null_models import by_other_sources, device_and_format, seconds_at_peak
from page_table import table
from peer import WRITTEN, CannotStateError, PeerError, Statement, ask
from row_command import cases_of, row_parser, rows_or_exit
from settle import settle
from tables import percent

SWEEP = "sweep"
"""In the name of a file that holds good and bad layouts of one stack."""


@dataclass(frozen=True)
class Planner:
    """A peer: its name, its adapter, the script that answers, the files of the runs that it was made to match, whether it asks for
    an efficiency, and what parts the runs of others are shown in."""

    name: str
    statement: Callable[[PublishedCase], Statement]
    script: str
    own: tuple[str, ...] = ()
    asks_efficiency: bool = False
    kind_of: Callable[[PublishedCase], str] = lambda case: "runs of others"


def by_attention(case: PublishedCase) -> str:
    """Calculon's kind of attention, or the kind that it has no words for."""
    return "runs of others, scores written" if case.kernels.attention in WRITTEN else "runs of others, fused attention"


CALCULON = Planner("Calculon", peer_calculon.statement, "peer_calculon.py", ("korthikanti_2022",), kind_of=by_attention)
SIMUMAX = Planner("SimuMax", peer_simumax.statement, "peer_simumax.py", ("simumax_b200",))
LLM_ANALYSIS = Planner("llm-analysis", peer_llm_analysis.statement, "peer_llm_analysis.py", asks_efficiency=True)


@dataclass(frozen=True)
class Selection:
    """The cases that a peer can express, by their place among all, with its words for them; why it cannot express the others."""

    places: list[int]
    statements: list[Statement]
    cannot: dict[str, int]


def select(planner: Planner, cases: Sequence[PublishedCase]) -> Selection:
    """The runs that the peer can express. Kernels that a case does not name are those that its software usually runs, and so is
    whether gradients are summed beside computation, as for fourfold."""
    places, statements, cannot = list[int](), list[Statement](), Counter[str]()
    for place, case in enumerate(cases):
        try:
            usual = case.kernels.completed(usual_kernels(case.software, case.device))
            overlaps = fitted().software(case.software).overlap_data if case.overlap is None else case.overlap
            statements.append(planner.statement(replace(case, kernels=usual, overlap=overlaps)))
            places.append(place)
        except CannotStateError as error:
            cannot[str(error)] += 1
    return Selection(places, statements, dict(cannot.most_common()))


def is_timed(case: PublishedCase) -> bool:
    """Whether a run ended well, and its step time may be compared."""
    return bool(case.measured.step_seconds) and case.measured.time_counts and not case.measured.failed


def seconds_of(cases: Iterable[PublishedCase]) -> Numbers:
    """Measured step times."""
    return np.array([case.measured.step_seconds for case in cases], dtype=float)


# fourfold


@dataclass(frozen=True)
class Settled:
    """A case whose open settings are taken, and what fourfold predicts of it; None: the layout cannot be."""

    case: PublishedCase
    found: SettledPrediction


def settled_case(case: PublishedCase) -> Settled | None:
    try:
        return Settled(*settle(case, fitted()))
    except UserError:
        return None


def left_out_tables(timed: TimedRows, software: dict[str, set[str]]) -> dict[str, Table]:
    """By source: the constants that ship, moved by what leaving it out changes. `software`: profiles of each source's runs."""
    model, shipped = Model.of([timed], read(PRIOR)), read(FITTED)
    tables = {}
    for mine, change in model.left_out_changes(lambda case: case.file):
        file = model.cases[int(np.argmax(mine))].file
        if file in software:
            moved = dict(zip(model.nodes, map(float, change), strict=True))
            tables[file] = moved_by(shipped, moved, software[file])
    return tables


def left_out_seconds(case: PublishedCase, tables: dict[str, Table]) -> float:
    """The step by constants that know nothing of the case's source; nan where the fit saw nothing of it."""
    if case.file not in tables:
        return np.nan
    return predict_case(as_case(case), constants_of(tables[case.file])).step_seconds or np.nan


# What is printed


@dataclass(frozen=True)
class Line:
    """One predictor on one set of runs."""

    name: str
    step: Errors
    ranking: Ranking
    memory: Errors = field(default_factory=Errors)


@dataclass(frozen=True)
class PartTable:
    """A set of runs that a peer can express, and all predictors of it."""

    name: str
    runs: int
    sources: int
    lines: list[Line]


@dataclass(frozen=True)
class PlannerTable:
    """A peer: how many of the timed runs it can express, why not the others, what it refused itself, what it says of its answers,
    and the tables."""

    name: str
    timed: int
    stated: int
    cannot: dict[str, int]
    refused: dict[str, int]
    notes: dict[str, int]
    parts: list[PartTable]


def line(
    name: str, cases: Sequence[PublishedCase], predicted: Numbers, memory: Sequence[float | None] | None = None
) -> Line:
    """Errors, order and regret of step times, nan where there is no prediction; errors of memory where both figures are known."""
    known = np.isfinite(predicted)
    kept = [case for case, mine in zip(cases, known, strict=True) if mine]
    measured = seconds_of(kept)
    pairs = [
        (found, case.measured.memory_bytes)
        for case, found in zip(cases, memory or [None] * len(cases), strict=True)
        if found and case.measured.memory_bytes and not case.measured.last_rank_alone
    ]
    both = np.array(pairs, dtype=float).reshape(-1, 2)
    order = ranking([case.cell for case in kept], predicted[known], measured)
    return Line(name, errors(predicted[known], measured), order, errors(both[:, 0], both[:, 1]))


def parts_of(planner: Planner, cases: Sequence[PublishedCase]) -> dict[str, list[int]]:
    """Places of the runs of others, by their kind, of a sweep's, and of the peer's own."""
    parts: dict[str, list[int]] = {}
    for place, case in enumerate(cases):
        own, swept = case.file in planner.own, SWEEP in case.file
        name = "its own runs" if own else "a sweep of layouts" if swept else planner.kind_of(case)
        parts.setdefault(name, []).append(place)
    return dict(sorted(parts.items(), key=lambda part: ("others" not in part[0], part[0])))


HEAD = (
    "prediction",
    "runs",
    "step time: median %",
    "mean %",
    "bias %",
    "groups",
    "rank correlation",
    "median regret %",
    "mean regret %",
    "memory: runs",
    "median %",
    "mean %",
)


def markdown(planner: PlannerTable) -> list[str]:
    """A section of a page."""
    lines = [f"### {planner.name}", "", f"{planner.stated} of {planner.timed} timed runs can be stated.", ""]
    for part in planner.parts:
        lines += [f"**{part.name}**: {part.runs} of {part.sources} sources", ""]
        lines += [table(HEAD, [_cells(each) for each in part.lines]), ""]
    reasons_of = {
        "cannot be stated": planner.cannot,
        "refused by the peer": planner.refused,
        "said of answers": planner.notes,
    }
    for title, reasons in reasons_of.items():
        lines += [f"{count:>6}  {title}: {reason}" for reason, count in reasons.items()]
    return [*lines, ""]


def _cells(one: Line) -> list[str]:
    def share(value: float | None) -> str:
        return percent(value).removesuffix(" %")

    step, order, memory = one.step, one.ranking, one.memory
    correlation = "-" if order.correlation_mean is None else f"{order.correlation_mean:.2f}"
    cells = [
        one.name,
        str(step.count),
        share(step.median),
        share(step.mean),
        percent(step.bias, True).removesuffix(" %"),
    ]
    cells += [str(order.groups), correlation, share(order.regret_median), share(order.regret_mean)]
    return [*cells, str(memory.count or "-"), share(memory.median), share(memory.mean)]


def table_of(
    planner: Planner,
    timed: int,
    selection: Selection,
    answers: Sequence[dict[str, Any]],
    settled: Sequence[Settled],
    others: dict[str, Numbers],
) -> PlannerTable:
    """All tables of a peer. `timed`: how many runs were; `others`: step times by other predictors of every settled case."""
    refused = Counter(str(each["refused"]) for each in answers if "refused" in each)
    notes = Counter(str(each["note"]) for each in answers if each.get("note"))
    answered = [(place, each) for place, each in zip(selection.places, answers, strict=True) if "refused" not in each]
    places = [place for place, _ in answered]
    cases = [settled[place].case for place in places]
    seconds = np.array([each["step_seconds"] for _, each in answered], dtype=float)
    memory = [float(each["memory_bytes"]) for _, each in answered]
    ours = [settled[place].found.memory_bytes for place in places]
    columns: list[tuple[str, Numbers, Sequence[float | None] | None]] = [(planner.name, seconds, memory)]
    if planner.asks_efficiency:
        scaled = by_other_sources(cases, seconds, seconds_of(cases), device_and_format)
        columns.append((f"{planner.name}, efficiency of other sources", scaled, None))
    for name, found in others.items():
        columns.append((name, found[places], ours if name == "fourfold" else None))
    parts = []
    for name, mine in parts_of(planner, cases).items():
        kept = [cases[i] for i in mine]
        lines = [line(title, kept, found[mine], each and [each[i] for i in mine]) for title, found, each in columns]
        parts.append(PartTable(name, len(kept), len({case.file for case in kept}), lines))
    return PlannerTable(planner.name, timed, len(selection.places), selection.cannot, dict(refused), dict(notes), parts)


def main() -> None:
    parser = row_parser(__doc__)
    parser.add_argument("--calculon", type=Path, help="a checkout of Calculon")
    parser.add_argument("--simumax", type=Path, help="a checkout of SimuMax")
    parser.add_argument(
        "--python", default=sys.executable, help="a Python with numpy, pandas and whatever else these two import"
    )
    parser.add_argument("--llm-analysis", help="a Python with llm-analysis")
    parser.add_argument("--timed", type=Path, nargs="+", default=[], help="rows that look.py looked at")
    parser.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    options = parser.parse_args()
    planners = _planners(options, parser)
    every = cases_of(rows_or_exit(parser, options.folders))
    timed = [case for case in every if is_timed(case)]
    wanted = {place for planner, _, _ in planners for place in select(planner, timed).places}
    with ProcessPoolExecutor(options.jobs) as pool:
        found = pool.map(settled_case, [timed[place] for place in sorted(wanted)], chunksize=8)
        at = {place: each for place, each in zip(sorted(wanted), found, strict=True) if each is not None}
        say(f"{len(at)} of {len(timed)} timed runs can be stated by some peer")
        others = _others(options, timed, every, at, pool)
    try:
        tables = [compared(planner, python, arguments, timed, at, others) for planner, python, arguments in planners]
    except PeerError as error:
        sys.exit(f"error: {error}")
    if options.json:
        print(json.dumps([asdict(each) for each in tables], indent=1))
    else:
        print("\n".join(each for table in tables for each in markdown(table)))


def compared(
    planner: Planner,
    python: str,
    arguments: tuple[str, ...],
    timed: Sequence[PublishedCase],
    at: dict[int, Settled],
    others: dict[str, Numbers],
) -> PlannerTable:
    """A peer's answers beside all other predictions. `at`: the settled cases by their place among the timed ones; `others`: step
    times of these, in the order of their places. A layout that fourfold holds to be none is left out, and counted."""
    found = select(planner, [at[place].case if place in at else case for place, case in enumerate(timed)])
    number = {place: index for index, place in enumerate(sorted(at))}
    kept = [(number[place], each) for place, each in zip(found.places, found.statements, strict=True) if place in at]
    gone = len(found.places) - len(kept)
    cannot = found.cannot | ({"a layout that fourfold does not take": gone} if gone else {})
    selection = Selection([place for place, _ in kept], [each for _, each in kept], cannot)
    answers = ask(python, planner.script, selection.statements, *arguments)
    say(f"{planner.name}: {len(answers)} answers")
    return table_of(planner, len(timed), selection, answers, [at[place] for place in sorted(at)], others)


def _planners(
    options: argparse.Namespace, parser: argparse.ArgumentParser
) -> list[tuple[Planner, str, tuple[str, ...]]]:
    """The peers that are there, each with its Python and the arguments of its script."""
    found = list[tuple[Planner, str, tuple[str, ...]]]()
    for path in options.timed:
        if not path.is_file():
            parser.error(f"--timed {path}: no such file; look.py writes one")
    for planner, checkout in ((CALCULON, options.calculon), (SIMUMAX, options.simumax)):
        if checkout is not None:
            if not checkout.is_dir():
                parser.error(f"--{planner.name.lower()} {checkout}: no such folder; give a checkout of {planner.name}")
            found.append((planner, options.python, (str(checkout.resolve()),)))
    if options.llm_analysis:
        found.append((LLM_ANALYSIS, options.llm_analysis, ()))
    return found or parser.error(
        "no peer is given; give --calculon CHECKOUT, --simumax CHECKOUT or --llm-analysis PYTHON"
    )


def _others(
    options: argparse.Namespace,
    timed: Sequence[PublishedCase],
    every: Sequence[PublishedCase],
    at: dict[int, Settled],
    pool: ProcessPoolExecutor,
) -> dict[str, Numbers]:
    """Step times of fourfold and of the null models, of every settled case in the order of its place."""
    places = sorted(at)
    found = {"fourfold": np.array([at[place].found.step_seconds or np.nan for place in places])}
    if options.timed:
        looked = [TimedRows.load(path, every) for path in options.timed]
        software: dict[str, set[str]] = {}
        for place in places:
            software.setdefault(at[place].case.file, set()).add(at[place].case.software)
        together = TimedRows(
            [case for each in looked for case in each.cases],
            *(np.concatenate([getattr(each, name) for each in looked]) for name in ("errors", "slopes", "values")),
        )
        tables = left_out_tables(together, software)
        seconds = pool.map(partial(left_out_seconds, tables=tables), [at[place].case for place in places], chunksize=8)
        found["fourfold, source left out"] = np.array(list(seconds))
        say("fourfold without each source")
    least, measured = np.array([seconds_at_peak(case) for case in timed]), seconds_of(timed)
    for name, group_of in (
        ("constant MFU, all devices", lambda case: ""),
        ("constant MFU, device and format", device_and_format),
    ):
        found[name] = by_other_sources(timed, least, measured, group_of)[places]
    return found


if __name__ == "__main__":
    main()
