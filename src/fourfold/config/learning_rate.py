"""The learning rate of a step: warm-up, a schedule, a final decay, each counted in steps or in tokens.

A schedule runs over a span of steps: the run, or the stages of it that share their optimizer's keys. Positions count from the
span's first step: `before` a step, and `after` it."""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from fourfold.config.errors import UserError
from fourfold.config.optimizers import OptimizerSection

_INVERSE_ROOT = 0.5


@dataclass(frozen=True)
class SpanOfSteps:
    """Steps `begin` to `end` - 1, which share a schedule. `tokens_before`: of any step of the run, from its start; `step_after`:
    the first step before which so many tokens of the run were read. `rate_before`: that of the schedule before it in its first
    step."""

    begin: int
    end: int
    tokens_before: Callable[[int], int]
    step_after: Callable[[int], int]
    rate_before: float | None = None

    @staticmethod
    def of_steps(total: int) -> "SpanOfSteps":
        """A full run in which every step reads as many tokens: one counts as a step."""
        return SpanOfSteps(0, total, lambda step: step, lambda tokens: tokens)

    def position(self, step: int, unit: str) -> int:
        """Steps or tokens of the span before a step of it."""
        return step - self.begin if unit == "steps" else self.tokens_before(step) - self.tokens_before(self.begin)


def learning_rate(section: OptimizerSection, step: int, span: SpanOfSteps | int) -> float:
    """Learning rate of step `step` of the run (from 0). `span`: the steps that share its schedule, or how many the run has.

    Linear warm-up to `lr` over w steps or tokens; then, with x the position of the step, p its progress from w (0) to the end (1),
    f = `min_lr_ratio` x `lr`:

        constant      lr                                            wsd     lr (Hu et al. 2024)
        cosine        f + (lr - f) (1 + cos(pi p)) / 2              linear  lr - (lr - f) p
                      (Loshchilov & Hutter 2017)
        inverse_root  lr sqrt(w / x) (Vaswani et al. 2017)          power   lr (w / x)^`exponent` (Shen et al. 2024)
        points        straight lines between `points`               decay   from the rate that a stage began with to f

    `wsd`, and each of the others but cosine and linear where its length is stated, ends in a decay to f (`decay_shape`). `rate_at`
    says which positions a step has, and which the end."""
    if isinstance(span, int):
        span = SpanOfSteps.of_steps(span)
    if section.horizon_steps is not None:
        span = replace(span, end=span.begin + section.horizon_steps)
    if section.schedule == "decay":
        return _from_before(section, step, span)
    warmup, unit = _warmup(section)
    behind = 0 if section.rate_at == "before" else 1
    at = span.position(step + behind, unit)
    if warmup and at <= warmup:
        return section.lr * at / warmup
    rate = _undecayed(section, step, span)
    length = decay_length(section, span)
    floor = section.lr * section.min_lr_ratio
    if length is None or rate <= floor:
        return rate
    size, unit = length
    remaining = (_end(section, span, unit) - _at(section, step, span, unit)) / size
    return floor + (rate - floor) * _share_left(section.decay_shape, min(1.0, max(0.0, remaining)))


def _from_before(section: OptimizerSection, step: int, span: SpanOfSteps) -> float:
    """`decay`: from the rate that there was to the least one, over the full span."""
    begin, floor = span.rate_before, section.lr * section.min_lr_ratio
    if begin is None:  # there is no schedule before it
        begin = section.lr
    end, unit = _end(section, span, section.progress), section.progress
    remaining = (end - _at(section, step, span, unit)) / max(1, end)
    return floor + (begin - floor) * _share_left(section.decay_shape, min(1.0, max(0.0, remaining)))


def _at(section: OptimizerSection, step: int, span: SpanOfSteps, unit: str) -> int:
    """The position of a step in what follows warm-up."""
    return span.position(step + (section.rate_at == "after"), unit)


def _end(section: OptimizerSection, span: SpanOfSteps, unit: str) -> int:
    """The position of the schedule's end."""
    return span.position(span.end - (section.rate_at == "ends"), unit)


def _undecayed(section: OptimizerSection, step: int, span: SpanOfSteps) -> float:
    """After warm-up, before any final decay."""
    name, lr, unit = section.schedule, section.lr, section.progress
    floor = lr * section.min_lr_ratio
    if name in ("cosine", "linear"):
        start = _warm_at(section, span)
        progress = (_at(section, step, span, unit) - start) / max(1, _end(section, span, unit) - start)
        progress = min(1.0, max(0.0, progress))
        return floor + (lr - floor) * (0.5 * (1 + math.cos(math.pi * progress)) if name == "cosine" else 1 - progress)
    if name in ("inverse_root", "power"):
        exponent = _INVERSE_ROOT if name == "inverse_root" else section.exponent
        reached = _warm_at(section, span) or span.position(span.begin + 1, unit)
        at = span.position(step + (section.rate_at != "before"), unit)
        return max(floor, lr * min(1.0, reached / max(1, at)) ** exponent)
    if name == "points":
        return lr * _between(section.points, _at(section, step, span, unit))
    return lr


def _share_left(shape: str, remaining: float) -> float:
    """Share of the way down that is left where `remaining` of the decay's length is: 1 to 0. `sqrt`: Hägele et al. 2024, 1 -
    sqrt."""
    if shape == "sqrt":
        return 1 - math.sqrt(1 - remaining)
    if shape == "exponential":
        return 2.0 * 0.5 ** (1 - remaining) - 1
    return 0.5 * (1 - math.cos(math.pi * remaining)) if shape == "cosine" else remaining


def decay_length(section: OptimizerSection, span: SpanOfSteps) -> tuple[int, str] | None:
    """Length of the final decay, and its unit; None where the schedule has none."""
    if section.schedule in ("cosine", "linear", "decay"):
        return None
    if section.decay_steps is not None:
        return section.decay_steps, "steps"
    if section.decay_tokens is not None:
        return section.decay_tokens, "tokens"
    if section.schedule != "wsd":
        return None
    return max(1, round(section.decay_fraction * span.position(span.end, section.progress))), section.progress


def phase_steps(section: OptimizerSection, span: SpanOfSteps) -> tuple[int, int | None]:
    """Steps of warm-up, and of the final decay, None where there is none."""
    size, unit = _warmup(section)
    warm = size if unit == "steps" else span.step_after(span.tokens_before(span.begin) + size) - span.begin
    length = decay_length(section, span)
    if length is None:
        return warm, None
    size, unit = round(length[0]), length[1]
    return warm, size if unit == "steps" else span.end - span.step_after(max(0, span.tokens_before(span.end) - size))


def _warmup(section: OptimizerSection) -> tuple[int, str]:
    if section.warmup_tokens is not None:
        return section.warmup_tokens, "tokens"
    return section.warmup_steps, "steps"


def _warm_at(section: OptimizerSection, span: SpanOfSteps) -> int:
    """Where warm-up ends, in the schedule's own unit."""
    size, unit = _warmup(section)
    if unit == section.progress:
        return size
    if unit == "steps":
        return span.position(span.begin + size, "tokens")
    return span.step_after(span.tokens_before(span.begin) + size) - span.begin


def _between(points: list[tuple[int, float]], at: int) -> float:
    """Straight lines between the points, level before the first and behind the last."""
    number = bisect_right(points, at, key=lambda point: point[0])
    if number in (0, len(points)):
        return points[min(number, len(points) - 1)][1]
    (left, low), (right, high) = points[number - 1 : number + 1]
    return low + (high - low) * (at - left) / (right - left)


def check_horizon(section: OptimizerSection, span: SpanOfSteps) -> None:
    """Raises `UserError` where a schedule would have ended when its warm-up does, from which the rate would leap to the least."""
    horizon, warmup = section.horizon_steps, phase_steps(section, span)[0]
    if horizon is None or section.schedule == "decay" or horizon >= warmup or span.end - span.begin <= warmup:
        return
    raise UserError(
        f"optimizer.horizon_steps = {horizon}: the schedule would end within its warm-up of {warmup} steps; allowed: as many or "
        f"more; what works: optimizer.horizon_steps={span.end - span.begin}"
    )


def check_schedule(section: OptimizerSection) -> None:
    """Raises `UserError` for keys of a schedule that say two things, or too little."""
    if section.warmup_tokens is not None and section.warmup_steps:
        raise UserError(
            f"optimizer.warmup_steps = {section.warmup_steps} and optimizer.warmup_tokens = {section.warmup_tokens} are both "
            f"stated; keep one of them"
        )
    lengths = [key for key in ("decay_steps", "decay_tokens") if getattr(section, key) is not None]
    if len(lengths) > 1:
        stated = " and ".join(f"optimizer.{key} = {getattr(section, key)}" for key in lengths)
        raise UserError(f"{stated} are both stated; keep one of them")
    if lengths and section.schedule in ("cosine", "linear", "decay"):
        raise UserError(
            f"optimizer.{lengths[0]} = {getattr(section, lengths[0])}: optimizer.schedule = {section.schedule!r} decays from "
            f"warm-up to the end; what works: optimizer.schedule = 'wsd', or leave optimizer.{lengths[0]} out"
        )
    places = [at for at, _ in section.points]
    if section.schedule == "points" and not places:
        raise UserError(
            "optimizer.points is missing: optimizer.schedule = 'points' reads it; a value that works: points = [[0, 1.0], "
            "[1000, 0.1]]"
        )
    if places != sorted(set(places)):
        raise UserError(
            f"optimizer.points = {[list(each) for each in section.points]!r}: positions must rise; a value that works: "
            f"[[0, 1.0], [1000, 0.1]]"
        )
