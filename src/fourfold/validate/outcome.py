"""The result of a validation: every case measured and predicted, and the metrics of all, as one JSON document."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fourfold.validate.case import Case, Prediction
from fourfold.validate.metrics import Metrics, Pair, measure


@dataclass(frozen=True)
class CaseOutcome:
    """One case beside its prediction."""

    case: Case
    prediction: Prediction

    @property
    def pair(self) -> Pair:
        """The figures that the metrics read."""
        case, prediction = self.case, self.prediction
        return Pair(
            group=case.group,
            null_group=(case.cluster.device.key, case.gemm_dtype),
            device_flops=case.device_flops,
            measured_seconds=case.measured_seconds,
            predicted_seconds=prediction.step_seconds,
            measured_bytes=case.measured.peak_memory_bytes,
            predicted_bytes=prediction.memory_bytes,
            fits=prediction.fits,
            failed=case.measured.out_of_memory,
        )

    @property
    def step_error(self) -> float | None:
        """Predicted / measured - 1."""
        return _error(self.prediction.step_seconds, self.case.measured_seconds)

    @property
    def memory_error(self) -> float | None:
        """Predicted / measured - 1."""
        return _error(self.prediction.memory_bytes, self.case.measured.peak_memory_bytes)

    def mfu(self, seconds: float | None) -> float | None:
        """Model FLOPs utilisation of a step that takes so long."""
        return self.case.device_flops / (seconds * self.case.peak_flops) if seconds else None

    def to_json(self) -> dict[str, Any]:
        """Plain values; a figure that is not known is null."""
        case, prediction = self.case, self.prediction
        figures = {"measured": case.measured_seconds, "predicted": prediction.step_seconds}
        rate = case.tokens / case.num_devices
        return {
            "name": case.name,
            "source": case.source,
            "cluster": case.cluster.key,
            "software": case.software.name,
            "num_devices": case.num_devices,
            **{f"{which}_step_seconds": seconds for which, seconds in figures.items()},
            **{
                f"{which}_tokens_per_second_per_device": rate / seconds if seconds else None
                for which, seconds in figures.items()
            },
            **{f"{which}_mfu": self.mfu(seconds) for which, seconds in figures.items()},
            "measured_peak_memory_bytes": case.measured.peak_memory_bytes,
            "predicted_peak_memory_bytes": prediction.memory_bytes,
            "step_error": self.step_error,
            "memory_error": self.memory_error,
            "predicted_to_fit": prediction.fits,
            "out_of_memory": case.measured.out_of_memory,
            "refused": prediction.refused,
        }


@dataclass(frozen=True)
class Validation:
    """All cases and their metrics."""

    outcomes: tuple[CaseOutcome, ...]
    metrics: Metrics

    def to_json(self) -> dict[str, Any]:
        """One document: `cases` in order, and `metrics`."""
        metrics = asdict(self.metrics)
        metrics["fit"]["share"] = self.metrics.fit.share
        return {"cases": [outcome.to_json() for outcome in self.outcomes], "metrics": metrics}


def validate(cases: Sequence[Case], predict: Callable[[Case], Prediction]) -> Validation:
    """Predicts every case and compares."""
    outcomes = tuple(CaseOutcome(case, predict(case)) for case in cases)
    return Validation(outcomes, measure([outcome.pair for outcome in outcomes]))


def _error(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured - 1 if predicted is not None and measured else None
