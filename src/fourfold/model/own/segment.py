"""A person's own block as a segment: its function on full sequences, which context parallelism gathers first.

Under context parallelism every rank computes the full sequence and keeps its own tokens: parameters, their gradients and states
are sharded, and so are the hidden states between blocks; the block's own computation is not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.operations import Array, Operations
from fourfold.model.parallel import Group
from fourfold.model.parameter import Parameters
from fourfold.model.tensor_parallel import gather_over, scatter_over
from fourfold.model.weights import Weight

T = TypeVar("T")


@dataclass(frozen=True)
class OwnParameters(Parameters[T]):
    """A person's own block: its parameters by the names that it declares."""

    parameters: Mapping[str, T]


def own_forward(env: Environment, x: Array, w: OwnParameters[Weight], batch: Microbatch, saved: Saved) -> Array:
    """x [t, hidden] -> [t, hidden]. Keeps autograd's graph."""
    group, sequences = _group(env), batch.tokens.shape[0]
    (tables,) = batch.rope.values()
    inputs = [x.view(sequences, -1, x.shape[-1]), *tables]
    if group is not None:
        inputs = [_full_sequence(env.ops, group, inputs[0], 1), *_full_tables(env.ops, group, *tables)]
    lengths = batch.document_lengths
    out, graph = env.ops.run_own(env.model, inputs, lengths, w.parameters, saved.keeps)
    saved.keep(graph=graph)
    del inputs, graph
    if group is not None:
        chunks = out.chunk(2 * group.size, dim=1)
        with env.ops.fused():
            out = env.ops.concatenate((chunks[group.index], chunks[-1 - group.index]), dim=1)
    return out.view(-1, out.shape[-1])


def own_backward(env: Environment, grad: Array, w: OwnParameters[Weight], batch: Microbatch, saved: Saved) -> Array:
    """The gradient of x [t, hidden] from that of the output. Adds the weights' gradients, at once even where others are deferred:
    one pass over autograd's graph gives both."""
    group, sequences = _group(env), batch.tokens.shape[0]
    given: list[Any] = [grad.view(sequences, -1, grad.shape[-1]), saved.take("graph")]
    if group is not None:
        given[0] = _among_zeros(group, given[0])
    grad = env.ops.run_own_backward(given, w.parameters)
    if group is not None:
        grad = _summed(env.ops, group, [grad])
    return grad.view(-1, grad.shape[-1])


def _group(env: Environment) -> Group | None:
    context = env.parallel.context
    return None if context is None else context.ring


def _full_sequence(ops: Operations, group: Group, x: Array, dim: int) -> Array:
    """All ranks' parts of a sequence, dimension `dim` of x, in order: rank r has chunks r and 2R - 1 - r."""
    full = gather_over(x, group).wait()
    halves = [rank.chunk(2, dim=dim) for rank in full.chunk(group.size)]
    with ops.fused():
        return ops.concatenate([front for front, _ in halves] + [back for _, back in halves[::-1]], dim=dim)


def _full_tables(ops: Operations, group: Group, cos: Array, sin: Array) -> tuple[Array, Array]:
    """cos and sin of the full sequence."""
    if not cos.shape[-1]:
        return cos, sin
    both = _full_sequence(ops, group, ops.concatenate([cos, sin], dim=-1), len(cos.shape) - 3)
    cos, sin = both.chunk(2, dim=-1)
    return cos, sin


def _among_zeros(group: Group, grad: Array) -> Array:
    """The gradient [batch, seq, hidden] of the full output, of which this rank used its own tokens alone."""
    batch, tokens, hidden = grad.shape
    full = grad.new_zeros((batch, group.size * tokens, hidden))
    chunks = full.chunk(2 * group.size, dim=1)
    for chunk, own in zip((chunks[group.index], chunks[-1 - group.index]), grad.chunk(2, dim=1), strict=True):
        chunk.copy_(own)
    return full


def _summed(ops: Operations, group: Group, given: list[Array]) -> Array:
    """This rank's tokens of the sum of every rank's gradient [batch, seq, hidden], taken out of the list."""
    grad = given.pop()
    chunks = grad.chunk(2 * group.size, dim=1)
    with ops.fused():
        ranks = [ops.concatenate((chunks[r], chunks[-1 - r]), dim=1) for r in range(group.size)]
        full = ops.concatenate(ranks)
    del ranks, chunks, grad
    return scatter_over(full, group).wait()
