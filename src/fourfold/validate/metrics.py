"""How good predictions are: errors, skill, order of layouts, regret, memory, and whether what ran was predicted to fit."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fourfold.validate.case import Case, Prediction
from fourfold.validate.null_model import null_times

Numbers = NDArray[np.float64]
SMALLEST_GROUP = 3
EXACT = 1e-9
"""A null model that is fitted on one run a group has no error, and there is no skill beside it."""
HEALTHY_NODES = 8
HEALTHY_FACTOR = 3.0


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
class Fit:
    """Runs that ran, how many of them were predicted to fit; runs that failed for any reason, how many of them were not."""

    ran: int = 0
    ran_predicted_to_fit: int = 0
    failed: int = 0
    failed_predicted_not_to_fit: int = 0

    @property
    def share(self) -> float | None:
        """Of the runs that ran, predicted to fit."""
        return self.ran_predicted_to_fit / self.ran if self.ran else None


@dataclass(frozen=True)
class Metrics:
    """Of one set of runs. `null_mean`: mean error of the null model on the same pairs; `skill` = step.mean / null_mean.
    `healthy`: the runs on at most `HEALTHY_NODES` nodes within `HEALTHY_FACTOR` of the best measured of their group."""

    step: Errors = Errors()
    null_mean: float | None = None
    skill: float | None = None
    healthy: Errors = Errors()
    memory: Errors = Errors()
    ranking: Ranking = Ranking()
    fit: Fit = Fit()


def measure(cases: Sequence[Case], predictions: Sequence[Prediction]) -> Metrics:
    """All metrics of predictions, one a case, in the same order."""
    pairs = list(zip(cases, predictions, strict=True))
    timed = [(c, p) for c, p in pairs if _counts(c) and p.step_seconds is not None]
    if not timed:
        return replace(Metrics(), memory=_memory(pairs), fit=_fit(pairs))
    kept = [c for c, _ in timed]
    measured = np.array([c.measured.step_seconds for c in kept], dtype=float)
    predicted = np.array([p.step_seconds for _, p in timed], dtype=float)
    step = errors(predicted, measured)
    null = errors(null_times(kept), measured).mean
    healthy = _healthy(kept, measured)
    feasible = np.array([p.fits is not False for _, p in timed])
    return Metrics(
        step=step,
        null_mean=null,
        skill=step.mean / null if null and null > EXACT and step.mean is not None else None,
        healthy=errors(predicted[healthy], measured[healthy]),
        memory=_memory(pairs),
        ranking=ranking([c.cell for c in kept], predicted, measured, feasible),
        fit=_fit(pairs),
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
    members = _members(groups)
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


def _members(groups: Sequence[Hashable]) -> list[list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        found[group].append(index)
    return list(found.values())


def _counts(case: Case) -> bool:
    return bool(case.measured.step_seconds) and case.measured.time_counts


def _healthy(cases: Sequence[Case], measured: Numbers) -> list[int]:
    healthy: list[int] = []
    for ids in _members([c.cell for c in cases]):
        best = measured[ids].min()
        healthy += [i for i in ids if cases[i].num_nodes <= HEALTHY_NODES and measured[i] <= HEALTHY_FACTOR * best]
    return sorted(healthy)


def _memory(pairs: Sequence[tuple[Case, Prediction]]) -> Errors:
    known = [
        (p.memory_bytes, c.measured.memory_bytes)
        for c, p in pairs
        if p.memory_bytes is not None and c.measured.memory_bytes and not c.measured.failed
    ]
    table = np.array(known, dtype=float).reshape(-1, 2)
    return errors(table[:, 0], table[:, 1])


def _fit(pairs: Sequence[tuple[Case, Prediction]]) -> Fit:
    judged = [(c.measured.failed, p.fits) for c, p in pairs if p.fits is not None]
    ran = [fits for failed, fits in judged if not failed]
    failed = [fits for failed, fits in judged if failed]
    return Fit(len(ran), sum(ran), len(failed), len(failed) - sum(failed))
