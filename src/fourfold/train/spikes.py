"""Spikes of the loss and of the gradient norm, and the way back from one: to a checkpoint before it, and past its data.

Every rank sees the same losses and norms, and so finds the same spikes. The values that a step is compared with are saved with the
state, so that a run which is resumed finds those of an undisturbed one.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from fourfold.config.schema import SpikesSection
from fourfold.runtime.step import StepResult

_NORMAL = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""
_LEAST_SPREAD = 1e-4
"""A share of the median: less is rounding."""


@dataclass(frozen=True)
class Spike:
    """A value far above those before. `name`: loss or gradient norm."""

    name: str
    value: float
    median: float
    score: float

    def __str__(self) -> str:
        return f"the {self.name} {self.value:.4g} is {self.score:.3g} deviations above {self.median:.4g}, the median before it"


class SpikeDetector:
    """Finds spikes among the steps that it is shown, in order. `recent`: pairs of loss and norm, to go on from."""

    def __init__(self, section: SpikesSection, recent: Sequence[Sequence[float]] = (), in_a_row: int = 0) -> None:
        self._section = section
        self._recent: deque[tuple[float, float]] = deque(((loss, norm) for loss, norm in recent), section.window)
        self.in_a_row = in_a_row
        """Steps up to the latest that changed nothing."""

    @property
    def recent(self) -> list[list[float]]:
        """The values that the next step is compared with."""
        return [list(pair) for pair in self._recent]

    def largest_norm(self) -> float:
        """The gradient norm beyond which the next step is to change nothing."""
        if self._section.policy != "skip" or not self._is_ready or self.in_a_row >= self._section.max_skips:
            return math.inf
        middle, spread = _spread([norm for _, norm in self._recent])
        return middle + self._section.threshold * spread

    def look(self, result: StepResult) -> Spike | None:
        """Takes in a step; the spike that it is."""
        values = (result.loss, result.grad_norm)
        self.in_a_row = self.in_a_row + 1 if result.skipped else 0
        if self._section.policy == "off" or not all(map(math.isfinite, values)):
            return None
        found = self._of(values) if self._is_ready else None
        if not result.skipped:
            self._recent.append(values)
        return found

    @property
    def _is_ready(self) -> bool:
        return len(self._recent) == self._section.window

    def _of(self, values: tuple[float, float]) -> Spike | None:
        for name, value, before in zip(("loss", "gradient norm"), values, zip(*self._recent, strict=True), strict=True):
            middle, spread = _spread(before)
            score = (value - middle) / spread
            if score > self._section.threshold:
                return Spike(name, value, middle, score)
        return None


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """(median, deviation that a normal distribution of this median absolute deviation has)."""
    middle = median(values)
    deviation = median(abs(value - middle) for value in values)
    return middle, max(_NORMAL * deviation, _LEAST_SPREAD * abs(middle), 1e-30)


def target_of(saved: Sequence[int], step: int, section: SpikesSection, made: int) -> int | None:
    """The checkpoint to go back to from a spike in the step before `step`; None where there is none, or the run went back too
    often. `saved`: steps of checkpoints; `made`: how often it went back before."""
    if made >= section.max_rollbacks:
        return None
    return max((each for each in saved if 0 < each <= step - section.rollback_steps), default=None)
