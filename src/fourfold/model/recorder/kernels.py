"""The kernels that take the place of formulas (`fourfold.fused`), on ghosts: each reads what it takes once and writes what it gives
once."""

from collections.abc import Sequence

from fourfold.model.recorder.ghost import Ghost

NORM_PROGRAMS = 256
"""As `fused.norm_launches.MOST_PROGRAMS`: parts of the gradient of a norm's weight."""


def _kernel(reads: Sequence[Ghost | None], *written: Ghost) -> None:
    """One launch. An array that is read and written in place stands on both sides."""
    recording = written[0].recording
    recording.touch([ghost for ghost in reads if ghost is not None], written[0])
    for ghost in written[1:]:
        recording.touch((), ghost, launches=0)


def _sums(x: Ghost) -> str:
    return "fp64" if x.dtype == "fp64" else "fp32"


class GhostNorms:
    """`NormKernels` as the Triton kernels are."""

    def forward(self, x: Ghost, weight: Ghost, eps: float) -> tuple[Ghost, Ghost]:
        out, scale = x.make(x.shape), x.make((*x.shape[:-1], 1), _sums(x))
        _kernel((x, weight), out, scale)
        return out, scale

    def add_forward(self, residual: Ghost, x: Ghost, weight: Ghost, eps: float) -> tuple[Ghost, Ghost]:
        out, scale = x.make(x.shape), x.make((*x.shape[:-1], 1), _sums(x))
        _kernel((residual, x, weight), out, x, scale)
        return out, scale

    def again(self, x: Ghost, scale: Ghost, weight: Ghost, eps: float) -> Ghost:
        out = x.make(x.shape)
        _kernel((x, scale, weight), out)
        return out

    def backward(
        self, grad: Ghost, x: Ghost, scale: Ghost, weight: Ghost, residual: Ghost | None
    ) -> tuple[Ghost, Ghost]:
        rows_each = -(-x.shape[0] // NORM_PROGRAMS)
        grad_x, parts = x.make(x.shape), x.make((-(-x.shape[0] // rows_each), x.shape[1]), _sums(x))
        _kernel((grad, x, scale, weight, residual), grad_x, parts)
        return grad_x, parts.sum(0)


class GhostLosses:
    """`LossKernels` as the Triton kernels are."""

    def statistics(self, logits: Ghost, column: Ghost, here: Ghost) -> tuple[Ghost, Ghost, Ghost]:
        maximum, total, picked = (logits.make(logits.shape[:1], _sums(logits)) for _ in range(3))
        _kernel((logits, column, here), maximum, total, picked)
        return maximum, total, picked

    def gradient_(self, logits: Ghost, column: Ghost, maximum: Ghost, factor: Ghost, target: Ghost) -> None:
        _kernel((logits, column, maximum, factor, target), logits)


class GhostPointwise:
    """`PointwiseKernels` as the Triton kernels are."""

    def swiglu(self, gate_up: Ghost) -> Ghost:
        out = gate_up.make((gate_up.shape[0], gate_up.shape[1] // 2))
        _kernel((gate_up,), out)
        return out

    def swiglu_backward_(self, grad: Ghost, gate_up: Ghost) -> None:
        _kernel((grad, gate_up), gate_up)

    def weighted(self, gate_up: Ghost, weights: Ghost) -> Ghost:
        out = gate_up.make((gate_up.shape[0], gate_up.shape[1] // 2))
        _kernel((gate_up, weights), out)
        return out

    def weighted_backward_(self, grad: Ghost, gate_up: Ghost, weights: Ghost) -> tuple[Ghost, Ghost]:
        out, grad_weights = grad.make(grad.shape), weights.make(weights.shape)
        _kernel((grad, gate_up, weights), out, gate_up, grad_weights)
        return out, grad_weights

    def rotate_(self, x: Ghost, cos: Ghost, sin: Ghost, interleave: bool, inverse: bool) -> None:
        _kernel((x, cos, sin), x)

    def rotate_into(self, x: Ghost, out: Ghost, cos: Ghost, sin: Ghost, inverse: bool) -> None:
        _kernel((x, cos, sin), out)
