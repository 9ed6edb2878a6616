"""The most probable constants, given measurements and a prior: the posterior mean of a linear model (Bishop 2006, section 3.3).

Departures of the constants from their prior, and errors of the measurements, are taken as normal; a model that is not linear is
made so around where it stands (Gauss-Newton). scipy's `least_squares` finds the same constants (tested), with twice as many
predictions; the commands that fit do without scipy.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Free:
    """A constant that may move. `spread`: of its departures, in its logarithm where `is_factor`."""

    name: str
    spread: float
    least: float
    most: float
    is_factor: bool = True

    def moved(self, value: float, by: float) -> float:
        """The constant after a departure, within its limits."""
        return min(self.most, max(self.least, value * math.exp(by) if self.is_factor else value + by))

    def departure(self, value: float, start: float) -> float:
        return math.log(value / start) if self.is_factor else value - start


def probable_scatter(
    free: Sequence[Free], errors: Sequence[float], slopes: Sequence[Sequence[float]], usual: float
) -> float:
    """The most probable scatter of measurements that no constant explains, given their `errors` by the prior's constants: the
    one with the highest evidence (Bishop 2006, section 3.5.1), held to the `usual` one as by one measurement."""
    rows = np.array(slopes).reshape(len(errors), len(free)) * np.array([each.spread for each in free])
    seen, explained = np.array(errors), rows @ rows.T

    def improbable(scatter: float) -> float:
        """Twice the negative logarithm of the evidence and of the hold, but for what is constant."""
        varies = explained + scatter**2 * np.eye(len(seen))
        logarithm = float(np.linalg.slogdet(varies)[1])
        return float(seen @ np.linalg.solve(varies, seen)) + logarithm + 2 * math.log(scatter / usual) ** 2

    return min((usual * 2 ** (power / 4) for power in range(-8, 9)), key=improbable)


def slopes_of(
    free: Sequence[Free],
    values: Mapping[str, float],
    errors: Sequence[float],
    look: Callable[[Mapping[str, float]], Sequence[float]],
    step: Callable[[Free], float],
) -> list[list[float]]:
    """Slopes of the errors by departure, a row a measurement. `look`: the errors of other constants, `errors` being those of
    `values`; `step`: a departure to take a slope by, which goes the other way at a limit."""
    rows: list[list[float]] = [[] for _ in errors]
    for each in free:
        value = values[each.name]
        moved = each.moved(value, step(each))
        if moved == value:
            moved = each.moved(value, -step(each))
        by = each.departure(moved, value)
        for row, now, then in zip(rows, errors, look({**values, each.name: moved}), strict=True):
            row.append((then - now) / by)
    return rows


def most_probable(
    free: Sequence[Free],
    errors: Sequence[float],
    noise: Sequence[float],
    slopes: Sequence[Sequence[float]],
    at: Sequence[float],
) -> list[float]:
    """Departures from the prior with the highest posterior density. `errors` of the measurements and their `slopes` by departure
    (a row a measurement) hold around the departures `at`; `noise`: the spread of each measurement."""
    spread = np.array(noise)
    rows = np.array(slopes).reshape(len(spread), len(free)) / spread[:, None]
    targets = rows @ np.array(at) - np.array(errors) / spread
    held = np.diag([1 / each.spread**2 for each in free])
    return [float(each) for each in np.linalg.solve(held + rows.T @ rows, rows.T @ targets)]
