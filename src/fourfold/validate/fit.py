"""Adjusts a software profile to a few measured runs: the most probable constants, given the runs and the profile as a prior.

Each constant may depart from the profile's by its spread, which is how far profiles lie from one another. The rest, which no
constant explains, scatters by as much as the runs make most probable (`probable_scatter`): runs of one model in one format tell
much of the constants, runs that disagree little. Both are taken as normal in the constants' own scale and in the logarithm of
predicted over measured, and the model is linearised twice (Gauss-Newton; Bishop 2006, section 3.3, for the posterior mean of a
linear model). Step times and memory have constants of their own. Where the constants that the other runs give would predict each
run no better than those that ship, these stay.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from fourfold.config import UserError
from fourfold.cost.fitted import Fitted, fitted
from fourfold.cost.most_probable import Free, most_probable, probable_scatter, slopes_of
from fourfold.validate.case import Case
from fourfold.validate.outcome import predict_case

SCATTER = {"step": 0.065, "memory": 0.09}
"""Usual spread of measured step times and peaks of memory, as a share, that no constant explains."""
ROUNDS = 2
TOLD_BY = 3
"""Runs from which on it is judged, by leaving out each, whether their constants predict better than those that ship."""


FREE = {
    "step": (
        Free("gemm_speed", 0.12, 0.2, 1.6),
        Free("low_speed", 0.2, 0.2, 3.0),
        Free("attention_speed", 0.2, 0.1, 3.0),
        Free("fused", 0.15, 0.0, 1.0, is_factor=False),
        Free("link_speed", 0.25, 0.05, 1.25),
        Free("host_launch_seconds", 0.4, 1e-7, 1e-3),
    ),
    "memory": (
        Free("extra", 0.1, -0.3, 3.0, is_factor=False),
        Free("saved_share", 0.15, 0.2, 2.0),
        Free("context_bytes", 1.5e9, 0.0, 2e10, is_factor=False),
    ),
}
"""The constants that each figure tells of."""


@dataclass(frozen=True)
class Residual:
    """Logarithm of predicted over measured of one figure of a case."""

    case: int
    figure: str
    error: float


@dataclass(frozen=True)
class SoftwareFit:
    """`constants`: those that departed, by name; `prior`: as they were. `before`, `after`: errors of the cases; `left_out`: of each
    by the constants that the others give, from the linear model. `stays`: figures whose constants stay as they ship, since the
    runs do not predict each other better."""

    base: str
    prior: Mapping[str, float]
    constants: Mapping[str, float]
    before: tuple[Residual, ...]
    after: tuple[Residual, ...]
    left_out: tuple[Residual, ...]
    stays: tuple[str, ...] = ()

    @property
    def helps(self) -> bool:
        """Whether any figure is predicted better, as far as the runs can say."""
        return not {each.figure for each in self.before} <= set(self.stays)


@dataclass(frozen=True)
class Linear:
    """One figure's errors as a linear function of departures: `slopes`, a row an error, hold around the departures `at`. `usual`:
    the scatter that nothing explains, where no run says otherwise."""

    usual: float
    free: Sequence[Free]
    residuals: Sequence[Residual]
    slopes: Sequence[Sequence[float]]
    at: Sequence[float]

    def moved(self, departures: Sequence[float]) -> list[float]:
        """The errors after other departures."""
        by = [new - now for new, now in zip(departures, self.at, strict=True)]
        return [
            residual.error + sum(slope * each for slope, each in zip(row, by, strict=True))
            for residual, row in zip(self.residuals, self.slopes, strict=True)
        ]

    def departures(self) -> list[float]:
        """The departures of highest posterior density."""
        scatter = probable_scatter(self.free, self.moved([0.0] * len(self.free)), self.slopes, self.usual)
        errors = [residual.error for residual in self.residuals]
        return most_probable(self.free, errors, [scatter] * len(errors), self.slopes, self.at)

    def left_out(self) -> list[Residual]:
        """Every error by the constants that the other cases give."""
        found = []
        for index, residual in enumerate(self.residuals):
            others = [row for row, each in enumerate(self.residuals) if each.case != residual.case]
            rest = replace(
                self,
                residuals=[self.residuals[row] for row in others],
                slopes=[self.slopes[row] for row in others],
            )
            departures = rest.departures() if others else [0.0] * len(self.free)
            found.append(replace(residual, error=self.moved(departures)[index]))
        return found


def fit_software(
    cases: Sequence[Case],
    progress: Callable[[int, int], None] = lambda done, total: None,
    known: Fitted | None = None,
) -> SoftwareFit:
    """Constants of the software of the cases. `known`: the constants to start from; None: those that ship. Raises `UserError` where
    the cases are of several, or nothing was measured."""
    base, known = _one_software(cases), known or fitted()
    measured = {figure for case in cases for figure, value in _measured(case).items() if value}
    if not measured:
        raise UserError("no case has a measured step time or memory; what works: measured = { step_seconds = 2.35 }")
    profile = known.software(base)
    free = {
        figure: [each for each in constants if not each.is_factor or getattr(profile, each.name) > 0]
        for figure, constants in FREE.items()
        if figure in measured
    }  # nothing is a factor of 0
    prior = {each.name: float(getattr(profile, each.name)) for constants in free.values() for each in constants}
    values, total, done = dict(prior), len(cases) * (ROUNDS * (len(prior) + 1) + 1), 0

    def look(constants: Mapping[str, float]) -> list[Residual]:
        nonlocal done
        found = _residuals(cases, with_constants(known, base, constants))
        done += len(cases)
        progress(done, total)
        return found

    before = residuals = look(prior)
    models: dict[str, Linear] = {}
    for _ in range(ROUNDS):
        models = {
            figure: _linear(constants, figure, values, prior, residuals, look) for figure, constants in free.items()
        }
        for model in models.values():
            for each, by in zip(model.free, model.departures(), strict=True):
                values[each.name] = each.moved(prior[each.name], by)
        residuals = look(values)
    left_out, stays = list[Residual](), list[str]()
    for figure, model in models.items():
        mine = model.left_out()
        left_out += mine
        if len({each.case for each in mine}) >= TOLD_BY and average_error(mean, mine, figure) >= average_error(
            mean, before, figure
        ):
            stays.append(figure)
            values |= {each.name: prior[each.name] for each in model.free}
    if stays:
        residuals = [was if was.figure in stays else each for was, each in zip(before, residuals, strict=True)]
    moved_far = {name: value for name, value in values.items() if abs(value - prior[name]) > 1e-3 * abs(prior[name])}
    return SoftwareFit(
        base=base,
        prior=prior,
        constants={name: _rounded(value) for name, value in moved_far.items()},
        before=tuple(before),
        after=tuple(residuals),
        left_out=tuple(left_out),
        stays=tuple(stays),
    )


def _linear(
    free: Sequence[Free],
    figure: str,
    values: Mapping[str, float],
    prior: Mapping[str, float],
    residuals: Sequence[Residual],
    look: Callable[[Mapping[str, float]], Sequence[Residual]],
) -> Linear:
    """A figure's errors around some constants."""
    mine = _of(residuals, figure)
    slopes = slopes_of(
        free,
        values,
        [each.error for each in mine],
        lambda moved: [each.error for each in _of(look(moved), figure)],
        lambda each: each.spread / 5,
    )
    return Linear(
        SCATTER[figure], free, mine, slopes, [each.departure(values[each.name], prior[each.name]) for each in free]
    )


def _of(residuals: Sequence[Residual], figure: str) -> list[Residual]:
    return [each for each in residuals if each.figure == figure]


def average_error(average: Callable[[Iterable[float]], float], residuals: Sequence[Residual], figure: str) -> float:
    """An average of a figure's relative errors, without signs."""
    return average(abs(math.expm1(each.error)) for each in _of(residuals, figure))


def _one_software(cases: Sequence[Case]) -> str:
    names = sorted({case.software.name for case in cases})
    if len(names) != 1:
        raise UserError(
            f"the cases are of {len(names)} softwares ({', '.join(names)}); what works: cases of one software at a time"
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
        predicted = {"step": prediction.step_seconds, "memory": prediction.memory_bytes}
        for figure, measured in _measured(case).items():
            seen = predicted[figure]
            if seen and measured:
                found.append(Residual(index, figure, math.log(seen / measured)))
    return found


def _measured(case: Case) -> dict[str, float | None]:
    """The measured figures of a case."""
    return {"step": case.measured_seconds, "memory": case.measured.peak_memory_bytes}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
