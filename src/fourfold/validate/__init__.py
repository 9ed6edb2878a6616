"""Measured runs beside predictions: errors, skill and ranks."""

from fourfold.validate.metrics import Metrics, Pair, measure, null_times

__all__ = ["Metrics", "Pair", "measure", "null_times"]
