"""Measured runs beside predictions: cases in the run file's words, what is predicted of them, errors, skill and ranks."""

from fourfold.validate.case import Case, MeasuredStep, Prediction
from fourfold.validate.case_file import preset_case, read_cases, run_case
from fourfold.validate.metrics import Errors, Metrics, Pair, measure, null_times
from fourfold.validate.outcome import (
    CaseOutcome,
    Validation,
    case_prices,
    case_spec,
    checked_prediction,
    host_update_seconds,
    predict_case,
    refusal_of,
    validate,
)
from fourfold.validate.software import Software

__all__ = [
    "Case",
    "CaseOutcome",
    "Errors",
    "MeasuredStep",
    "Metrics",
    "Pair",
    "Prediction",
    "Software",
    "Validation",
    "case_prices",
    "case_spec",
    "checked_prediction",
    "host_update_seconds",
    "measure",
    "null_times",
    "predict_case",
    "preset_case",
    "read_cases",
    "refusal_of",
    "run_case",
    "validate",
]
