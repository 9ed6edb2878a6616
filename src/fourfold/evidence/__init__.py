"""Measured runs beside a prediction: how far it may be off, and the published runs nearest to it. `out_of_memory`
serves the search alone, and imports numpy."""

from fourfold.evidence.interval import Interval, interval
from fourfold.evidence.nearest import PublishedRun, RunShape, nearest_runs, published_runs, schedule_kind

__all__ = [
    "Interval",
    "PublishedRun",
    "RunShape",
    "interval",
    "nearest_runs",
    "published_runs",
    "schedule_kind",
]
