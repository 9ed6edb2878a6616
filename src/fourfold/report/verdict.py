"""The first lines about a predicted step: does it fit, how fast it is, where its time goes; and the interval of its figures."""

from collections.abc import Callable

from fourfold.evidence.interval import Quantity
from fourfold.report.format_simulation import LEAST_IMBALANCE
from fourfold.report.units import format_bytes, format_figure, per_cent, seconds_text, spelled_out
from fourfold.results.fit import fit_of
from fourfold.results.prediction import interval_of
from fourfold.simulate.summary import StepSummary

WIDTH = 72
"""Columns of a line's text, of 80."""


def verdict_lines(summary: StepSummary) -> list[str]:
    """Three lines, the same for every command that predicts a step. Changes that help follow them (`format_advice`)."""
    rate = summary.tokens_per_second / summary.devices
    return [
        f"memory  {_memory(summary)}",
        f"step    {seconds_text(summary.seconds)}, MFU {per_cent(summary.mfu)}, {format_figure(rate)} tokens/s/device",
        f"time    {_time(summary)}",
    ]


def _memory(summary: StepSummary) -> str:
    most, capacity = max(summary.step.device_bytes), summary.memory_limit
    of = f"{_short(most, capacity)} of {format_bytes(capacity)} usable"
    if summary.host_lacks > 0 and most <= capacity:
        return f"{fit_of(summary).phrase}: the host lacks {format_bytes(summary.host_lacks)}; device {of}"
    line = f"{fit_of(summary).phrase}: {of}"
    if most > capacity:
        return f"{line}, {format_bytes(most - capacity)} too much"
    interval = interval_of("memory", summary)
    if interval is None:
        return f"{line}, {format_bytes(capacity - most)} left"
    low, high = interval
    full = f"{line}, 80 % of runs {_short(low, high)} to {format_bytes(high)}"
    return full if len(full) <= WIDTH else full.replace(" usable,", ",")


def _short(size: float, beside: float) -> str:
    """The number of a size, without its unit where another one that follows has the same."""
    number, unit = format_bytes(size).split()
    return number if unit == format_bytes(beside).split()[1] else f"{number} {unit}"


def _time(summary: StepSummary) -> str:
    """Shares that sum to the step: means over pipeline ranks; as many axes as the line has room for."""
    exposed = [(spelled_out(axes), share) for axes, share in summary.exposed_shares.items() if share >= 0.0005]
    total, bubble = sum(summary.exposed_shares.values()), summary.bubble_fraction
    uneven = summary.imbalance_fraction
    line = f"compute {per_cent(1 - total - bubble - uneven)}, exposed comm {per_cent(total)}, bubble {per_cent(bubble)}"
    line += f", imbalance {per_cent(uneven)}" if uneven >= LEAST_IMBALANCE else ""
    first = f" ({exposed[0][0]} {100 * exposed[0][1]:.1f})" if exposed else ""
    by_axes = first if len(line) + len(first) <= WIDTH else ""
    for number in range(1, len(exposed) + 1):
        rest = sum(share for _, share in exposed[number:])
        shown = [
            f"{axes} {100 * share:.1f}" for axes, share in [*exposed[:number], *([("other", rest)] if rest else [])]
        ]
        if len(line) + len(longer := f" ({', '.join(shown)})") > WIDTH:
            break
        by_axes = longer
    return line.replace(", bubble", f"{by_axes}, bubble")


def interval_lines(summary: StepSummary) -> list[str]:
    """One line: between which figures 80 % of such runs lie; none where no published run tells."""
    parts = []
    shown: tuple[tuple[Quantity, str, Callable[[float], str]], ...] = (
        ("time", "step", seconds_text),
        ("memory", "memory", format_bytes),
    )
    for quantity, name, written in shown:
        found = interval_of(quantity, summary)
        if found is not None:
            low, high = found
            parts.append(f"{name} {written(low)} to {written(high)}")
    if not parts:
        return []
    return [f"interval   80 % of runs measure {', '.join(parts)}"]
