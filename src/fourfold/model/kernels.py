"""Kernels that take the place of segments' formulas: RMSNorm, cross-entropy, SwiGLU, rotary position embedding,
the gated delta rule."""

from typing import Any, Protocol

Array = Any
"""A `torch.Tensor`, or a `ShapeTensor` of one. An array's storage lives as long as something refers to it, on both backends: `del`
a name, or take it out of `Saved`, as soon as its last reader has run."""


class NormKernels(Protocol):
    """RMSNorm over the last dim by other kernels than `model/norm.py`'s formulas."""

    def forward(self, x: Array, weight: Array, eps: float, /) -> tuple[Array, Array]:
        """x [..., n], weight [n] -> (x / rms(x) * weight [..., n], 1/rms [..., 1])."""
        ...

    def add_forward(self, residual: Array, x: Array, weight: Array, eps: float, /) -> tuple[Array, Array]:
        """`forward` of residual + x [tokens, n], rounded to their format, which takes the place of x."""
        ...

    def again(self, x: Array, scale: Array, weight: Array, eps: float, /) -> Array:
        """The output again, to the bit, from its 1/rms."""
        ...

    def backward(
        self, grad: Array, x: Array, scale: Array, weight: Array, residual: Array | None, /
    ) -> tuple[Array, Array]:
        """The gradient of x [tokens, n] + `residual` [tokens, n], and that of the weight [n] in the format of sums. `grad` [tokens,
        n] may be overwritten."""
        ...


class RecurrenceKernels(Protocol):
    """The gated delta rule by other kernels than `model/delta.py`'s formulas, of rows that begin without a state. q, k [rows, seq,
    key heads, d], v [rows, seq, heads, value] in the compute format, g, b [rows, seq, heads] in that of sums, or g [.., heads, d]
    where channels decay by themselves; positions [rows, seq] of tokens in their documents, None: a row is one."""

    def forward(self, q: Array, k: Array, v: Array, g: Array, b: Array, positions: Array | None, /) -> Array:
        """The output [rows, seq, heads, value]."""
        ...

    def backward(
        self, grad: Array, q: Array, k: Array, v: Array, g: Array, b: Array, positions: Array | None, /
    ) -> tuple[Array, ...]:
        """Gradients of q, k, v, g and b, in their formats. grad: of the output."""
        ...


class LossKernels(Protocol):
    """Cross-entropy by other kernels than `model/head.py`'s formulas. logits [tokens, columns of this rank's vocabulary], all else
    [tokens]; statistics are in the format of sums."""

    def statistics(self, logits: Array, column: Array, here: Array, /) -> tuple[Array, Array, Array]:
        """The maximum, the sum of exp(logit - maximum), and the logit of `column` where it is `here`, else 0."""
        ...

    def gradient_(self, logits: Array, column: Array, maximum: Array, factor: Array, target: Array, /) -> None:
        """logits = exp(logits - maximum) x factor, plus `target` in `column`, in place."""
        ...


class PointwiseKernels(Protocol):
    """SwiGLU and rotary position embedding by other kernels than the formulas of `model/feed_forward.py` and `model/rope.py`."""

    def swiglu(self, gate_up: Array, /) -> Array:
        """silu(gate) * up: gate_up [T, 2 f] -> [T, f], the same bits each time."""
        ...

    def swiglu_backward_(self, grad: Array, gate_up: Array, /) -> None:
        """Puts the gradients of gate and up in their place in gate_up [T, 2 f]. grad [T, f]: that of silu(gate) * up."""
        ...

    def weighted(self, gate_up: Array, weights: Array, /) -> Array:
        """`model.experts.swiglu.weighted`: gate_up [m, 2 f], weights [m] -> [m, f]."""
        ...

    def weighted_backward_(self, grad: Array, gate_up: Array, weights: Array, /) -> tuple[Array, Array]:
        """`weighted` once more, and the gradient of the weights [m], from grad [m, f]: that of the weighted product. Puts the
        gradients of gate and up in their place in gate_up."""
        ...

    def rotate_(self, x: Array, cos: Array, sin: Array, interleave: bool, inverse: bool, /) -> None:
        """`model.rope.rotate_`."""
        ...

    def rotate_into(self, x: Array, out: Array, cos: Array, sin: Array, inverse: bool, /) -> None:
        """`model.rope.rotate_into`."""
        ...
