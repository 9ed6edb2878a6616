"""A sampled step: the measurements of a rank's segments, and the sums over all ranks.

Each number is summed by those ranks alone that hold a part of it that no rank before them in the group of the sum holds too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fourfold.layout.mesh import axes_name
from fourfold.model.context.largest import largest_score_
from fourfold.program import Instruction, buffers
from fourfold.program.sampling.rows import OF_UNITS, SAMPLES, SamplingOp, output_axes, sampled_rows, score_axes
from fourfold.program.spec import StepSpec
from fourfold.program.totals import norm_axes
from fourfold.runtime.device import read_back
from fourfold.runtime.norm import SharedOnce, squared_norm
from fourfold.runtime.step_state import Handlers, StepState

Column = Sequence[float | None]
"""A number for every segment of the model, in order; None where the segment has none."""


@dataclass(frozen=True)
class LayerSample:
    """The numbers of a sampled step. `values`, by quantity, a number a segment: `gradient_norm`, before clipping; `weight_norm`, of
    the weights before the update, in the master format; `update_ratio`, the norm of their change over that; `activation_rms`, of
    the residual stream behind the segment; `largest_score`; `expert_load_max` and `expert_load_min`, over the mean;
    `expert_entropy`, of the loads as shares, over its maximum: 1 is perfect balance."""

    segments: tuple[str, ...]
    values: Mapping[str, Column]


class Samples:
    """The table of a sampled step: [rows, segments], fp64. Rows of sums begin at 0, that of the largest scores at -inf."""

    def __init__(self, state: StepState) -> None:
        self._state = state
        self._parts = SharedOnce(state.view, state.units, state.rank)
        self._table: Tensor | None = None
        self._sampled = state.view.spec

    def begin(self, spec: StepSpec) -> None:
        """Before a step is run as `spec` samples it."""
        self._sampled, self._table = spec, None

    def _row(self, name: str, segment: str) -> Tensor:
        """The number of a segment, a scalar of the table."""
        rows, segments = sampled_rows(self._sampled), [each.name for each in self._sampled.segments]
        if SAMPLES not in self._state.live:
            shape = (len(rows), len(segments))
            table = torch.zeros(shape, dtype=torch.float64, device=self._state.device)
            if "score" in rows:
                table[rows.index("score")] = -math.inf
            self._table = self._state.live[SAMPLES] = table
        table = self._state.live[SAMPLES]
        row: Tensor = table[rows.index(name), segments.index(segment)]
        return row

    def output(self, step: Instruction) -> None:
        """Adds an output's squares. Where ranks hold the same tokens, the first of them counts."""
        state, segment, layout = self._state, step.segment or "", self._sampled.layout
        row = self._row("activation", segment)
        place = layout.coordinates(state.rank)
        if layout.sequence_parallel or place["tp"] == 0:
            row.add_(squared_norm(state.live[step.reads[0]][-layout.hidden_tokens :].reshape(-1)))

    def scores(self, step: Instruction) -> None:
        """Looks for the largest score of a microbatch."""
        state, segment = self._state, self._state.view.stages.segments[step.segment or ""]
        layer, m = segment.layer_kind, step.microbatch
        assert layer is not None
        assert m is not None
        kept = state.live[buffers.saved(segment.name, m)].part("mixer")
        row = self._row("score", segment.name)
        largest_score_(row, state.compute.environment, layer.mixer, state.live[buffers.batch(m)], kept)

    def unit(self, step: Instruction) -> None:
        """Before the update. Keeps the weights where it is measured."""
        unit, rows = self._state.units[step.segment or ""], sampled_rows(self._sampled)
        segment = (step.segment or "").partition(".")[0]
        ranges = self._parts.ranges(step.segment or "")
        for name in ("gradient", "weight"):
            if name in rows:
                row, tensor = self._row(name, segment), unit.grad_shard if name == "gradient" else unit.numbers
                for start, end in ranges:
                    row.add_(squared_norm(tensor[start:end]))
        if "update" in rows:
            self._state.live[step.writes[0]] = unit.numbers if unit.in_halves else unit.numbers.clone()

    def update(self, step: Instruction) -> None:
        """Behind the update, with the weights from before."""
        unit, before = self._state.units[step.segment or ""], self._state.live[step.reads[0]]
        row = self._row("update", (step.segment or "").partition(".")[0])
        before.sub_(unit.numbers)
        for start, end in self._parts.ranges(step.segment or ""):
            row.add_(squared_norm(before[start:end]))

    def sum(self, step: Instruction) -> None:
        """All ranks'. The groups are those of the norm, of the loss, and of tensor parallelism."""
        spec, groups, rows = self._sampled, self._state.groups, sampled_rows(self._sampled)
        self._row(rows[0], spec.segments[0].name)
        table = self._state.live[SAMPLES]
        units = sum(row in OF_UNITS for row in rows)
        if units and (axes := norm_axes(spec.layout)):
            groups[axes_name(axes)].all_reduce(table[:units]).wait()
        for name, several in (("activation", output_axes(spec)), ("score", score_axes(spec))):
            for axes in several if name in rows else ():
                if axes:
                    groups[axes_name(axes)].all_reduce(table[rows.index(name)], largest=name == "score").wait()

    def read(self) -> LayerSample:
        """The step's numbers; the host waits for them."""
        spec, found = self._sampled, dict[str, Column]()
        segments, names = spec.segments, sampled_rows(spec)
        numbers: dict[str, list[float]] = {}
        if self._table is not None:
            (read,) = read_back([self._table.reshape(-1)])
            size = len(segments)
            numbers = {row: read[i * size : (i + 1) * size] for i, row in enumerate(names)}
        if "gradient" in numbers:
            found["gradient_norm"] = [_root(x) for x in numbers["gradient"]]
        if "weight" in numbers:
            found["weight_norm"] = [_root(x) for x in numbers["weight"]]
            pairs = zip(numbers["update"], numbers["weight"], strict=True)
            found["update_ratio"] = [_root(update / weight) if weight else None for update, weight in pairs]
        if "activation" in numbers:
            layout = spec.layout
            rows = layout.data_degree * layout.num_microbatches * layout.microbatch_sequences
            elements = rows * layout.sequence_length * spec.model.hidden_size
            squares = [*numbers["activation"][:-1], None]
            found["activation_rms"] = [None if x is None else _root(x / elements) for x in squares]
        if "score" in numbers:
            found["largest_score"] = [None if x == -math.inf else x for x in numbers["score"]]
        if "experts" in spec.sampled and spec.model.num_experts:
            loads = read_back(list(self._state.routers.loads.values()))
            by_segment = dict(zip(self._state.routers.loads, loads, strict=True))
            each = [_balance(by_segment.get(segment.name)) for segment in segments]
            for index, name in enumerate(("expert_load_max", "expert_load_min", "expert_entropy")):
                found[name] = [None if values is None else values[index] for values in each]
        return LayerSample(tuple(segment.name for segment in segments), found)


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0 else square  # not a number stays that


def _balance(loads: list[float] | None) -> tuple[float, float, float] | None:
    """Largest and least load over the mean, and the entropy of the loads as shares over its maximum."""
    total = sum(loads or ())
    if not loads or not total:
        return None
    mean = total / len(loads)
    entropy = -sum(load / total * math.log(load / total) for load in loads if load)
    return max(loads) / mean, min(loads) / mean, entropy / math.log(len(loads)) if len(loads) > 1 else 1.0


def handlers(state: StepState, core: Handlers) -> Handlers:
    """Measurements, and their sum."""
    state.samples = samples = Samples(state)
    return {
        SamplingOp.MEASURE_OUTPUT: samples.output,
        SamplingOp.MEASURE_SCORES: samples.scores,
        SamplingOp.MEASURE_UNIT: samples.unit,
        SamplingOp.MEASURE_UPDATE: samples.update,
        SamplingOp.SUM_SAMPLES: samples.sum,
    }
