"""The head: final norm, unembedding and cross-entropy, chunk by chunk, so that wide logits exist for one chunk at a time.

The loss's divisor is known before backward (the one loss rule), so in training the head's forward and backward run as
one: each chunk's logits are made once, turned into their own gradient in place, and dropped. Where the vocabulary is split
over `tp`, no rank sees a full row of logits: three numbers a token are exchanged (Shoeybi et al. 2019, section 3). Rows
that pad the vocabulary have no probability, so that their gradients are zero.

With a z-loss of weight c (Chowdhery et al. 2022, section 5) a token adds c Z^2, Z = logsumexp(logits). Since the gradient of Z is
the softmax p, the logits' is (1 + 2 c Z) p, less one at the target: a factor of each token.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from fourfold.model.embedding import EmbeddingParameters
from fourfold.model.environment import Environment
from fourfold.model.layers import final_norm
from fourfold.model.norm import NormParameters, normalize, normalize_backward
from fourfold.model.operations import Array, Operations
from fourfold.model.parallel import Group
from fourfold.model.parameter import Parameters
from fourfold.model.shape import chunk_tokens, kernel_chunk_tokens
from fourfold.model.tensor_parallel import gather_tokens, sum_partial
from fourfold.model.weights import Weight

T = TypeVar("T")


@dataclass(frozen=True)
class HeadParameters(Parameters[T]):
    """Unembedding [this rank's part of vocab, hidden], final norm [hidden], and in place of that the MTP modules' own. `tied`: the
    embedding, in place of the unembedding; all of it, so that on another rank than its own what is not read there is cleared."""

    table: T | None
    norm: NormParameters[T]
    depth_norms: tuple[NormParameters[T], ...] = ()
    tied: EmbeddingParameters[T] | None = None

    @property
    def unembedding(self) -> T:
        table = self.table if self.tied is None else self.tied.tokens
        assert table is not None
        return table


def head_loss(env: Environment, x: Array, targets: Array, w: HeadParameters[Weight], z_loss: float = 0.0) -> Array:
    """The sum of the token losses, [1] in fp32 (fp64 for fp64), the same on every rank of `tp`; with `z_loss`, its weight, [2]: the
    sum of Z^2 too.

    x [t, hidden], targets [batch, seq].
    """
    ops = env.ops
    normed, _ = normalize(ops, final_norm(env.model), x, w.norm)
    normed = gather_tokens(normed, env.parallel).wait()
    totals = _zeros(ops, normed, z_loss)
    for part, target in ops.repeats(_chunks(env, normed, targets, w), _tokens):
        logits = ops.linear(part, w.unembedding.data)
        with ops.fused("loss"):
            logits = _summable(ops, logits)
            cap_(env, logits)
            softmax = exponentiate(env, logits, target, z_loss)
            softmax.add_to(totals)
            del logits, softmax
    return totals


def head_logits(env: Environment, x: Array, w: HeadParameters[Weight]) -> Array:
    """Logits of every position. x [tokens, hidden] -> [tokens, vocab]; one process."""
    normed, _ = normalize(env.ops, final_norm(env.model), x, w.norm)
    logits = env.ops.linear(normed, w.unembedding.data)
    cap_(env, logits)
    return logits


def cap_(env: Environment, logits: Array) -> None:
    """Turns logits z into c tanh(z / c) in place, where the model has a cap c of them (Gemma-2)."""
    cap = env.model.logit_softcap
    if cap is not None:
        logits.mul_(1 / cap).tanh_().mul_(cap)


def slope_of_cap(env: Environment, capped: Array) -> Array | None:
    """The derivative of the cap, 1 - tanh(z / c)^2, of what `cap_` left; None where there is none."""
    cap = env.model.logit_softcap
    return None if cap is None else (capped * (1 / cap)).square_().neg_().add_(1)


def head_loss_backward(
    env: Environment,
    x: Array,
    targets: Array,
    w: HeadParameters[Weight],
    num_targets: Array,
    share: float = 1.0,
    z_loss: float = 0.0,
) -> tuple[Array, Array]:
    """The microbatch's sums, as in `head_loss`, and the gradient of (share * (loss sum + z_loss * sum of Z^2) / num_targets) with
    respect to x; adds weight gradients, at once even while others are deferred.

    `num_targets`: valid target tokens of the full global batch, an integer scalar. Returns ([1 or 2], [t, hidden]).
    """
    ops = env.ops
    normed, statistics = normalize(ops, final_norm(env.model), x, w.norm)
    normed = gather_tokens(normed, env.parallel).wait()
    totals = _zeros(ops, normed, z_loss)
    divisor = num_targets.clamp(min=1)
    for part, target in ops.repeats(_chunks(env, normed, targets, w), _tokens):
        logits = ops.linear(part, w.unembedding.data)
        with ops.fused("loss"):
            logits = _summable(ops, logits)
            cap_(env, logits)
            slope = slope_of_cap(env, logits)
            softmax = exponentiate(env, logits, target, z_loss)
            softmax.add_to(totals)
        with ops.fused("loss"):
            grad = logits_gradient(ops, [logits], softmax, divisor, share, part, slope)
            del logits, softmax, slope
        w.unembedding.add_matmul_now(ops, grad, part)
        ops.matmul_into(grad, w.unembedding.data, part)  # the chunk of `normed` now holds its own gradient
        del grad, part
    arriving = sum_partial(normed, env.parallel)
    del normed
    grad = arriving.wait()
    del arriving
    with ops.fused("norm"):
        return totals, normalize_backward(ops, final_norm(env.model), grad, x, statistics, w.norm)


def _zeros(ops: Operations, normed: Array, z_loss: float) -> Array:
    """Sums of the losses, and of Z^2 where that has a weight."""
    return normed.new_zeros((2 if z_loss else 1,), dtype=ops.accumulation_dtype(normed))


def _chunks(
    env: Environment, normed: Array, targets: Array, w: HeadParameters[Weight]
) -> Iterator[tuple[Array, Array]]:
    """normed [T, hidden] and targets in parts of as many tokens as logits may exist for."""
    columns, accelerator = w.unembedding.data.shape[0], env.ops.on_accelerator(normed)
    is_narrow = env.ops.accumulation_dtype(normed) != normed.dtype
    if accelerator and env.ops.losses is not None and is_narrow:
        size = kernel_chunk_tokens(columns)
    else:
        size = chunk_tokens(columns, accelerator)
    return zip(normed.split(size), targets.view(-1).split(size), strict=True)


def _tokens(chunk: tuple[Array, Array]) -> int:
    return len(chunk[1])


@dataclass(frozen=True)
class Softmax:
    """A chunk's softmax, [tokens] each: probability = what `exponentiate` left in the logits x `factor`; with kernels of
    cross-entropy exp(logit - `maximum`) x `factor`. `column`: the target's among this rank's, where it is `here` and `valid`;
    `loss`: the sum of the chunk's losses; `square` that of Z^2 and `stretch` 1 + 2 c Z, where a z-loss has the weight c."""

    loss: Array
    square: Array | None
    stretch: Array | None
    factor: Array
    maximum: Array | None
    column: Array
    valid: Array
    here: Array

    def add_to(self, totals: Array) -> None:
        """Adds the chunk's sums. totals [1], or [2] with a z-loss."""
        totals[0].add_(self.loss)
        if self.square is not None:
            totals[1].add_(self.square)


def exponentiate(env: Environment, logits: Array, target: Array, z_loss: float = 0.0) -> Softmax:
    """Turns logits [tokens, this rank's vocabulary] into exp(logit - this rank's maximum) in place; kernels of cross-entropy leave
    them as they are. target [tokens], -100: none. `z_loss`: its weight."""
    ops = env.ops
    columns, tp = logits.shape[-1], env.parallel.tp
    own = env.model.vocab_size - (0 if tp is None else tp.index * columns)
    if own < columns:  # the vocabulary's padding
        logits[:, own:].fill_(-math.inf)
    valid = target >= 0
    column = target if tp is None else target - tp.index * columns
    here = valid if tp is None else valid & (column >= 0) & (column < columns)
    column = column.clamp(0, columns - 1)
    own_maximum = None
    if ops.losses is None:
        maximum = logits.amax(-1)
        picked = logits.gather(-1, column.unsqueeze(-1)).squeeze(-1).masked_fill_(~here, 0)
        total = logits.sub_(maximum.unsqueeze(-1)).exp_().sum(-1)
    else:
        maximum, total, picked = ops.losses.statistics(logits, column, here)
        own_maximum = ops.copy(maximum)
    highest = maximum
    if tp is not None:
        highest, total, picked = _combine(env, [maximum, total, picked], tp)
    loss = (total.log() + (highest - picked)).masked_fill_(~valid, 0).sum()
    square = stretch = None
    if z_loss:
        level = total.log().add_(highest)
        square = level.square().masked_fill_(~valid, 0).sum()
        stretch = level.mul_(2 * z_loss).add_(1)
    factor = maximum.sub_(highest).exp_().div_(total)
    return Softmax(loss, square, stretch, factor, own_maximum, column, valid, here)


def _combine(env: Environment, local: list[Array], tp: Group) -> tuple[Array, Array, Array]:
    """(maximum, sum of exponentials, target's logit) of each token over all ranks, from each rank's own, [tokens] each."""
    own = env.ops.stack(local)
    every = own.new_empty((tp.size, *own.shape))
    tp.all_gather(every, own).wait()
    maxima, sums, picked = every.unbind(1)
    highest = maxima.amax(0)
    return highest, (maxima - highest).exp_().mul_(sums).sum(0), picked.sum(0)


def summed_loss_and_gradient(
    env: Environment, given: list[Array], target: Array, num_targets: Array
) -> tuple[Array, Array]:
    """The sum of the losses of logits [tokens, vocab], and their gradient of (sum / num_targets) in their format. `given`: the
    logits, taken out of the list, which may be overwritten. target [tokens], -100: none."""
    part = given[0]
    logits = _summable(env.ops, given.pop())
    softmax = exponentiate(env, logits, target)
    return softmax.loss, logits_gradient(env.ops, [logits], softmax, num_targets.clamp(min=1), 1.0, part)


def _summable(ops: Operations, logits: Array) -> Array:
    """Logits in the format of sums, for formulas; kernels of cross-entropy take them as they are."""
    return ops.upcast(logits) if ops.losses is None else logits


def logits_gradient(
    ops: Operations,
    given: list[Array],
    softmax: Softmax,
    divisor: Array,
    share: float,
    part: Array,
    slope: Array | None = None,
) -> Array:
    """The gradient of the logits [tokens, this rank's vocabulary] in the format of `part`, in place where formats allow.
    `given`: what `exponentiate` left of them, taken out of the list. `slope`: of their cap, if there is one."""
    logits = given.pop()
    scale = softmax.valid.to(softmax.factor.dtype) / divisor
    if share != 1:
        scale.mul_(share)
    factor = softmax.factor * scale
    if softmax.stretch is not None:
        factor.mul_(softmax.stretch)
    scale.masked_fill_(~softmax.here, 0).neg_()
    if ops.losses is not None:
        ops.losses.gradient_(logits, softmax.column, softmax.maximum, factor, scale)
        return logits if slope is None else logits.mul_(slope)
    logits.mul_(factor.unsqueeze(-1))
    logits.scatter_add_(-1, softmax.column.unsqueeze(-1), scale.unsqueeze(-1))
    if slope is not None:
        logits.mul_(slope)
    return logits.to(part.dtype)
