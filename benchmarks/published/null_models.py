"""Constant shares of the peak as predictions, each made of the runs of all other sources."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from case import PublishedCase
from fit_table import Numbers


def seconds_at_peak(case: PublishedCase) -> float:
    """The step if every device reached its peak."""
    peak = case.peak_flops or case.hardware.peak("fp8" if case.precision.low else case.precision.compute)
    return case.model_flops / case.num_devices / peak


def by_other_sources(
    cases: Sequence[PublishedCase], least: Numbers, measured: Numbers, group_of: Callable[[PublishedCase], Hashable]
) -> Numbers:
    """`least` times a constant of the group: the one with the least mean error on the group's runs of all other sources, each
    source counting as one run. Where no other source has the group, the constant of all groups."""
    ratios, files = least / measured, np.array([case.file for case in cases])
    count = Counter(files.tolist())
    weights = np.array([1 / count[file] for file in files])
    groups = np.array([str(group_of(case)) for case in cases])
    found = np.zeros(len(cases))
    for group in dict.fromkeys(groups):
        for file in dict.fromkeys(files[groups == group]):
            mine, others = (groups == group) & (files == file), (groups == group) & (files != file)
            if not others.any():
                others = files != file
            found[mine] = least[mine] * (_best_constant(ratios[others], weights[others]) if others.any() else np.nan)
    return found


def _best_constant(ratios: Numbers, weights: Numbers) -> float:
    """The f with the least weighted mean of |f x ratio - 1|: the median of 1 / ratio, weighted by ratio."""
    order = np.argsort(1 / ratios)
    mass = np.cumsum((ratios * weights)[order])
    return float(1 / ratios[order][min(int(np.searchsorted(mass, mass[-1] / 2)), len(order) - 1)])


def device_and_format(case: PublishedCase) -> Hashable:
    return case.device, case.precision.name
