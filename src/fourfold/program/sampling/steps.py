"""The pass that samples a step: outputs behind forwards, scores before backwards, weights around updates, one sum at the end."""

from fourfold.config import DTYPE_BYTES
from fourfold.layout import FlatLayout
from fourfold.model.work import Collective, Elementwise, Work, sends, touches
from fourfold.program import buffers as name
from fourfold.program.instruction import Instruction, Op
from fourfold.program.narrow.steps import splits_master
from fourfold.program.pattern import Pattern, Step
from fourfold.program.sampling.rows import (
    OF_UNITS,
    SAMPLES,
    SamplingOp,
    attends,
    measures,
    output_axes,
    row_bytes,
    sampled_rows,
    score_axes,
)
from fourfold.program.spec import StepSpec
from fourfold.program.totals import norm_axes, over
from fourfold.program.view import RankView

_SUM_OF_SQUARES, _ROW = 8, 2
"""Kernels of a sum of squares beside the one that reads its numbers, and of what is added to a row."""


def insert_samples(steps: list[Step], view: RankView) -> list[Step]:
    """Puts the measurements of a sampled step where what they read is live."""
    rows = sampled_rows(view.spec)
    if not rows:
        return steps
    outputs = {
        f"hidden/{following}": segment
        for segment, following in view.stages.following.items()
        if "activation" in rows and segment in {each.name for each in view.segments}
    }
    output = {segment: _output(view, segment) for segment in outputs.values()}
    scores = {s.name: _scores(view, s.name) for s in view.segments if "score" in rows and attends(s)}
    units = {unit: _of_unit(view, flat, rows) for unit, flat in view.flats.items()}
    result: list[Step] = []
    last = max(index for index, (pattern, _) in enumerate(steps) if pattern.op is Op.UPDATE)
    for index, (pattern, m) in enumerate(steps):
        segment = pattern.segment or ""
        before, after = units.get(segment, ([], [])) if pattern.op is Op.UPDATE else ([], [])
        if pattern.op in (Op.BACKWARD, Op.BACKWARD_INPUT) and segment in scores:
            result.append((scores[segment], m))
        result += [(each, None) for each in before]
        result.append((pattern, m))
        result += [(each, None) for each in after]
        written = [outputs[text] for text, _ in pattern.writes if text in outputs and pattern.op.is_compute]
        result += [(output[each], m) for each in written]
        if index == last:
            result.append((Pattern.of_first(_sum(view, rows)), None))
    return result


def _output(view: RankView, segment: str) -> Pattern:
    layout = view.spec.layout
    size = layout.hidden_tokens * view.spec.model.hidden_size * DTYPE_BYTES[view.spec.compute]
    reads = (name.hidden(view.stages.following[segment], 0),)
    return Pattern.of_first(
        Instruction(SamplingOp.MEASURE_OUTPUT, segment, 0, reads=reads, writes=(SAMPLES,), work=touches(size))
    )


def _scores(view: RankView, segment: str) -> Pattern:
    found = view.footprints.scores(view.stages.segments[segment])
    reads = (name.batch(0), name.saved(segment, 0))
    return Pattern.of_first(
        Instruction(
            SamplingOp.MEASURE_SCORES,
            segment,
            0,
            reads=reads,
            writes=(SAMPLES,),
            work=found.work,
            workspace_bytes=found.workspace_bytes,
        )
    )


def _of_unit(view: RankView, flat: FlatLayout, rows: tuple[str, ...]) -> tuple[list[Pattern], list[Pattern]]:
    """The measurements before a unit's update, and those behind it."""
    spec, unit = view.spec, flat.unit
    kept, weights = f"before/{unit}", f"master/{unit}" if spec.mixed else name.values(flat)
    gradient, shard = flat.shard_numel * DTYPE_BYTES[spec.gradients], flat.shard_numel * DTYPE_BYTES[spec.master]
    if not set(rows) & set(OF_UNITS):
        return [], []
    joined = shard if splits_master(spec) else 0
    reads, writes, size = [], [SAMPLES], 0
    if "gradient" in rows:
        reads, size = [name.gradient(flat)], gradient
    if "weight" in rows:
        reads, writes, size = [*reads, weights], [kept, SAMPLES], size + 3 * shard
    before = Instruction(
        SamplingOp.MEASURE_UNIT,
        unit,
        reads=tuple(reads),
        writes=tuple(writes),
        work=Work((Elementwise(size, size, 2),)),
        workspace_bytes=joined if "weight" in rows else 0,
    )
    behind = Instruction(
        SamplingOp.MEASURE_UPDATE,
        unit,
        reads=(kept, weights),
        writes=(SAMPLES,),
        frees=(kept,),
        work=Work((Elementwise(4 * shard, 2 * shard, 2),)),
        workspace_bytes=joined,
    )
    return [Pattern.of_first(before)], [Pattern.of_first(behind)] if "update" in rows else []


def _sum(view: RankView, rows: tuple[str, ...]) -> Instruction:
    spec, layout, size = view.spec, view.spec.layout, row_bytes(view.spec)
    found: list[Collective] = []
    of_units = [row for row in rows if row in OF_UNITS]
    axes = norm_axes(layout)
    if of_units and axes:
        found.append(over(layout, "all_reduce", axes, len(of_units) * size))
    for row, several in (("activation", output_axes(spec)), ("score", score_axes(spec))):
        found += [over(layout, "all_reduce", each, size) for each in several if row in rows and each]
    read = (SAMPLES,) if measures(view) else ()
    return Instruction(SamplingOp.SUM_SAMPLES, reads=read, writes=(SAMPLES,), frees=(SAMPLES,), work=sends(*found))


def kept_bytes(spec: StepSpec, kind: str, flat: FlatLayout) -> int | None:
    """Bytes of the weights that a measured update is compared with; None of another buffer."""
    return flat.shard_numel * DTYPE_BYTES[spec.master] if kind == "before" else None


def table_bytes(view: RankView, kind: str) -> int | None:
    """Bytes of the table of samples; None of another buffer."""
    return len(sampled_rows(view.spec)) * row_bytes(view.spec) if kind == SAMPLES else None


def launches(step: Instruction | Pattern, view: RankView) -> int:
    """Operations on a device beside the kernels that read what is measured."""
    rows = sampled_rows(view.spec)
    if step.op is SamplingOp.MEASURE_UNIT:
        return (_SUM_OF_SQUARES + _ROW) * len({"gradient", "weight"} & set(rows))
    if step.op in (SamplingOp.MEASURE_OUTPUT, SamplingOp.MEASURE_UPDATE):
        return _SUM_OF_SQUARES + _ROW
    return 0
