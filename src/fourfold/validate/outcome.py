"""Predictions of cases, and the result of a validation: every case measured and predicted, and the metrics of all, as one JSON
document."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fourfold.config import UserError
from fourfold.cost.fitted import Fitted, fitted
from fourfold.cost.memory import overhead_bytes
from fourfold.cost.prices import Prices
from fourfold.cost.software import OWN_SOFTWARE, SoftwareProfile
from fourfold.hardware.types import Device
from fourfold.layout import resolve_layout
from fourfold.program.resolve import resolve_step
from fourfold.program.spec import StepSpec
from fourfold.program.view import rank_views
from fourfold.simulate.prediction import check_layers, check_size, predict_step
from fourfold.simulate.run_prices import (
    check_devices,
    document_share,
    executed_precision,
    fitted_prices,
    profile_prices,
)
from fourfold.validate.case import Case, MeasuredStep, Prediction
from fourfold.validate.metrics import Metrics, Pair, measure

HOST_UPDATE_BYTES = 16
"""Bytes of a parameter that pass between a device and its host's memory in an optimizer step there."""


def predict_case(case: Case, constants: Fitted | None = None) -> Prediction:
    """The step time and memory of a case. `constants` None: those that ship. Raises `UserError` where the layout cannot be."""
    spec = case_spec(case)
    check_size(spec)
    prices = case_prices(case, spec, constants or fitted())
    step = predict_step(spec, prices)
    if case.software.offload is not None:
        host = host_update_seconds(spec, case.cluster.device) if case.software.offload == "optimizer" else 0.0
        return Prediction(step.seconds + host)
    ranks, wanted = step.device_bytes, case.measured.memory_rank
    largest = ranks.index(max(ranks))
    rank = largest if wanted == "largest" else {"first": 0}.get(wanted, len(ranks) - 1)
    beside = [overhead_bytes(spec, each, prices.software) for each in range(len(ranks))]
    counted = counted_bytes(ranks[rank], beside[rank], case.measured, prices.software)
    share = ranks[largest] / case.cluster.device.memory_bytes
    return Prediction(step.seconds, counted, _fits(ranks[largest], beside[largest], prices), memory_share=share)


def checked_prediction(case: Case) -> Prediction:
    """`predict_case`, with a case that cannot be predicted as a refusal and its reason."""
    try:
        prediction = predict_case(case)
    except UserError as error:
        return Prediction(refused=str(error))
    reason = refusal_of(prediction)
    return prediction if reason is None else Prediction(refused=reason)


def refusal_of(prediction: Prediction) -> str | None:
    """Why figures are no prediction: one is not finite, or not above 0. None where they are one."""
    for key in ("step_seconds", "memory_bytes"):
        value = getattr(prediction, key)
        if value is not None and not (math.isfinite(value) and value > 0):
            return f"the prediction has {key} = {value}"
    return None


def case_spec(case: Case) -> StepSpec:
    """The inputs of lowering. Raises `UserError` where the layout cannot be."""
    check_layers(case.model)
    run = case.run
    if case.software.is_own:
        precision, _ = executed_precision(run.precision, case.cluster, None, case.software.overrides)
        run = run.model_copy(update={"precision": precision})
    layout = resolve_layout(run, case.model)
    check_devices(layout, case.cluster)
    return resolve_step(run, case.model, layout, case.transport)


def case_prices(case: Case, spec: StepSpec, constants: Fitted) -> Prices:
    """Prices on the case's cluster. Low-precision GEMMs run at their own peak."""
    run, software = case.run, case.software
    if software.is_own:
        overrides = replace(software.overrides, gemm_dtype=None)  # the step executes it
        prices = profile_prices(run, spec, case.cluster, constants.software(OWN_SOFTWARE), overrides)
    else:
        named = constants.software(software.name)
        profile = software.applied(named, case.cluster.device.key, run.run.cuda_graphs)
        compute = software.compute_dtype or run.precision.compute
        prices = fitted_prices(constants, case.cluster, spec, profile, compute, profile.gemm_dtype or compute)
        prices = replace(prices, masked_share=document_share(run))
    return prices if case.attention_share is None else replace(prices, masked_share=case.attention_share)


def host_update_seconds(spec: StepSpec, device: Device) -> float:
    """Seconds that an optimizer step in the host's memory adds: of the fullest stage, over the device's link to the host."""
    rows = [sum(flat.shard_numel for flat in view.flats.values()) for view in rank_views(spec)]
    return max(rows) * HOST_UPDATE_BYTES / device.host_link_bytes_per_second


def counted_bytes(held: int, beside: int, measured: MeasuredStep, profile: SoftwareProfile) -> float:
    """The part of a device's memory that the case's figure counts: the allocator's peak, live or reserved, or all of it. `beside`:
    the context and communicators."""
    if measured.memory_counts == "device":
        return float(held)
    reserved = max(1.0, held - beside)
    return reserved if measured.memory_counts == "reserved" else reserved / (1 + profile.fragmentation)


def _fits(held: int, beside: int, prices: Prices) -> bool:
    """An allocator that runs out gives back the blocks that it holds free: what is live and the context must have room."""
    profile = prices.software
    live = (held - beside) / (1 + profile.fragmentation)
    return live + beside <= prices.cluster.device.memory_bytes


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
