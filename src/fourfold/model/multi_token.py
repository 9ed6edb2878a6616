"""MTP modules, multi-token prediction (DeepSeek-V3, 2024, section 2.2): each a block on a hidden state and an embedding ahead.

h'_i = W [norm_e(Emb(t_{i+k})); norm_h(h^{k-1}_i)],  h^k = block(h')       (equations 21 and 22; in the released weights' order)

Symbols: t tokens whose hidden states this rank has. Between the last block and the head the hidden states of all depths travel
together: the k-th module takes [k t, hidden], which is h^0 .. h^{k-1} one after the other, and appends h^k.
"""

from dataclasses import dataclass
from typing import TypeVar

from fourfold.model.embedding import EmbeddingParameters, embedding_backward, embedding_forward
from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.layer import LayerParameters
from fourfold.model.norm import apply_rms, rms_norm, rms_norm_backward
from fourfold.model.operations import Array
from fourfold.model.parameter import Parameters
from fourfold.model.weights import Weight

T = TypeVar("T")


@dataclass(frozen=True)
class ModuleParameters(Parameters[T]):
    """An MTP module: a block, a projection [hidden, 2 hidden], norms [hidden] of embedding and hidden state, the embedding."""

    block: LayerParameters[T]
    projection: T
    embedding_norm: T
    hidden_norm: T
    embedding: EmbeddingParameters[T] | None


def combine_forward(
    env: Environment, x: Array, w: ModuleParameters[Weight], batch: Microbatch, depth: int, saved: Saved
) -> Array:
    """x [k t, hidden] -> the input of the module's block [t, hidden]. `depth`: k, from 1."""
    ops, eps = env.ops, env.model.norm_eps
    assert batch.ahead_tokens is not None
    embedded = embedding_forward(env, batch.ahead_tokens[depth - 1], _embedding(w))
    both = x.new_empty((embedded.shape[0], 2 * embedded.shape[1]))
    into = both.chunk(2, dim=1)
    for half, source, norm, name in _halves(w, embedded, _last(x, depth)):
        with ops.fused("norm"):
            normed, scale = rms_norm(ops, source, norm.data, eps)
            into[half].copy_(normed)
            del normed
        saved.keep(**{f"scale_{name}": scale})
    saved.keep(embedded=embedded, both=both)
    return ops.linear(both, w.projection.data)


def combine_backward(
    env: Environment,
    given: list[Array],
    x: Array,
    w: ModuleParameters[Weight],
    batch: Microbatch,
    depth: int,
    saved: Saved,
) -> Array:
    """The gradient of x [k t, hidden]. `given`: gradients of the block's input [t, hidden], and of x as it goes on unchanged
    [k t, hidden], taken out of the list. Adds the weights' gradients."""
    ops, (grad, grad_on) = env.ops, given
    given.clear()
    assert batch.ahead_tokens is not None
    last, embedded, both = _last(x, depth), saved.take("embedded"), saved.take_if_kept("both")
    if both is None:
        both = grad.new_empty((grad.shape[0], 2 * grad.shape[1]))
        into = both.chunk(2, dim=1)
        for half, source, norm, name in _halves(w, embedded, last):
            with ops.fused("norm"):
                into[half].copy_(apply_rms(ops, source, saved.see(f"scale_{name}"), norm.data, env.model.norm_eps))
        del into
    w.projection.add_matmul(ops, grad, both)
    del both
    columns = w.projection.data.chunk(2, dim=1)
    grad_embedded = ops.matmul(grad, columns[0])
    with ops.fused("norm"):
        scale = saved.take("scale_embedding")
        grad_embedded = rms_norm_backward(ops, grad_embedded, embedded, scale, w.embedding_norm)
    del embedded, scale
    embedding_backward(env, batch.ahead_tokens[depth - 1], grad_embedded, _embedding(w))
    del grad_embedded
    grad_last = ops.matmul(grad, columns[1])
    del grad
    with ops.fused("norm"):
        grad_last = rms_norm_backward(ops, grad_last, last, saved.take("scale_hidden"), w.hidden_norm)
        grad_x = ops.copy(grad_on)
        _last(grad_x, depth).add_(grad_last)
        del grad_last
    return grad_x


def _halves(w: ModuleParameters[Weight], embedded: Array, last: Array) -> tuple[tuple[int, Array, Weight, str], ...]:
    """The two halves of the projection's input: which, what is normed, by which norm, its name."""
    return (0, embedded, w.embedding_norm, "embedding"), (1, last, w.hidden_norm, "hidden")


def _last(x: Array, depth: int) -> Array:
    """h^{k-1} of x [k t, hidden]."""
    return x.chunk(depth)[-1]


def _embedding(w: ModuleParameters[Weight]) -> EmbeddingParameters[Weight]:
    assert w.embedding is not None
    return w.embedding
