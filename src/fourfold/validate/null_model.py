"""The model that every prediction must beat: one share of peak FLOP/s for all runs on a device in a precision."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fourfold.validate.case import Case

Numbers = NDArray[np.float64]


def device_work(case: Case) -> float:
    """Model FLOPs of a step on one device: weights' products, and half of the attention matrix (`step_flops`, `causal`)."""
    return case.model_flops / case.num_devices


def null_times(cases: Sequence[Case]) -> Numbers:
    """Seconds a step: `device_work` / c, with one c for each (device, precision), fitted on these very cases so that the mean
    absolute relative error is least. Every case needs a measured step time."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        groups[case.device, case.precision.name].append(index)
    work = np.array([device_work(case) for case in cases])
    measured = np.array([case.measured.step_seconds for case in cases], dtype=float)
    times = np.zeros(len(cases))
    for members in groups.values():
        times[members] = work[members] * _best_factor(work[members] / measured[members])
    return times


def _best_factor(ratios: Numbers) -> float:
    """The f that minimises the mean of |f x ratio - 1|: the median of 1 / ratio, weighted by ratio."""
    order = np.argsort(1 / ratios)
    weights = ratios[order]
    middle = int(np.searchsorted(np.cumsum(weights), weights.sum() / 2))
    return float(1 / ratios[order][min(middle, len(order) - 1)])
