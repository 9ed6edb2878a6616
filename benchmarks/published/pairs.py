"""Published cases and their predictions as the pairs that the metrics read; the part of them that is healthy."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from case import Prediction, PublishedCase
from fourfold.validate.metrics import Errors, Metrics, Numbers, Pair, errors, measure, members_of

HEALTHY_NODES = 8
HEALTHY_FACTOR = 3.0


@dataclass(frozen=True)
class PublishedMetrics(Metrics):
    """`healthy`: errors of step times of the runs on at most `HEALTHY_NODES` nodes within `HEALTHY_FACTOR` of the best measured of
    their cell."""

    healthy: Errors = field(default_factory=Errors)


def pair_of(case: PublishedCase, prediction: Prediction) -> Pair:
    """A case beside its prediction. A step time that does not count is left out."""
    measured = case.measured
    return Pair(
        group=case.cell,
        null_group=(case.device, case.precision.name),
        device_flops=case.model_flops / case.num_devices,
        measured_seconds=measured.step_seconds if measured.time_counts else None,
        predicted_seconds=prediction.step_seconds,
        measured_bytes=measured.memory_bytes,
        predicted_bytes=prediction.memory_bytes,
        fits=prediction.fits,
        failed=measured.failed,
    )


def measure_published(cases: Sequence[PublishedCase], predictions: Sequence[Prediction]) -> PublishedMetrics:
    """All metrics of predictions, one a case, in the same order."""
    pairs = [pair_of(case, prediction) for case, prediction in zip(cases, predictions, strict=True)]
    timed = [(case, pair) for case, pair in zip(cases, pairs, strict=True) if pair.is_timed]
    measured = np.array([pair.measured_seconds for _, pair in timed], dtype=float)
    predicted = np.array([pair.predicted_seconds for _, pair in timed], dtype=float)
    kept = _healthy([case for case, _ in timed], measured)
    return PublishedMetrics(**vars(measure(pairs)), healthy=errors(predicted[kept], measured[kept]))


def _healthy(cases: Sequence[PublishedCase], measured: Numbers) -> list[int]:
    healthy: list[int] = []
    for ids in members_of([case.cell for case in cases]):
        best = measured[ids].min()
        healthy += [i for i in ids if cases[i].num_nodes <= HEALTHY_NODES and measured[i] <= HEALTHY_FACTOR * best]
    return sorted(healthy)
