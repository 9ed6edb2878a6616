"""The result of a validation: one record a row, metrics by file and of all, and their JSON form."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from case import PublishedCase, SettledPrediction
from fourfold.evidence.interval import Quantity, published_interval
from fourfold.evidence.out_of_memory import published_out_of_memory
from pairs import PublishedMetrics
from row import Row, Unread


@dataclass(frozen=True)
class RowOutcome:
    """One row, measured and predicted; None where a figure is not known. `mfu`: model FLOPs (causal) / (step time x devices x the
    row's peak), both sides by the same formula; `reported_mfu` as the source has it. Errors are predicted / measured - 1.
    Intervals: 80 % of measured figures lie in them (`fourfold.evidence`). `network_step_seconds`: on the slowest and the fastest
    network (`settle.NETWORKS`), where the source states none; the step's interval holds those of both."""

    id: str
    source: str
    file: str
    software: str | None = None
    device: str | None = None
    num_devices: int | None = None
    measured_step_seconds: float | None = None
    measured_step_from: str | None = None
    predicted_step_seconds: float | None = None
    measured_tokens_per_second_per_device: float | None = None
    predicted_tokens_per_second_per_device: float | None = None
    measured_mfu: float | None = None
    predicted_mfu: float | None = None
    reported_mfu: float | None = None
    measured_memory_bytes: float | None = None
    measured_memory_kind: str | None = None
    predicted_memory_bytes: float | None = None
    step_error: float | None = None
    memory_error: float | None = None
    predicted_to_fit: bool | None = None
    failed: bool = False
    time_counts: bool = True
    skipped: str | None = None
    step_seconds_interval: tuple[float, float] | None = None
    memory_bytes_interval: tuple[float, float] | None = None
    probability_out_of_memory: float | None = None
    network_step_seconds: tuple[float, float] | None = None
    defaults: tuple[str, ...] = ()
    from_memory: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceSummary:
    """One file, or all: how many rows there are, were cases, were predicted; why the others were not; the metrics."""

    rows: int
    cases: int
    predicted: int
    skipped: Mapping[str, int]
    metrics: PublishedMetrics


@dataclass(frozen=True)
class PublishedOutcome:
    """Everything that `validate` finds."""

    rows: tuple[RowOutcome, ...]
    by_source: Mapping[str, SourceSummary]
    overall: SourceSummary
    unread: tuple[Unread, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain tables, lists, numbers and texts; a figure that is not known is null."""
        return {
            "rows": [asdict(row) for row in self.rows],
            "by_source": {name: _summary_json(summary) for name, summary in self.by_source.items()},
            "overall": _summary_json(self.overall),
            "unread": [asdict(file) for file in self.unread],
        }


def _summary_json(summary: SourceSummary) -> dict[str, Any]:
    table = asdict(summary)
    table["metrics"]["fit"]["share"] = summary.metrics.fit.share
    return table


def skipped_row(row: Row, reason: str) -> RowOutcome:
    """A row that is no case."""
    figures = row.figures
    return RowOutcome(
        id=row.id,
        source=row.source,
        file=row.file,
        num_devices=row.num_devices,
        measured_step_seconds=figures.step_seconds,
        measured_step_from="stated" if figures.step_seconds else None,
        measured_tokens_per_second_per_device=figures.tokens_per_second_per_device,
        reported_mfu=figures.mfu,
        measured_memory_bytes=figures.memory_bytes,
        measured_memory_kind=figures.memory_kind or None,
        failed=figures.failed,
        skipped=reason,
        from_memory=row.from_memory,
    )


def predicted_row(case: PublishedCase, prediction: SettledPrediction) -> RowOutcome:
    """A case and its prediction."""
    measured = case.measured
    flops = case.model_flops / case.num_devices
    rate = case.tokens / case.num_devices

    def mfu(seconds: float | None) -> float | None:
        return flops / (seconds * case.peak_flops) if seconds and case.peak_flops else None

    return RowOutcome(
        id=case.id,
        source=case.source,
        file=case.file,
        software=case.software,
        device=case.device,
        num_devices=case.num_devices,
        measured_step_seconds=measured.step_seconds,
        measured_step_from=measured.step_from,
        predicted_step_seconds=prediction.step_seconds,
        measured_tokens_per_second_per_device=_over(rate, measured.step_seconds),
        predicted_tokens_per_second_per_device=_over(rate, prediction.step_seconds),
        measured_mfu=mfu(measured.step_seconds),
        predicted_mfu=mfu(prediction.step_seconds),
        reported_mfu=measured.mfu,
        measured_memory_bytes=measured.memory_bytes,
        measured_memory_kind=measured.memory_kind if measured.memory_bytes else None,
        predicted_memory_bytes=prediction.memory_bytes,
        step_error=_error(prediction.step_seconds, measured.step_seconds),
        memory_error=_error(prediction.memory_bytes, measured.memory_bytes),
        predicted_to_fit=prediction.fits,
        failed=measured.failed,
        time_counts=measured.time_counts,
        skipped=prediction.refused,
        step_seconds_interval=_around_networks(case, prediction),
        memory_bytes_interval=_around("memory", case, prediction.memory_bytes),
        probability_out_of_memory=_probability(case, prediction.memory_share),
        network_step_seconds=prediction.network_step_seconds,
        defaults=(*case.defaults, *prediction.taken),
        from_memory=case.from_memory,
    )


def _around_networks(case: PublishedCase, prediction: SettledPrediction) -> tuple[float, float] | None:
    """The interval of a step time; of a network that nobody states, from the fastest one's least to the slowest one's most."""
    seconds = prediction.step_seconds
    steps = [] if seconds is None else [seconds, *(prediction.network_step_seconds or ())]
    around = [each for each in (_around("time", case, step) for step in steps) if each is not None]
    return (min(low for low, _ in around), max(high for _, high in around)) if around else None


def _around(quantity: Quantity, case: PublishedCase, predicted: float | None) -> tuple[float, float] | None:
    return published_interval(quantity, case.software, case.device).around(predicted) if predicted is not None else None


def _probability(case: PublishedCase, share: float | None) -> float | None:
    return float(published_out_of_memory(case.software).probability(share)) if share is not None else None


def _over(amount: float, seconds: float | None) -> float | None:
    return amount / seconds if seconds else None


def _error(predicted: float | None, measured: float | None) -> float | None:
    return predicted / measured - 1 if predicted is not None and measured else None
