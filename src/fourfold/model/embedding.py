"""The embedding: every token's row of a table split by rows over `tp`, and where positions are learned every position's row.
Gemma multiplies it by the root of its width.

Symbols: T tokens of a microbatch, t those whose hidden states this rank has.
"""

import math
from dataclasses import dataclass
from typing import TypeVar

from fourfold.model.environment import Environment
from fourfold.model.operations import Array
from fourfold.model.parallel import Parallel
from fourfold.model.parameter import Parameters
from fourfold.model.tensor_parallel import gather_tokens, sum_partial
from fourfold.model.weights import Weight

T = TypeVar("T")
_BF16 = 256
"""Steps of a number in bf16 between powers of two, times two."""


@dataclass(frozen=True)
class EmbeddingParameters(Parameters[T]):
    """The embedding [this rank's part of vocab, hidden] and, where positions are learned, their table [max_position, hidden]."""

    tokens: T
    positions: T | None = None


def embedding_forward(
    env: Environment, tokens: Array, w: EmbeddingParameters[Weight], positions: Array | None = None
) -> Array:
    """tokens and, for learned positions, positions [batch, seq] -> hidden [t, hidden]. Where the table is split by rows,
    each rank gives its own rows and zeros for the others."""
    ops = env.ops
    rows, elsewhere = _local_rows(env, tokens, w.tokens)
    with ops.fused():
        out = ops.embedding(rows, w.tokens.data)
        if elsewhere is not None:
            out.masked_fill_(elsewhere, 0)
    if elsewhere is not None:
        out = sum_partial(out, env.parallel).wait()
    if env.model.scaled_embedding:
        with ops.fused():
            out.mul_(_scale(env, out))
    if w.positions is not None and positions is not None:
        with ops.fused():
            out.add_(ops.embedding(_own_tokens(positions, env.parallel), w.positions.data))
    return out


def embedding_backward(
    env: Environment, tokens: Array, grad: Array, w: EmbeddingParameters[Weight], positions: Array | None = None
) -> None:
    """Adds the tables' gradients. tokens, positions [batch, seq], grad [t, hidden]."""
    arriving = gather_tokens(grad, env.parallel)
    if w.positions is not None and positions is not None:
        values = grad.to(w.positions.grad.dtype)
        _add_rows(env, w.positions, _own_tokens(positions, env.parallel), values)
        del values
    index, elsewhere = _local_rows(env, tokens, w.tokens)
    full = arriving.wait()
    with env.ops.fused():
        values = full.to(w.tokens.grad.dtype)
        if env.model.scaled_embedding:
            values = values * _scale(env, full) if values is grad else values.mul_(_scale(env, full))
        if elsewhere is not None:
            values = values.masked_fill(elsewhere, 0) if values is grad else values.masked_fill_(elsewhere, 0)
        _add_rows(env, w.tokens, index, values)


def _scale(env: Environment, x: Array) -> float:
    """The root of the width, rounded to bf16 where x is in that, as released models were trained."""
    root = env.model.hidden_size**0.5
    if env.ops.accumulation_dtype(x) == x.dtype:
        return root
    mantissa, exponent = math.frexp(root)
    return math.ldexp(round(mantissa * _BF16) / _BF16, exponent)


def _add_rows(env: Environment, weight: Weight, index: Array, values: Array) -> None:
    """Adds values [n, hidden] to the rows `index` [n] of a table's gradient."""
    weight.clear_if_fresh()
    env.ops.add_rows(weight.grad, index, values)


def _own_tokens(x: Array, parallel: Parallel) -> Array:
    """From one number a token, [batch, seq], those of the tokens whose hidden states this rank has [t]."""
    flat = x.view(-1)
    if parallel.tp is None or not parallel.sequence:
        return flat
    return flat.view(parallel.tp.size, -1)[parallel.tp.index]


def _local_rows(env: Environment, tokens: Array, weight: Weight) -> tuple[Array, Array | None]:
    """Every token's row in this rank's part of the table [T], and where that is another rank's [T, 1] (the row is then any)."""
    flat, tp = tokens.view(-1), env.parallel.tp
    if tp is None:
        return flat, None
    size = weight.data.shape[0]
    with env.ops.fused():
        rows = flat - tp.index * size
        elsewhere = (rows < 0) | (rows >= size)
        return rows.masked_fill_(elsewhere, 0), elsewhere.unsqueeze(-1)
