"""The kernels that take the place of formulas (`fourfold.kernels`), on shape-only tensors: each reads what it takes once and writes
what it gives once."""

from collections.abc import Callable, Sequence

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


CHUNK = 64
"""Tokens of a chunk of flash-linear-attention's kernels."""
Matmuls = Callable[[ShapeTensor, ShapeTensor], ShapeTensor]


class RecordedRecurrence:
    """`RecurrenceKernels` as flash-linear-attention's chunked kernels are: what each reads from and writes to memory, its matmuls,
    and what lives between them. Key heads are copied to all value heads; states of chunks are made again in backward."""

    def __init__(self, matmuls: Matmuls) -> None:
        self._matmuls = matmuls

    def forward(
        self, q: ShapeTensor, k: ShapeTensor, v: ShapeTensor, g: ShapeTensor, b: ShapeTensor, positions: object
    ) -> ShapeTensor:
        out = v.make(v.shape)
        total = self._summed(g)
        self._forward(self._chunks(q, v), self._chunks(k, v), self._chunks(v, v))
        del total
        return out

    def backward(
        self,
        grad: ShapeTensor,
        q: ShapeTensor,
        k: ShapeTensor,
        v: ShapeTensor,
        g: ShapeTensor,
        b: ShapeTensor,
        positions: object,
    ) -> tuple[ShapeTensor, ...]:
        out = tuple(x.make(x.shape) for x in (q, k, v, g, b))
        total = self._summed(g)
        queries, keys, values = (self._chunks(x, v) for x in (q, k, v))
        updates, states = self._forward(queries, keys, values)
        multiply, given = self._matmuls, values.make(values.shape)
        scores = multiply(queries, keys.transpose(1, 2))
        d_updates = multiply(scores.transpose(1, 2), given)  # by the output
        d_states = multiply(queries.transpose(1, 2), given)  # three matmuls of each chunk in the chain of states
        multiply(keys, d_states)
        multiply(keys.transpose(1, 2), d_updates)
        d_queries = multiply(given, states.transpose(1, 2))
        d_keys = multiply(updates, d_states.transpose(1, 2))
        pairs = multiply(given, updates.transpose(1, 2))
        multiply(pairs, keys)
        multiply(pairs.transpose(1, 2), queries)
        inner = multiply(d_updates, updates.transpose(1, 2))  # through the solved system
        multiply(inner, keys)
        multiply(inner.transpose(1, 2), d_updates)
        multiply(d_updates, states.transpose(1, 2))
        _kernel((d_queries, d_keys, d_updates), out[0])
        del total
        return out

    def _summed(self, g: ShapeTensor) -> ShapeTensor | None:
        """Sums of decays within chunks, where every channel has its own: as many numbers as queries."""
        if len(g.shape) < 4:
            return None
        total = g.make(g.shape)
        _kernel((g,), total)
        return total

    def _chunks(self, x: ShapeTensor, v: ShapeTensor) -> ShapeTensor:
        """[rows, seq, heads or key heads, n] -> [rows x heads x chunks, C, n], copied where heads are."""
        rows, tokens, heads, width = x.shape
        made = x.make((rows * v.shape[2] * -(-tokens // CHUNK), CHUNK, width))
        if heads != v.shape[2]:
            _kernel((x,), made)
        return made

    def _forward(self, q: ShapeTensor, k: ShapeTensor, v: ShapeTensor) -> tuple[ShapeTensor, ShapeTensor]:
        """U and the states in which chunks begin."""
        multiply = self._matmuls
        system = multiply(k, k.transpose(1, 2))
        multiply(system, system[..., : CHUNK // 2])  # its inverse: half of a product
        erasing, written = multiply(system, k), multiply(system, v)
        del system
        states = multiply(k.transpose(1, 2), written)
        updates = multiply(erasing, states)
        del erasing, written
        scores = multiply(q, k.transpose(1, 2))
        multiply(scores, updates)
        multiply(q, states)
        return updates, states
