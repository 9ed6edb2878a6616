"""Costs of single operators, from the time of full segments: memory-bound kernels, launches, the optimizer, a step's frame."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from fourfold.cost.calibration import ContentionProfile
from fourfold.model.work import Attention, Elementwise, Gemm, Work
from fourfold.program.instruction import Op
from fourfold.program.spec import StepSpec
from fourfold.program.view import rank_view


@dataclass(frozen=True)
class SegmentFit:
    """`launch_seconds` and `memory_bytes_per_second` of passes; the same of updates; `step_seconds`: of a step beside its
    instructions; `gemm_share`: of the time of products and attention by themselves, what they take within segments; `error`:
    mean relative error of the segments' times."""

    launch_seconds: float
    memory_bytes_per_second: float
    update_seconds: float
    update_bytes_per_second: float
    step_seconds: float
    gemm_share: float
    error: float


PHASES = {
    f"{op.words} {kind}": (kind, op)
    for kind, op in (
        ("block", Op.FORWARD),
        ("block", Op.BACKWARD),
        ("head", Op.BACKWARD),
        ("embedding", Op.FORWARD),
        ("embedding", Op.BACKWARD),
    )
}
"""Kinds of instructions, and the passes over segments that they are."""
_UNTIMED = tuple(op.words for op in (Op.FREE, Op.WAIT, Op.COUNT, Op.SUM_LOSS))


def fit_segments(
    specs: Sequence[StepSpec], measured: Sequence[Mapping[str, float]], profile: ContentionProfile
) -> SegmentFit:
    """Least squares on relative errors, no constant below 0. `profile`: with the products and attention that were
    measured."""
    rows, totals, updates, update_times, frames = [], [], [], [], []
    for spec, seconds in zip(specs, measured, strict=True):
        for phase, taken in timed_passes(spec, seconds):
            known = sum(profile.kernel(item) for item in phase.items if isinstance(item, Gemm | Attention))
            passes = [item for item in phase.items if isinstance(item, Elementwise)]
            rows.append([sum(p.launches for p in passes), sum(p.bytes for p in passes), known, taken])
        totals.append(seconds["step"])
        frames.append(max(0.0, seconds["step"] - _instructions(spec, seconds)))
        for size, taken in timed_updates(spec, seconds):
            updates.append(size)
            update_times.append(taken)
    table = np.array(rows)
    large = table[:, 2] > 0  # rows of the embedding are too short to count
    share = _gemm_share(table[large])
    rest = np.maximum(table[:, 3] - share * table[:, 2], 0.0)
    launch, per_byte = _least_squares(table[large, :2], rest[large], 1 / table[large, 3])
    once, update_byte = _least_squares(
        np.stack([np.ones(len(updates)), np.array(updates, dtype=float)], axis=1),
        np.array(update_times),
        1 / np.array(update_times),
    )
    table = table[large]
    predicted = share * table[:, 2] + launch * table[:, 0] + per_byte * table[:, 1]
    return SegmentFit(
        launch_seconds=launch,
        memory_bytes_per_second=1 / max(per_byte, 1e-15),
        update_seconds=once,
        update_bytes_per_second=1 / max(update_byte, 1e-15),
        step_seconds=median(frames),
        gemm_share=share,
        error=float(np.mean(np.abs(predicted - table[:, 3]) / table[:, 3])),
    )


def timed_passes(spec: StepSpec, seconds: Mapping[str, float]) -> Iterator[tuple[Work, float]]:
    """The passes over segments of one rank's step, and the seconds of each. `seconds`: by kind of instruction."""
    view = rank_view(spec)
    for name, (kind, op) in PHASES.items():
        segment = next(s for s in view.segments if s.kind == kind)
        yield view.footprints.work(segment, view.stages.policies[segment.name], op), seconds[name]


def timed_updates(spec: StepSpec, seconds: Mapping[str, float]) -> Iterator[tuple[int, float]]:
    """Bytes that its updates read and write, and the seconds of each."""
    view = rank_view(spec)
    for unit, flat in view.flats.items():
        kind = view.stages.segments[unit].kind if unit in view.stages.segments else unit
        if f"update {kind}" in seconds:
            yield spec.update_bytes(flat.shard_numel, flat.matrix_numel), seconds[f"update {kind}"]


def _gemm_share(table: Any) -> float:
    """Where three constants together describe segments best: products within a segment find their operands in the cache."""
    errors = []
    for share in np.linspace(0.8, 1.2, 41):
        rest = table[:, 3] - share * table[:, 2]
        launch, per_byte = _least_squares(table[:, :2], rest, 1 / table[:, 3])
        left = (rest - launch * table[:, 0] - per_byte * table[:, 1]) / table[:, 3]
        errors.append((float(left @ left), float(share)))
    return min(errors)[1]


def _instructions(spec: StepSpec, seconds: Mapping[str, float]) -> float:
    """Seconds of the instructions of a step together."""
    m = spec.layout.num_microbatches
    blocks = sum(segment.kind == "block" for segment in spec.segments)
    many = {"forward block": m * blocks, "backward block": m * blocks, "update block": blocks}
    once = {"clip norm", "update embedding", "update head"}
    return sum(
        value * many.get(name, 1 if name in once else m)
        for name, value in seconds.items()
        if name != "step" and not name.startswith(_UNTIMED)
    )


def _least_squares(matrix: Any, target: Any, weights: Any) -> tuple[float, float]:
    """Two coefficients, or the better one alone where the other would be negative."""
    a, b = matrix * weights[:, None], target * weights
    both = np.linalg.lstsq(a, b, rcond=None)[0]
    if (both >= 0).all():
        return float(both[0]), float(both[1])
    options = []
    for column in (0, 1):
        x = a[:, column]
        value = max(0.0, float(x @ b / (x @ x))) if x.any() else 0.0
        options.append((float(np.sum((x * value - b) ** 2)), column, value))
    _, column, value = min(options)
    return (value, 0.0) if column == 0 else (0.0, value)
