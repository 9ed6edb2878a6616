"""A whole training run in words: days, device hours, dollars, failures; and what of a real one was kept, and how often to save."""

from math import isfinite

from fourfold.report.units import duration, format_bytes, format_count, format_dollars, format_seconds
from fourfold.results.goodput import MeasuredGoodput
from fourfold.simulate.campaign import Campaign, Goodput

DAY = 86400.0


def campaign_lines(run: Campaign, state: int, stated: frozenset[str] = frozenset()) -> list[str]:
    """`state`: bytes of a checkpoint. `stated`: which assumptions a person gave on the command line."""
    lines = [
        f"run        {format_count(run.tokens)} tokens = {run.steps:,} steps: {duration(run.training_seconds)} of training, "
        f"{_hours(run.training_device_hours)} device hours on {run.devices:,} devices"
    ]
    lines += _stage_lines(run)
    if run.failures is None:
        lines.append(
            "           no failure rate is known: --failure-hours HOURS, device hours for each interruption, gives the goodput"
        )
    else:
        lines += _failure_lines(run, state, stated)
    price = run.assumptions.dollars_per_device_hour
    if run.dollars is not None and isfinite(run.dollars):
        idle = f", for {run.rented:,} rented devices, {run.rented - run.devices:,} of them idle"
        rented = idle if run.rented > run.devices else ""
        lines.append(f"cost       {format_dollars(run.dollars)} at ${price:g} a device hour{rented}")
    if run.joules is not None and isfinite(run.joules):
        lines.append(
            f"energy     {_energy(run.joules)} at {run.assumptions.watts_per_device:g} W a device, the whole system's share"
        )
    return lines


def _stage_lines(run: Campaign) -> list[str]:
    """A line a stage: its share of the time, its batch at the end, its layout."""
    lines = []
    for stage in run.stages:
        name = f" {stage.name}" if stage.name else ""
        lines.append(
            f"           stage {stage.number}{name}: {stage.steps:,} steps to {stage.sequences:,} x {stage.length:,} tokens, "
            f"{format_seconds(stage.step_seconds)} a step, {duration(stage.seconds)} ({stage.seconds / run.training_seconds:.0%}), "
            f"{stage.words}{'' if stage.fits else ': DOES NOT FIT'}"
        )
    return lines


def _hours(hours: float) -> str:
    return format_count(hours) if hours >= 10 else f"{hours:.2g}"


def _energy(joules: float) -> str:
    if joules >= 36e9:
        return f"{joules / 3.6e9:,.0f} MWh"
    return f"{joules / 3.6e6:,.0f} kWh" if joules >= 36e7 else f"{joules / 3.6e6:.3g} kWh"


def _failure_lines(run: Campaign, state: int, stated: frozenset[str]) -> list[str]:
    failures, given = run.failures, run.assumptions
    assert failures is not None
    checkpoint = "given" if "checkpoint_seconds" in stated else f"{format_bytes(state)} at 1 GB/s a node, assumed"
    restart = "given" if "restart_seconds" in stated else "assumed"
    repair = "given" if "repair_seconds" in stated else "assumed"
    return [
        f"failures   one in {duration(failures.mean_seconds)} ({given.failure_hours:,.0f} device hours / {run.devices:,} devices), "
        + (
            f"some {failures.expected:,.0f} in the run" if isfinite(failures.expected) else "more than any run outlasts"
        ),
        f"           checkpoint every {failures.checkpoint_steps:,} steps = {duration(failures.best_seconds)} of training, the "
        f"optimum (Young 1974: {duration(failures.young_seconds)}, Daly 2006: {duration(failures.daly_seconds)})",
        f"           a checkpoint stops training for {duration(given.checkpoint_seconds)} ({checkpoint}), a restart takes "
        f"{duration(given.restart_seconds)} ({restart}), a repair {duration(given.repair_seconds)} ({repair})",
        _goodput_line("with", failures.with_spares, run),
        _goodput_line("without", failures.without_spares, run),
    ]


def _goodput_line(word: str, goodput: Goodput, run: Campaign) -> str:
    if not goodput.efficiency:
        return f"goodput    {word} spares: nothing is ever kept; failures come faster than checkpoints and restarts"
    spares = f", {goodput.spare_devices} devices (enough 99 % of the time)" if goodput.spare_devices else ""
    length = run.training_seconds / goodput.efficiency
    return f"goodput    {100 * goodput.efficiency:.1f} % {word} spares{spares}: {duration(length)}"


_ASSUMED = (3600.0, 24 * 3600.0)
"""Seconds between failures for which advice is given where none was seen."""


def goodput_lines(found: MeasuredGoodput, step_seconds: float | None) -> list[str]:
    """The lines of `fourfold report`: goodput by cause, and how often to save. `step_seconds`: of a typical step."""
    if not found.total_seconds:
        return []
    causes = sorted(found.seconds.items(), key=lambda pair: -pair[1])
    rest = ", ".join(f"{cause} {100 * seconds / found.total_seconds:.1f} %" for cause, seconds in causes if seconds > 0)
    plural = "" if found.failures == 1 else "s"
    lines = [
        f"goodput   {100 * found.share:.1f} % of {format_seconds(found.total_seconds)} became steps that are kept, with "
        f"{found.failures} failure{plural}; {rest}"
    ]
    if not found.saves:
        return lines
    for mean in (None,) if found.failures else _ASSUMED:
        advice = found.advice(mean)
        if advice is None:
            continue
        steps = f" ({max(1, round(advice.best_seconds / step_seconds))} steps)" if step_seconds else ""
        lines.append(
            f"saving    with a failure every {format_seconds(advice.mean_seconds)}: best every "
            f"{format_seconds(advice.best_seconds)}{steps}; expected goodput {100 * advice.expected_goodput:.1f} % "
            f"(a save {advice.save_seconds:.2g} s, a restart {advice.restart_seconds:.2g} s)"
        )
    return lines
