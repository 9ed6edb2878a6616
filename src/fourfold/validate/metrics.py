"""How good predictions are: errors, skill over a constant-MFU null model, order of layouts, regret, memory, and fit."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
SMALLEST_GROUP = 3
EXACT = 1e-9
"""A null model that is fitted on one run a group has no error, and there is no skill beside it."""


@dataclass(frozen=True)
class Pair:
    """One run, measured and predicted; None where a figure is not known.

    `group`: runs with the same value differ in their layouts alone. `null_group`: device and number format, whose runs share one
    constant of the null model. `device_flops`: model FLOPs of a step on one device. `fits`: whether the prediction says that the
    memory suffices. `failed`: the run ended without a step, for want of memory or otherwise."""

    group: Hashable
    null_group: Hashable
    device_flops: float
    measured_seconds: float | None = None
    predicted_seconds: float | None = None
    measured_bytes: float | None = None
    predicted_bytes: float | None = None
    fits: bool | None = None
    failed: bool = False

    @property
    def is_timed(self) -> bool:
        """Whether the step was both measured and predicted."""
        return bool(self.measured_seconds) and self.predicted_seconds is not None


@dataclass(frozen=True)
class Errors:
    """Relative errors (predicted / measured - 1): median and mean of their size, and their mean with sign. None: no pairs."""

    count: int = 0
    median: float | None = None
    mean: float | None = None
    bias: float | None = None


@dataclass(frozen=True)
class Ranking:
    """Spearman's correlation of predicted and measured step time within groups of layouts, and what choosing by prediction costs:
    measured time of the choice / best measured time - 1. Over groups of at least `SMALLEST_GROUP` layouts."""

    groups: int = 0
    layouts: int = 0
    correlation_mean: float | None = None
    correlation_median: float | None = None
    regret_median: float | None = None
    regret_mean: float | None = None
    regret_max: float | None = None


@dataclass(frozen=True)
class Feasibility:
    """Runs that ran, how many of them were predicted to fit; runs that failed for any reason, how many of them were not."""

    ran: int = 0
    ran_predicted_to_fit: int = 0
    failed: int = 0
    failed_predicted_not_to_fit: int = 0

    @property
    def share(self) -> float | None:
        """Share of the runs that ran which were predicted to fit."""
        return self.ran_predicted_to_fit / self.ran if self.ran else None


@dataclass(frozen=True)
class Metrics:
    """Metrics of one set of runs. `null_mean`: mean error of the null model on the same pairs; `skill` = step.mean / null_mean."""

    step: Errors = Errors()
    null_mean: float | None = None
    skill: float | None = None
    memory: Errors = Errors()
    ranking: Ranking = Ranking()
    fit: Feasibility = Feasibility()


def measure(pairs: Sequence[Pair]) -> Metrics:
    """All metrics of a set of runs."""
    timed = [pair for pair in pairs if pair.is_timed]
    measured = np.array([pair.measured_seconds for pair in timed], dtype=float)
    predicted = np.array([pair.predicted_seconds for pair in timed], dtype=float)
    feasible = np.array([pair.fits is not False for pair in timed], dtype=bool)
    step, null = errors(predicted, measured), errors(null_times(timed), measured).mean
    return Metrics(
        step=step,
        null_mean=null,
        skill=step.mean / null if null and null > EXACT and step.mean is not None else None,
        memory=_memory(pairs),
        ranking=ranking([pair.group for pair in timed], predicted, measured, feasible),
        fit=_feasibility(pairs),
    )


def errors(predicted: Numbers, measured: Numbers) -> Errors:
    """Relative errors of pairs of positive numbers."""
    if not len(measured):
        return Errors()
    relative = predicted / measured - 1
    size = np.abs(relative)
    return Errors(len(size), float(np.median(size)), float(size.mean()), float(relative.mean()))


def ranking(
    groups: Sequence[Hashable], predicted: Numbers, measured: Numbers, feasible: Numbers | None = None
) -> Ranking:
    """Order and regret within groups. `feasible`: False where the layout is predicted not to fit: it is not chosen, unless none
    of its group is. Equal predictions: the regret is the mean over what may be chosen."""
    members = members_of(groups)
    large = [ids for ids in members if len(ids) >= SMALLEST_GROUP]
    if not large:
        return Ranking()
    allowed = np.ones(len(measured), dtype=bool) if feasible is None else feasible.astype(bool)
    correlations = [c for ids in large if (c := spearman(predicted[ids], measured[ids])) is not None]
    regrets = np.array([_regret(predicted[ids], measured[ids], allowed[ids]) for ids in large])
    return Ranking(
        groups=len(large),
        layouts=sum(map(len, large)),
        correlation_mean=float(np.mean(correlations)) if correlations else None,
        correlation_median=float(np.median(correlations)) if correlations else None,
        regret_median=float(np.median(regrets)),
        regret_mean=float(regrets.mean()),
        regret_max=float(regrets.max()),
    )


def spearman(left: Numbers, right: Numbers) -> float | None:
    """Pearson's correlation of the ranks, equal values sharing the mean of theirs. None where one side is all equal on its own
    (`right`, the measured one); 0 where the predicted one is, as it orders nothing."""
    a, b = _ranks(left), _ranks(right)
    if np.ptp(b) == 0:
        return None
    if np.ptp(a) == 0:
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    return float((a @ b) / np.sqrt((a @ a) * (b @ b)))


def _ranks(values: Numbers) -> Numbers:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2.0)[inverse.ravel()]


def _regret(predicted: Numbers, measured: Numbers, allowed: NDArray[np.bool_]) -> float:
    usable = allowed if allowed.any() else np.ones_like(allowed)
    least = predicted[usable].min()
    chosen = usable & (predicted == least)
    return float(measured[chosen].mean() / measured.min() - 1)


def members_of(groups: Sequence[Hashable]) -> list[list[int]]:
    """Indices of each group's members, in order of first appearance."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        found[group].append(index)
    return list(found.values())


def null_times(pairs: Sequence[Pair]) -> Numbers:
    """Seconds of a step by the null model: device_flops / c, one c for each `null_group`, fitted on these very runs so that the
    mean absolute relative error is least. Every run needs a measured step time."""
    work = np.array([pair.device_flops for pair in pairs], dtype=float)
    measured = np.array([pair.measured_seconds for pair in pairs], dtype=float)
    times = np.zeros(len(pairs))
    for members in members_of([pair.null_group for pair in pairs]):
        times[members] = work[members] * _best_factor(work[members] / measured[members])
    return times


def _best_factor(ratios: Numbers) -> float:
    """The f that minimises the mean of |f x ratio - 1|: the median of 1 / ratio, weighted by ratio."""
    order = np.argsort(1 / ratios)
    weights = ratios[order]
    middle = int(np.searchsorted(np.cumsum(weights), weights.sum() / 2))
    return float(1 / ratios[order][min(middle, len(order) - 1)])


def _memory(pairs: Sequence[Pair]) -> Errors:
    known = [
        (pair.predicted_bytes, pair.measured_bytes)
        for pair in pairs
        if pair.predicted_bytes is not None and pair.measured_bytes and not pair.failed
    ]
    table = np.array(known, dtype=float).reshape(-1, 2)
    return errors(table[:, 0], table[:, 1])


def _feasibility(pairs: Sequence[Pair]) -> Feasibility:
    ran = [pair.fits for pair in pairs if pair.fits is not None and not pair.failed]
    failed = [pair.fits for pair in pairs if pair.fits is not None and pair.failed]
    return Feasibility(len(ran), sum(ran), len(failed), len(failed) - sum(failed))
