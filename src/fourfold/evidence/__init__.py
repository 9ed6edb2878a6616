"""Measured runs beside a prediction: how far it may be off, and the published runs nearest to it."""

from fourfold.evidence.interval import Interval, interval
from fourfold.evidence.nearest import Neighbourhood, PublishedRun, RunShape, nearest_runs, published_runs, schedule_kind
from fourfold.evidence.out_of_memory import OutOfMemory, out_of_memory

__all__ = [
    "Interval",
    "Neighbourhood",
    "OutOfMemory",
    "PublishedRun",
    "RunShape",
    "interval",
    "nearest_runs",
    "out_of_memory",
    "published_runs",
    "schedule_kind",
]
