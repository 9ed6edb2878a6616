"""Attention sinks: a logit of each head that takes a share of the attention and gives nothing (Xiao et al. 2023; gpt-oss 2025).

With l the log-sum-exp of a query's scores and s the sink, the output is softmax over keys and sink: out * sigmoid(l - s), with
log-sum-exp log(exp(l) + exp(s)). From those two the kernels' backward is right as it stands: P = exp(S - l') and D = rowsum(dO *
O) are what softmax's backward reads. The sink's own score gets -exp(s - l') D."""

from fourfold.model.operations import Array, Operations
from fourfold.model.parallel import Group
from fourfold.model.weights import Weight


def apply_(ops: Operations, out: Array, lse: Array, sinks: Array) -> None:
    """In place on out [batch, seq, heads, d] and its log-sum-exp [batch, seq, heads]. sinks [heads]."""
    with ops.fused():
        logits = sinks.to(lse.dtype)
        weight = (lse - logits).sigmoid().unsqueeze(-1)
        out.mul_(weight.to(out.dtype))
        ops.logaddexp_(lse, logits.expand(*lse.shape))
        del weight, logits


def add_gradient(
    ops: Operations, grad: Array, out: Array, lse: Array, sinks: Weight, group: Group | None = None
) -> None:
    """Adds the sinks' gradient. grad, out [batch, seq, heads, d], lse [batch, seq, heads] with the sinks. `group`: ranks that have
    some of the heads each."""
    own = own_heads(sinks.data, group)
    with ops.fused():
        share = (ops.upcast(grad) * ops.upcast(out)).sum(-1).neg_()
        share.mul_((own.to(lse.dtype) - lse).exp_())
        found = share.flatten(0, 1).sum(0)
        del share
        if group is not None:
            full = found.new_zeros(sinks.data.shape)
            own_heads(full, group).copy_(found)
            found = full
            del full
        sinks.add(found)


def own_heads(x: Array, group: Group | None) -> Array:
    """This rank's part of x [heads], a view."""
    return x if group is None else x.view(group.size, -1)[group.index]
