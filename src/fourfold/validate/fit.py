"""Adjusts a software profile to a few measured runs: the most probable constants, given the runs and the profile as a prior.

Each constant may depart from the profile's by its spread, which is how far profiles lie from one another; measurements scatter by
`NOISE`. Both are taken as normal in the constants' own scale and in the logarithm of predicted over measured, and the model is
linearised twice (Gauss-Newton; Bishop 2006, section 3.3, for the posterior mean of a linear model). With one run all constants move
together as far as they matter to it; with more, those that tell the runs apart.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fourfold.config import UserError
from fourfold.cost.fitted import Fitted, fitted
from fourfold.cost.most_probable import Free, most_probable, slopes_of
from fourfold.validate.case import Case
from fourfold.validate.outcome import predict_case

NOISE = {"step": 0.03, "memory": 0.05}
"""Spread of measured step times and peaks of memory, as a share, that no constant explains."""
ROUNDS = 2


FREE = (
    Free("gemm_speed", 0.12, 0.2, 1.6),
    Free("attention_speed", 0.2, 0.1, 3.0),
    Free("fused", 0.15, 0.0, 1.0, is_factor=False),
    Free("link_speed", 0.25, 0.05, 1.25),
    Free("host_launch_seconds", 0.4, 1e-7, 1e-3),
    Free("extra", 0.1, -0.3, 3.0, is_factor=False),
    Free("saved_share", 0.15, 0.2, 2.0),
    Free("context_bytes", 1.5e9, 0.0, 2e10, is_factor=False),
)


@dataclass(frozen=True)
class Residual:
    """Logarithm of predicted over measured of one figure of a case."""

    case: int
    figure: str
    error: float


@dataclass(frozen=True)
class SoftwareFit:
    """`constants`: those that departed, by name; `prior`: as they were. `before`, `after`: errors of the cases; `left_out`: of each
    by the constants that the others give, from the linear model."""

    base: str
    prior: Mapping[str, float]
    constants: Mapping[str, float]
    before: tuple[Residual, ...]
    after: tuple[Residual, ...]
    left_out: tuple[Residual, ...]


def fit_software(
    cases: Sequence[Case],
    progress: Callable[[int, int], None] = lambda done, total: None,
    known: Fitted | None = None,
) -> SoftwareFit:
    """Constants of the software of the cases. `known`: the constants to start from; None: those that ship. Raises `UserError` where
    the cases are of several, or nothing was measured."""
    base, known = _one_software(cases), known or fitted()
    profile = known.software(base)
    free = [each for each in FREE if not each.is_factor or getattr(profile, each.name) > 0]  # nothing is a factor of 0
    prior = {each.name: float(getattr(profile, each.name)) for each in free}
    values, total, done = dict(prior), len(cases) * (ROUNDS * (len(free) + 1) + 1), 0

    def look(constants: Mapping[str, float]) -> list[Residual]:
        nonlocal done
        found = _residuals(cases, with_constants(known, base, constants))
        done += len(cases)
        progress(done, total)
        return found

    before = residuals = look(prior)
    if not residuals:
        raise UserError("no case has a measured step time or memory; what works: measured = { step_seconds = 2.35 }")
    slopes: list[list[float]] = []
    for _ in range(ROUNDS):
        errors = [each.error for each in residuals]
        slopes = slopes_of(
            free, values, errors, lambda moved: [e.error for e in look(moved)], lambda each: each.spread / 5
        )
        departures = _most_probable(free, residuals, slopes, _departures(free, values, prior))
        values = {each.name: each.moved(prior[each.name], by) for each, by in zip(free, departures, strict=True)}
        residuals = look(values)
    moved_far = {name: value for name, value in values.items() if abs(value - prior[name]) > 1e-3 * abs(prior[name])}
    return SoftwareFit(
        base=base,
        prior=prior,
        constants={name: _rounded(value) for name, value in moved_far.items()},
        before=tuple(before),
        after=tuple(residuals),
        left_out=tuple(_left_out(free, residuals, slopes, _departures(free, values, prior))),
    )


def _departures(free: Sequence[Free], values: Mapping[str, float], prior: Mapping[str, float]) -> list[float]:
    return [each.departure(values[each.name], prior[each.name]) for each in free]


def _one_software(cases: Sequence[Case]) -> str:
    names = sorted({case.software.name for case in cases})
    if len(names) != 1:
        raise UserError(
            f"the cases are of {len(names)} softwares ({', '.join(names)}); what works: cases of one software at a time"
        )
    measured = [case.name for case in cases if case.software.is_own and case.cluster.calibration is not None]
    if measured:
        raise UserError(
            f"{measured[0]}: its cluster was calibrated, and its prices are measured; what works: fourfold calibrate again"
        )
    return names[0]


def with_constants(known: Fitted, base: str, constants: Mapping[str, float]) -> Fitted:
    """The constants with some of one software's replaced."""
    entry = {**known.entry(base), **constants}
    return replace(known, profiles={**known.profiles, base: entry})


def _residuals(cases: Sequence[Case], constants: Fitted) -> list[Residual]:
    found = []
    for index, case in enumerate(cases):
        prediction = predict_case(case, constants)
        figures = {
            "step": (prediction.step_seconds, case.measured_seconds),
            "memory": (prediction.memory_bytes, case.measured.peak_memory_bytes),
        }
        for figure, (predicted, measured) in figures.items():
            if predicted and measured:
                found.append(Residual(index, figure, math.log(predicted / measured)))
    return found


def _most_probable(
    free: Sequence[Free], residuals: Sequence[Residual], slopes: Sequence[Sequence[float]], at: Sequence[float]
) -> list[float]:
    """Departures from the prior with the highest posterior density, of a model that is linear around the departures `at`."""
    noise = [NOISE[residual.figure] for residual in residuals]
    return most_probable(free, [residual.error for residual in residuals], noise, slopes, at)


def _left_out(
    free: Sequence[Free], residuals: Sequence[Residual], slopes: Sequence[Sequence[float]], at: Sequence[float]
) -> list[Residual]:
    found = []
    for case in sorted({residual.case for residual in residuals}):
        others = [row for row, residual in enumerate(residuals) if residual.case != case]
        departures = _most_probable(free, [residuals[row] for row in others], [slopes[row] for row in others], at)
        for residual, row in zip(residuals, slopes, strict=True):
            if residual.case == case:
                change = sum(slope * (by - now) for slope, by, now in zip(row, departures, at, strict=True))
                found.append(replace(residual, error=residual.error + change))
    return found


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
