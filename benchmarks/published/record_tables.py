"""The tables of the accuracy pages: what each is made of, as lines of Markdown."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from case import PublishedCase, PublishedFigures, SettledPrediction
from defaults import DEFAULTS
from fit_pairs import Coverage
from fit_table import Numbers
from fourfold.cost.fitted import framework_of
from fourfold.validate.metrics import Errors, errors
from null_models import by_other_sources, device_and_format, seconds_at_peak
from outcome import RowOutcome
from page_table import table
from pairs import measure_published

FEWEST = 5
"""Runs below which a family or a device has no line of its own."""
FIGURES = {"time": "step time", "memory": "memory"}
SAME = 1e-3
"""Two measurements that are nearer than that are one run, told twice."""


@dataclass(frozen=True)
class Run:
    """A published run beside its prediction. `left_out_time` and `left_out_memory`: predicted / measured - 1 by constants that were
    fitted without the run's source, and `without_family` without all runs of its software; None where the run is not in the sample
    of which that is known."""

    case: PublishedCase
    row: RowOutcome
    left_out_time: float | None = None
    left_out_memory: float | None = None
    without_family: float | None = None

    @property
    def time_error(self) -> float | None:
        """predicted / measured - 1 of a step time that counts."""
        return self.row.step_error if self.case.measured.time_counts else None


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def of_errors(found: Sequence[float | None]) -> Errors:
    """The errors of the runs that have one."""
    known = 1 + np.array([each for each in found if each is not None])
    return errors(known, np.ones_like(known))


def headline(runs: Sequence[Run]) -> str:
    """All runs: step time, memory, whether they fit, and the order of layouts."""

    def line(name: str, found: Errors) -> list[str]:
        return [name, f"{found.count:,}", f"median {percent(found.median)} %, mean {percent(found.mean)} %"]

    metrics, sample = measure_published(*_judged(runs)), [run for run in runs if run.left_out_time is not None]
    ranking, fit = metrics.ranking, metrics.fit
    order = f"rank correlation {ranking.correlation_mean or 0:.2f}, regret: median {percent(ranking.regret_median)} %, "
    seen = fit.failed_predicted_not_to_fit / fit.failed if fit.failed else None
    rows = [
        line("step time, every run that states one", metrics.step),
        line("step time, a sample of each source", of_errors([run.time_error for run in sample])),
        line("the sample, the run's source left out of the fit", of_errors([run.left_out_time for run in sample])),
        line("the sample, all runs of its software left out", of_errors([run.without_family for run in sample])),
        line("peak memory, every run that states it", metrics.memory),
        line("peak memory, a sample, the run's source left out", of_errors([run.left_out_memory for run in runs])),
        ["runs that ran, predicted to fit", f"{fit.ran:,}", f"{percent(fit.share)} %"],
        ["runs that failed, predicted not to fit", f"{fit.failed:,}", f"{percent(seen)} %"],
        [
            f"order of layouts, in {ranking.groups} groups",
            f"{ranking.layouts:,}",
            f"{order}mean {percent(ranking.regret_mean)} %",
        ],
    ]
    return table(["question", "runs", "answer"], rows)


def nulls(runs: Sequence[Run]) -> str:
    """Predictions beside constant shares of the peak, each made without the run's source, on the same runs. A group that no other
    source has gets the constant of all."""
    mine = [run for run in runs if run.left_out_time is not None]
    cases, measured = [run.case for run in mine], _seconds(mine)
    least = np.array([seconds_at_peak(case) for case in cases])
    ours = of_errors([run.left_out_time for run in mine])
    rows = [["fourfold, source left out", f"{ours.count:,}", percent(ours.median), percent(ours.mean), ""]]
    for name, group_of in GROUPS.items():
        null = errors(by_other_sources(cases, least, measured, group_of), measured)
        skill = f"{(ours.mean or 0) / (null.mean or 1):.2f}"
        rows.append([name, f"{null.count:,}", percent(null.median), percent(null.mean), skill])
    return table(["prediction", "runs", "median %", "mean %", "skill"], rows)


GROUPS: dict[str, Callable[[PublishedCase], Hashable]] = {
    "one share of the peak, all devices": lambda case: "",
    "one for each device and number format": device_and_format,
    "one for each device, number format and software": lambda case: (
        case.device,
        case.precision.name,
        framework_of(case.software),
    ),
    "one for each device, number format, recomputation, with and without experts": lambda case: (
        case.device,
        case.precision.name,
        case.layout.recompute,
        case.model.num_experts > 0,
    ),
}


def split(runs: Sequence[Run], name: str, key: Callable[[PublishedCase], str]) -> str:
    """Step time by a property of the runs, most runs first."""
    groups = defaultdict(list)
    for run in runs:
        groups[key(run.case)].append(run)
    counted = []
    for value, mine in groups.items():
        every, out = of_errors([run.time_error for run in mine]), of_errors([run.left_out_time for run in mine])
        sources = len({run.case.file for run in mine if run.time_error is not None})
        cells = [percent(each) for each in (every.median, every.mean, every.bias)]
        left_out = [str(out.count), percent(out.median), percent(out.mean)]
        counted.append((every.count, [value, str(sources), f"{every.count:,}", *cells, *left_out]))
    rows = [row for count, row in sorted(counted, key=lambda each: (-each[0], each[1])) if count >= FEWEST]
    head = ["sources", "runs", "median %", "mean %", "bias %", "left out: runs", "median %", "mean %"]
    return table([name, *head], rows)


def families(runs: Sequence[Run]) -> str:
    return split(runs, "software", lambda case: framework_of(case.software))


def devices(runs: Sequence[Run]) -> str:
    return split(runs, "device", lambda case: case.device)


def coverage(found: Sequence[Coverage]) -> str:
    """Intervals, each run's made without its source or its pair."""
    names = {"sources": "source", "pairs": "pair"}
    rows = []
    for each in found:
        counted, wrong = [str(each.runs), str(each.sources)], f"{percent(each.median)}, {percent(each.mean)} %"
        rows.append([names[each.out], FIGURES[each.quantity], *counted, wrong, f"{percent(each.covered)} %"])
    return table(["left out", "figure", "runs", "sources", "median, mean error", "covered"], rows)


def out_of_memory(found: Sequence[tuple[float, float, int, float]]) -> str:
    rows = [[f"{low:g} to {high:g}", str(number), f"{100 * share:.0f} %"] for low, high, number, share in found]
    return table(["said", "runs", "failed"], rows)


def alike(runs: Sequence[Run]) -> str:
    """Runs that the reader of rows states alike, and the least error that one prediction of each group can have."""
    groups = defaultdict(list)
    for run in runs:
        if run.time_error is not None and run.row.measured_step_seconds:
            groups[stated(run.case)].append(run)
    rows = []
    for name, several in (("of one source", False), ("of several sources", True)):
        found = [
            each for each in map(_distinct, groups.values()) if len(each) > 1 and (len(_files(each)) > 1) == several
        ]
        spreads = [max(seconds) / min(seconds) - 1 for seconds in map(_seconds, found)]
        least = [error for seconds in map(_seconds, found) for error in np.abs(nearest(seconds) / seconds - 1)]
        predicted = [abs(run.time_error or 0.0) for each in found for run in each]
        if found:
            cells = [percent(float(each)) for each in (np.median(spreads), np.mean(least), np.mean(predicted))]
            rows.append([name, str(len(found)), str(sum(map(len, found))), *cells])
    head = ["runs stated alike", "groups", "runs", "slowest beside fastest, median %", "least mean error %"]
    return table([*head, "of the prediction %"], rows)


def nearest(seconds: Numbers) -> float:
    """The one prediction of all that has the least mean error."""
    return float(min(seconds, key=lambda each: np.abs(each / seconds - 1).mean()))


def stated(case: PublishedCase) -> str:
    """A case but for its names and its measurements, as text."""
    told = PublishedFigures(failed=case.measured.failed, time_counts=case.measured.time_counts)
    return repr(
        replace(
            case, id="", file="", source="", model_name="", measured=told, peak_flops=None, from_memory=(), defaults=()
        )
    )


def _distinct(runs: Sequence[Run]) -> list[Run]:
    """Without runs that another source tells again."""
    kept: list[Run] = []
    for run in sorted(runs, key=lambda run: run.row.measured_step_seconds or 0.0):
        again = kept and _seconds([run])[0] <= _seconds(kept)[-1] * (1 + SAME) and run.case.file != kept[-1].case.file
        if not again:
            kept.append(run)
    return kept


def _files(runs: Sequence[Run]) -> set[str]:
    return {run.case.file for run in runs}


def _seconds(runs: Sequence[Run]) -> Numbers:
    return np.array([run.row.measured_step_seconds for run in runs], dtype=float)


def by_source(runs: Sequence[Run]) -> str:
    """Every source: step time, also with the source left out, memory, and whether runs fit."""
    groups = defaultdict(list)
    for run in runs:
        groups[run.case.file].append(run)
    rows = []
    for file, mine in sorted(groups.items()):
        metrics = measure_published(*_judged(mine))
        out, held = of_errors([run.left_out_time for run in mine]), of_errors([run.left_out_memory for run in mine])
        step, memory, fit = metrics.step, metrics.memory, metrics.fit
        if not (step.count or memory.count or fit.ran):
            continue
        time = [
            str(step.count or ""),
            *(percent(each) for each in (metrics.null_mean, step.median, step.mean, step.bias)),
        ]
        kept = [str(memory.count or ""), percent(memory.mean), percent(held.mean)]
        failed = f"{fit.failed_predicted_not_to_fit} of {fit.failed}" if fit.failed else ""
        rows.append(
            [file, *time, percent(out.median), percent(out.mean), *kept, str(fit.ran), percent(fit.share), failed]
        )
    head = ["runs", "null %", "median %", "mean %", "bias %", "left out: median %", "mean %"]
    return table(
        [
            "source",
            *head,
            "memory: runs",
            "mean %",
            "left out: mean %",
            "ran",
            "predicted to fit %",
            "failed, predicted so",
        ],
        rows,
    )


def skipped(rows: Sequence[RowOutcome]) -> str:
    """The most frequent reasons for which rows have no prediction."""
    reasons: dict[str, int] = defaultdict(int)
    for row in rows:
        if row.skipped is not None:
            reasons[row.skipped] += 1
    found = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:12]
    return table(
        ["why rows are skipped", "rows"], [[reason.replace("|", "/"), str(number)] for reason, number in found]
    )


def defaults() -> str:
    return "\n".join(f"- {key}: {' '.join(sentence.split())}" for key, sentence in DEFAULTS.items())


def _judged(runs: Sequence[Run]) -> tuple[list[PublishedCase], list[SettledPrediction]]:
    """Cases and predictions, as the metrics read them."""
    rows = [run.row for run in runs]
    found = [
        SettledPrediction(row.predicted_step_seconds, row.predicted_memory_bytes, row.predicted_to_fit) for row in rows
    ]
    return [run.case for run in runs], found
