"""The kernels that take the place of formulas (`fourfold.kernels`), on shape-only tensors: each reads what it takes once and writes
what it gives once."""

from collections.abc import Sequence

from fourfold.model.recorder.shape_tensor import ShapeTensor

NORM_PROGRAMS = 256
"""Parts of the gradient of a norm's weight; equals `kernels.norm_triton.MOST_PROGRAMS`."""


def _kernel(reads: Sequence[ShapeTensor | None], *written: ShapeTensor) -> None:
    """One launch. An array that is read and written in place stands on both sides."""
    recording = written[0].recording
    recording.touch([tensor for tensor in reads if tensor is not None], written[0])
    for tensor in written[1:]:
        recording.touch((), tensor, launches=0)


def _sums(x: ShapeTensor) -> str:
    return "fp64" if x.dtype == "fp64" else "fp32"


class RecordedNorms:
    """`NormKernels` as the Triton kernels are."""

    def forward(self, x: ShapeTensor, weight: ShapeTensor, eps: float) -> tuple[ShapeTensor, ShapeTensor]:
        out, scale = x.make(x.shape), x.make((*x.shape[:-1], 1), _sums(x))
        _kernel((x, weight), out, scale)
        return out, scale

    def add_forward(
        self, residual: ShapeTensor, x: ShapeTensor, weight: ShapeTensor, eps: float
    ) -> tuple[ShapeTensor, ShapeTensor]:
        out, scale = x.make(x.shape), x.make((*x.shape[:-1], 1), _sums(x))
        _kernel((residual, x, weight), out, x, scale)
        return out, scale

    def again(self, x: ShapeTensor, scale: ShapeTensor, weight: ShapeTensor, eps: float) -> ShapeTensor:
        out = x.make(x.shape)
        _kernel((x, scale, weight), out)
        return out

    def backward(
        self, grad: ShapeTensor, x: ShapeTensor, scale: ShapeTensor, weight: ShapeTensor, residual: ShapeTensor | None
    ) -> tuple[ShapeTensor, ShapeTensor]:
        rows_each = -(-x.shape[0] // NORM_PROGRAMS)
        grad_x, parts = x.make(x.shape), x.make((-(-x.shape[0] // rows_each), x.shape[1]), _sums(x))
        _kernel((grad, x, scale, weight, residual), grad_x, parts)
        return grad_x, parts.sum(0)


class RecordedLosses:
    """`LossKernels` as the Triton kernels are."""

    def statistics(
        self, logits: ShapeTensor, column: ShapeTensor, here: ShapeTensor
    ) -> tuple[ShapeTensor, ShapeTensor, ShapeTensor]:
        maximum, total, picked = (logits.make(logits.shape[:1], _sums(logits)) for _ in range(3))
        _kernel((logits, column, here), maximum, total, picked)
        return maximum, total, picked

    def gradient_(
        self, logits: ShapeTensor, column: ShapeTensor, maximum: ShapeTensor, factor: ShapeTensor, target: ShapeTensor
    ) -> None:
        _kernel((logits, column, maximum, factor, target), logits)


class RecordedPointwise:
    """`PointwiseKernels` as the Triton kernels are."""

    def swiglu(self, gate_up: ShapeTensor) -> ShapeTensor:
        out = gate_up.make((gate_up.shape[0], gate_up.shape[1] // 2))
        _kernel((gate_up,), out)
        return out

    def swiglu_backward_(self, grad: ShapeTensor, gate_up: ShapeTensor) -> None:
        _kernel((grad, gate_up), gate_up)

    def weighted(self, gate_up: ShapeTensor, weights: ShapeTensor) -> ShapeTensor:
        out = gate_up.make((gate_up.shape[0], gate_up.shape[1] // 2))
        _kernel((gate_up, weights), out)
        return out

    def weighted_backward_(
        self, grad: ShapeTensor, gate_up: ShapeTensor, weights: ShapeTensor
    ) -> tuple[ShapeTensor, ShapeTensor]:
        out, grad_weights = grad.make(grad.shape), weights.make(weights.shape)
        _kernel((grad, gate_up, weights), out, gate_up, grad_weights)
        return out, grad_weights

    def rotate_(self, x: ShapeTensor, cos: ShapeTensor, sin: ShapeTensor, interleave: bool, inverse: bool) -> None:
        _kernel((x, cos, sin), x)

    def rotate_into(self, x: ShapeTensor, out: ShapeTensor, cos: ShapeTensor, sin: ShapeTensor, inverse: bool) -> None:
        _kernel((x, cos, sin), out)
