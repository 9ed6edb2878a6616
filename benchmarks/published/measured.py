"""The measured step time and memory of a published row, computed from whatever its source states."""

import re

from case import MemoryKind, PublishedFigures, StepSource
from defaults import ImputedDefaults
from flops import step_flops
from fourfold.config import ModelConfig
from row import GIGABYTES, ReportedFigures, Row
from software import Trainer

_DIFFERS = 0.02
_DAY_SECONDS = 86400.0
_GIBIBYTES: tuple[tuple[str, MemoryKind], ...] = (("nanotron", "allocated"), ("megatron", "unstated"))
"""Frameworks (how their names begin) whose GB is 2^30 bytes, and what they count."""


def measured_of(
    row: Row,
    trainer: Trainer,
    model: ModelConfig,
    global_sequences: int,
    num_devices: int,
    recompute: str,
    peak_flops: float | None,
    imputed: ImputedDefaults,
) -> PublishedFigures:
    """Step time from, in this order: the stated time, tokens per second, samples per second, days for 300e9 tokens, FLOP/s, MFU.
    The last two go by the row's own convention of counting."""
    figures, tokens = row.figures, float(global_sequences) * (row.sequence_length or 1)
    convention = convention_of(row, trainer, imputed) if _needs_convention(row) else None
    times: dict[StepSource, float | None] = {
        "stated": figures.step_seconds,
        "tokens": _ratio(tokens, figures.tokens_per_second)
        or _ratio(tokens, figures.tokens_per_second_per_device, num_devices),
        "samples": _ratio(global_sequences, figures.samples_per_second)
        or _ratio(global_sequences, figures.samples_per_second_per_device, num_devices),
        "days": _days(figures.days_for_300e9_tokens, tokens),
    }
    _compare(times, _rounding(figures), imputed)
    if not any(times.values()):
        rate = figures.flops_per_second_per_device
        if convention is not None:
            flops = step_flops(model, row.sequence_length or 1, global_sequences, convention, recompute)
            times["flops"] = _ratio(flops, rate, num_devices)
            plain = "full" if convention == "hardware" else convention
            useful = step_flops(model, row.sequence_length or 1, global_sequences, plain)
            reached = figures.mfu * peak_flops if figures.mfu and peak_flops else None
            times["mfu"] = _ratio(useful, reached, num_devices)
    source = next((name for name, value in times.items() if value), None)
    memory, kind = _memory(row, trainer, imputed)
    return PublishedFigures(
        step_seconds=times[source] if source else None,
        step_from=source,
        memory_bytes=memory,
        memory_kind=kind,
        last_rank_alone=figures.last_rank_alone,
        mfu=figures.mfu,
        mfu_convention=convention,
        failed=figures.failed,
        time_counts=not row.regression and "functional_tests" not in row.source,
    )


HALVED_SINCE = 2025
"""Megatron's own figure counts half of the attention matrix since then (core 0.12)."""


def convention_of(row: Row, trainer: Trainer, imputed: ImputedDefaults) -> str:
    """A `FlopsConvention`, from what the row says of its FLOPs."""
    kind = row.figures.flops_kind.lower()
    text = f"{kind} {row.flops_convention} {row.notes}".lower()
    only_mfu = row.figures.flops_per_second_per_device is None
    if "hardware" in kind or (not kind and not only_mfu and "hardware" in text):
        return "hardware"
    if re.search(r"non-?_?causal|(full|whole) attention|12lhs", text):
        return "full"
    if re.search(r"causal|half (of )?(the )?attention", text):
        return "causal"
    if re.search(r"\b6 ?nd\b|6\*?n\*?d", text):
        return "6nd"
    if "megatron" in text:
        return "causal" if trainer.framework == "megatron" and trainer.year >= HALVED_SINCE else "full"
    if trainer.framework == "nemo" and "bridge" not in row.source.lower():
        return imputed.fill("flops_convention", "full")
    return imputed.fill("flops_convention", "causal")


def _needs_convention(row: Row) -> bool:
    return row.figures.flops_per_second_per_device is not None or row.figures.mfu is not None


def _ratio(amount: float, rate: float | None, devices: int = 1) -> float | None:
    return amount / (rate * devices) if rate else None


def _days(days: float | None, tokens: float) -> float | None:
    return days * _DAY_SECONDS * tokens / 300e9 if days else None


def _rounding(figures: ReportedFigures) -> dict[StepSource, float]:
    """How far a figure may be off because it is printed in whole numbers."""
    samples, days = figures.samples_per_second, figures.days_for_300e9_tokens
    rounding: dict[StepSource, float] = {}
    if samples and samples == int(samples):
        rounding["samples"] = 1 / samples
    if days and days == int(days):
        rounding["days"] = 1 / days
    return rounding


def _compare(
    times: dict[StepSource, float | None], rounding: dict[StepSource, float], imputed: ImputedDefaults
) -> None:
    """Notes figures of one row that differ from one another."""
    known = [(name, value) for name, value in times.items() if value]
    for name, value in known[1:]:
        first, stated = known[0]
        if abs(value / stated - 1) > max(_DIFFERS, rounding.get(name, 0.0)):
            imputed.note(f"the step time by {name} is {value:.4g} s, but by {first} {stated:.4g} s, taken")


def _memory(row: Row, trainer: Trainer, imputed: ImputedDefaults) -> tuple[float | None, MemoryKind]:
    value, kind = row.figures.memory_bytes, row.figures.memory_kind
    if value is None:
        return None, "unstated"
    if kind.startswith("unstated") and re.search(r"nvidia-smi|by the driver", row.notes, re.I):
        return value, "device"
    counted = next((counted for name, counted in _GIBIBYTES if trainer.framework.startswith(name)), None)
    if kind == GIGABYTES and counted:
        imputed.approximate("memory_unit")
        return value * 2.0**30 / 1e9, counted
    return value, kind if kind in ("allocated", "reserved", "device") else "unstated"  # type: ignore[return-value]
