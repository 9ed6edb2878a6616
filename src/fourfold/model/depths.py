"""The head for several depths: the next token's loss, and those of the MTP modules, weighted.

Loss = main loss + mtp_loss / D x the sum of the modules' losses (DeepSeek-V3, equations 24 and 25), where each depth's token losses
are divided by the number of its own valid targets in the full global batch. A z-loss is of the next token's logits alone.
"""

from collections.abc import Iterator
from dataclasses import replace

from fourfold.model.environment import Environment, Microbatch
from fourfold.model.head import HeadParameters, head_loss, head_loss_backward
from fourfold.model.operations import Array
from fourfold.model.weights import Weight


def losses(env: Environment, x: Array, batch: Microbatch, w: HeadParameters[Weight]) -> Array:
    """The sums of the token losses of every depth, [1 + D], as in `head_loss`; with a z-loss [1 + 1 + D], the sum of Z^2 second.
    x [(1 + D) t, hidden]."""
    z_loss = env.model.logits_z_loss
    if not w.depth_norms:
        return head_loss(env, x, batch.targets, w, z_loss)
    sums = []
    for part, targets, own in _depths(x, batch, w):
        sums.append(head_loss(env, part, targets, own, z_loss))
        z_loss = 0.0
    return env.ops.concatenate(sums)


def losses_backward(
    env: Environment, x: Array, batch: Microbatch, w: HeadParameters[Weight], num_targets: Array
) -> tuple[Array, Array]:
    """`head_loss_backward` for every depth. x [(1 + D) t, hidden], num_targets [1 + D] -> (sums as of `losses`, gradient of x)."""
    z_loss = env.model.logits_z_loss
    if not w.depth_norms:
        return head_loss_backward(env, x, batch.targets, w, num_targets[0], 1.0, z_loss)
    sums, grads = [], x.new_empty(x.shape)
    into = grads.chunk(1 + len(w.depth_norms))
    share = 1.0
    for (part, targets, own), divisor, target in zip(_depths(x, batch, w), num_targets.unbind(), into, strict=True):
        totals, grad = head_loss_backward(env, part, targets, own, divisor, share, z_loss)
        target.copy_(grad)
        del grad
        sums.append(totals)
        z_loss, share = 0.0, env.model.mtp_loss / env.model.mtp_layers
    return env.ops.concatenate(sums), grads


def _depths(
    x: Array, batch: Microbatch, w: HeadParameters[Weight]
) -> Iterator[tuple[Array, Array, HeadParameters[Weight]]]:
    """Every depth's hidden states [t, hidden], targets [batch, seq] and weights."""
    parts = x.chunk(1 + len(w.depth_norms))
    yield parts[0], batch.targets, w
    for index, norm in enumerate(w.depth_norms):
        assert batch.ahead_targets is not None
        yield parts[1 + index], batch.ahead_targets[index], replace(w, norm=norm)
