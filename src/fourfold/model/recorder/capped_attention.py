"""Memory of attention with capped scores on shape-only tensors: allocations of `model/capped_attention.py`, in its order."""

from collections.abc import Callable, Sequence

from fourfold.model.recorder.shape_tensor import ShapeTensor
from fourfold.model.shape import CAPPED_ROWS

Make = Callable[[Sequence[int], str], ShapeTensor]


def capped_forward(
    make: Make, q: ShapeTensor, k: ShapeTensor, v: ShapeTensor, causal: bool, dtype: str
) -> tuple[ShapeTensor, ShapeTensor]:
    """Output and log-sum-exp. `dtype`: the format of sums."""
    batch, queries, heads, width = q.shape
    kept = [make((*x.shape,), dtype) for x in (k, v)]
    out, lse = make((*q.shape[:-1], v.shape[-1]), q.dtype), make(q.shape[:-1], dtype)
    for rows, seen in _blocks(queries, k.shape[1], causal):
        block = make((batch, rows, heads, width), dtype)
        scores = make((batch, heads, rows, seen), dtype)
        del block
        if causal:
            later = make((rows, seen), "bool")
            del later
        statistics = [make((batch, heads, rows), dtype) for _ in range(2)]
        output = make((batch, rows, heads, v.shape[-1]), dtype)
        del scores, statistics, output
    del kept
    return out, lse


def capped_backward(
    make: Make, q: ShapeTensor, k: ShapeTensor, v: ShapeTensor, causal: bool, dtype: str
) -> tuple[ShapeTensor, ShapeTensor, ShapeTensor]:
    """Gradients of q, k and v."""
    batch, queries, heads, width = q.shape
    value = v.shape[-1]
    kept = [make((*x.shape,), dtype) for x in (k, v)]
    d_q, d_k, d_v = make(q.shape, q.dtype), make(k.shape, dtype), make(v.shape, dtype)
    for rows, seen in _blocks(queries, k.shape[1], causal):
        block = make((batch, rows, heads, width), dtype)
        slope = make((batch, heads, rows, seen), dtype)
        weights = make((batch, heads, rows, seen), dtype)
        if causal:
            later = make((rows, seen), "bool")
            del later
        statistic = make((batch, heads, rows), dtype)
        del statistic
        grads = make((batch, rows, heads, value), dtype)
        d_scores = make((batch, heads, rows, seen), dtype)
        outputs = make((batch, rows, heads, value), dtype)
        del outputs
        shared = make((batch, heads, rows), dtype)
        del slope, weights, grads, shared
        output = make((batch, rows, heads, width), dtype)
        del output, d_scores, block
    del kept
    return d_q, d_k.to(k.dtype), d_v.to(v.dtype)


def _blocks(queries: int, keys: int, causal: bool) -> list[tuple[int, int]]:
    """(queries, keys that they see) of each block."""
    ends = range(CAPPED_ROWS, queries + CAPPED_ROWS, CAPPED_ROWS)
    return [(min(end, queries) - (end - CAPPED_ROWS), min(end, keys) if causal else keys) for end in ends]
