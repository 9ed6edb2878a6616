"""Published measurements beside predictions: rows of JSON, cases to predict, errors and ranks of what was predicted."""

from fourfold.validate.case import Case, LayoutRequest, Measured, Network, Precision, Prediction, Skip
from fourfold.validate.defaults import DEFAULTS
from fourfold.validate.machine import DEVICE_KEYS
from fourfold.validate.metrics import Metrics, Pair, measure, null_times
from fourfold.validate.outcome import Outcome, RowOutcome, Summary
from fourfold.validate.row import Row, Unread
from fourfold.validate.rows import read_rows
from fourfold.validate.run import Predict, Progress, validate
from fourfold.validate.text import defaults_lines, summary_lines
from fourfold.validate.translate import translate

__all__ = [
    "DEFAULTS",
    "DEVICE_KEYS",
    "Case",
    "LayoutRequest",
    "Measured",
    "Metrics",
    "Network",
    "Outcome",
    "Pair",
    "Precision",
    "Predict",
    "Prediction",
    "Progress",
    "Row",
    "RowOutcome",
    "Skip",
    "Summary",
    "Unread",
    "defaults_lines",
    "measure",
    "null_times",
    "read_rows",
    "summary_lines",
    "translate",
    "validate",
]
