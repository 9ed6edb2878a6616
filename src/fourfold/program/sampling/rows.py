"""The operations of a sampled step, the buffers that they need, and the table that they fill: a number for each segment."""

from enum import unique

from fourfold.model.spec import Segment
from fourfold.program.buffers import BufferInfo
from fourfold.program.opcode import SMALL_SUMS, Opcode, OpInfo
from fourfold.program.spec import StepSpec
from fourfold.program.totals import SCALAR_BYTES, loss_axes
from fourfold.program.view import RankView

MEASUREMENTS = "measurements"
"""The kind of time that they take."""


@unique
class SamplingOp(Opcode):
    """The measurements of a sampled step, and their sum."""

    # fmt: off
    MEASURE_OUTPUT = OpInfo("V>", "measure a layer's output",
        "adds up the squares of the residual stream behind a segment ([below](#sampled-steps))", names="segment",
        reads=("hidden",), writes=("samples",), time=MEASUREMENTS)
    MEASURE_SCORES = OpInfo("V*", "measure attention's scores",
        "finds the largest score of a query and a key that it sees", names="segment", reads=("batch", "saved"),
        writes=("samples",), time=MEASUREMENTS)
    MEASURE_UNIT = OpInfo("V-", "measure gradients and weights",
        "adds up the squares of a shard's gradient and weights before the update, and keeps the weights", names="unit",
        reads=("grad", "grad_shard", "master", "params", "shard"), writes=("before", "samples"), time=MEASUREMENTS)
    MEASURE_UPDATE = OpInfo("V+", "measure an update", "adds up the squares of what the update has changed", names="unit",
        reads=("before", "master", "params", "shard"), writes=("samples",), time=MEASUREMENTS)
    SUM_SAMPLES = OpInfo("V", "sum samples", "sums what all ranks have measured", reads=("samples",), writes=("samples",),
        time=SMALL_SUMS)
    # fmt: on


BUFFERS = (
    BufferInfo(
        "before",
        "/U",
        "the shard's weights before an update that is measured",
        "temporary",
        "weights before the update",
        "shard_numel",
        "master",
    ),
    BufferInfo("samples", "", "what a sampled step measures of every segment", "temporary", "samples"),
)
SAMPLES = "samples"
_ROWS = {
    "gradients": ("gradient",),
    "weights": ("weight", "update"),
    "activations": ("activation",),
    "attention": ("score",),
}
OF_UNITS = ("gradient", "weight", "update")


def sampled_rows(spec: StepSpec) -> tuple[str, ...]:
    """The rows of the table: those of units first, sums of squares, then that of outputs, likewise, then the largest scores. Loads
    of experts are in none: the step sums them anyway."""
    return tuple(row for quantity, rows in _ROWS.items() if quantity in spec.sampled for row in rows)


def row_bytes(spec: StepSpec) -> int:
    """Bytes of a row: a number for each segment of the model."""
    return SCALAR_BYTES * len(spec.segments)


def attends(segment: Segment) -> bool:
    """Whether it has scores of queries and keys."""
    layer = segment.layer_kind
    return segment.kind == "block" and layer is not None and layer.mixer.attends


def measures(view: RankView) -> bool:
    """Whether this pipeline rank measures anything in a sampled step."""
    rows = set(sampled_rows(view.spec))
    outputs = any(segment.name in view.stages.following for segment in view.segments)
    scores = any(map(attends, view.segments))
    return bool(rows & set(OF_UNITS)) or ("activation" in rows and outputs) or ("score" in rows and scores)


def output_axes(spec: StepSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Active axes over which outputs lie apart: those of the loss, then tensor parallelism, where that divides tokens and is not
    among the first."""
    axes = loss_axes(spec)
    split = ("tp",) if spec.layout.sequence_parallel and "tp" not in axes else ()
    return axes, spec.layout.active(split)


def score_axes(spec: StepSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Active axes over which scores lie apart, likewise: tensor parallelism divides heads."""
    axes = loss_axes(spec)
    return axes, spec.layout.active(() if "tp" in axes else ("tp",))
