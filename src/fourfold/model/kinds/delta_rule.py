"""Mixers with a delta rule, a recurrence over tokens in place of attention: all but their projections.

Queries, keys and values pass a short causal convolution of each channel and a SiLU; queries and keys are divided by their lengths;
the rule (`model/delta.py`) reads them, with a decay and a writing strength; its output is normed, head by head, and gated. All but
what is projected and the rule's output is computed again in backward.

Symbols: T tokens of a microbatch, t those whose hidden states this rank has, G key heads, H value heads (both this rank's), d and v
the sizes of a key and of a value, r = H / G.
"""

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from fourfold.model.context.recurrence import by_kernels, recurrence_backward, recurrence_forward
from fourfold.model.convolution import (
    add_in_front,
    convolve,
    convolve_backward,
    in_front,
    padded,
    positions_of,
    split_gradient,
)
from fourfold.model.environment import Environment
from fourfold.model.kinds.kind import Mixer, Pass
from fourfold.model.norm import rms_norm, rms_norm_backward
from fourfold.model.operations import Array, Operations
from fourfold.model.parameter import Parameters
from fourfold.model.tensor_parallel import InputSource, gather_tokens, row_parallel
from fourfold.model.weights import Weight

T = TypeVar("T")
LENGTH_EPS = 1e-6
"""Added to the squared lengths of queries and keys, in the released models whatever the blocks' `norm_eps`."""
FIRST_STEPS = (1e-3, 1e-1)
"""Between these lie the steps at the start where their biases are not ones (Gu & Dao 2023)."""


@dataclass(frozen=True)
class DeltaParameters(Parameters[T]):
    """output [hidden, H v]; projection [.., hidden] of the convolution's channels, and more; convolution [channels, 1, kernel];
    decay, H numbers; step_bias [H], or [H d]; norm [v]."""

    output: T
    projection: T
    convolution: T
    decay: T
    step_bias: T
    norm: T


Own = TypeVar("Own", bound=DeltaParameters[Weight])


class Projected(NamedTuple):
    """Views of what was projected, or of its gradient: `mixed` [batch, seq, groups, c] goes through the convolution, `gate` [batch,
    seq, .., v] opens the output of each value head, `strengths` [batch, seq, .., r], `decays` [batch, seq, G, r] or [batch, seq, H,
    1, d]."""

    mixed: Array
    gate: Array
    strengths: Array
    decays: Array


class DeltaRule(Mixer, Generic[Own]):
    """A kind says what it projects and how channels lie.

    `kernel`: tokens that the convolution sees, itself the last; `norm_eps`: of the output's norm; `strongest`: what a strength b of
    writing stays below: 1, or 2, with which I - b k k^T, by which a token multiplies the state, has eigenvalues down to -1 (Grazzi
    et al. 2025)."""

    kernel: int
    norm_eps: float
    strongest: float

    attends = False

    def project(self, run: Pass, given: list[Array], w: Own) -> Projected:
        """`given`: x [t, hidden], taken out of the list. Keeps in `run.saved` what `projected_again` reads."""
        raise NotImplementedError

    def projected_again(self, run: Pass, w: Own) -> Projected:
        """The views once more, from what was kept."""
        raise NotImplementedError

    def gradients(self, run: Pass, seen: Projected, w: Own) -> tuple[list[Array], Projected]:
        """Arrays for what `project_backward` reads, yet to be filled, and views of them. A view may stand in the place of what was
        projected."""
        raise NotImplementedError

    def project_backward(self, run: Pass, grads: list[Array], w: Own, source: InputSource) -> Array:
        """The gradient of the residual stream [t, hidden]; adds the weights'. `grads`: of `gradients`, taken out of the list."""
        raise NotImplementedError

    def by_head(self, channels: Array) -> tuple[Array, Array, Array]:
        """[batch, seq, groups, c] -> views of q, k [batch, seq, G, d] and v [batch, seq, .., r, v]."""
        raise NotImplementedError

    def taps(self, run: Pass, w: Own) -> Array:
        """The convolution's weights [kernel, groups, c], those of the token itself last, in the accumulation format. Here all
        channels are of one group."""
        return run.ops.upcast(w.convolution.data).permute(2, 1, 0)

    def add_taps(self, found: Array, w: Own) -> None:
        """Adds the gradient of `taps` to that of the weights."""
        w.convolution.add(found.permute(2, 1, 0).contiguous())

    def open(self, ops: Operations, gate: Array) -> Array:
        """The factor of the output that the gate gives."""
        raise NotImplementedError

    def open_backward_(self, ops: Operations, grad: Array, gate: Array) -> None:
        """Puts the gradient of the gate in its place. `grad`: of `open`."""
        raise NotImplementedError

    def forward(self, run: Pass, given: list[Array], w: Own, residual: Array | None = None) -> Array:
        """residual + the output. `given`: x [t, hidden], taken out of the list -> [t, hidden]. `residual` [t, hidden] None: it is
        yet to be added."""
        env, ops, saved = run.env, run.ops, run.saved
        seen = self.project(run, given, w)
        before = in_front(env, seen.mixed, self.kernel)
        inputs = self._rule_inputs(run, seen, w, before)
        saved.keep(halo=before)
        del before
        recurred = recurrence_forward(env, inputs, positions_of(run.batch, run.parallel), saved)
        inputs.clear()
        with ops.fused():
            rows = recurred.to(seen.gate.dtype).contiguous().view(-1, recurred.shape[-1])
            del recurred
            normed, scale = rms_norm(ops, rows, w.norm.data, self.norm_eps)
            saved.keep(recurred=rows, head_scale=scale)
            del rows, scale
            flat = self._gated(run, normed, seen.gate)
            del normed, seen
        saved.keep(gated_output=flat)
        return row_parallel(env, flat, w.output, residual)

    def backward(self, run: Pass, grad: Array, w: Own, source: InputSource) -> Array:
        """grad [t, hidden] of the output -> the gradient of the residual stream; adds the weights' gradients."""
        env, ops, saved = run.env, run.ops, run.saved
        arriving = gather_tokens(grad, run.parallel)
        seen = self.projected_again(run, w)
        recurred, scale = saved.take("recurred"), saved.take("head_scale")
        flat = saved.take_if_kept("gated_output")
        if flat is None:
            with ops.fused():
                flat = self._gated(run, rms_norm(ops, recurred, w.norm.data, self.norm_eps)[0], seen.gate)
        full = arriving.wait()
        w.output.add_matmul(env.gemms, full, flat)
        del flat, arriving
        gradient = env.gemms.matmul(full, w.output.data)
        del full
        given, grads = self.gradients(run, seen, w)
        outputs = [gradient, recurred, scale]
        del gradient, recurred, scale
        self._gate_backward(run, outputs, seen.gate, grads.gate, w)
        before = saved.take_if_kept("halo")
        inputs = self._rule_inputs(run, seen, w, before)
        found = list(recurrence_backward(env, outputs.pop(), inputs, positions_of(run.batch, run.parallel), saved))
        self._rule_inputs_backward(run, found, inputs, seen, grads, w, before)
        del inputs, seen, grads, before
        return self.project_backward(run, given, w, source)

    def _gated(self, run: Pass, normed: Array, gate: Array) -> Array:
        """normed [batch seq H, v], which is overwritten, times what the gate [batch, seq, .., v] opens -> [T, H v]."""
        opened = self.open(run.ops, gate)
        return normed.view(*opened.shape).mul_(opened).flatten(2).flatten(0, 1)

    def _rule_inputs(self, run: Pass, seen: Projected, w: Own, before: Array | None) -> list[Array]:
        """q, k [batch, seq, G, d], v [batch, seq, H, v], g [batch, seq, H], or [batch, seq, H, d], and b [batch, seq, H] in the
        accumulation format."""
        ops = run.ops
        with ops.fused():
            tokens = padded(ops, seen.mixed, before, self.kernel)
            convolved = convolve(ops, tokens, self.taps(run, w), positions_of(run.batch, run.parallel))
            del tokens
            active = ops.silu(convolved)
            del convolved
            queries, keys, values = self.by_head(active)
            q, k = _unit(queries)[0], _unit(keys)[0]
            q.mul_(q.shape[-1] ** -0.5)
            v = ops.copy(values).flatten(2, 3)
            del active, queries, keys, values
            if by_kernels(run.env) is not None:
                q, k, v = (x.to(seen.mixed.dtype) for x in (q, k, v))
        with ops.fused():
            b = ops.upcast(seen.strengths).sigmoid().flatten(2)
            if self.strongest != 1:
                b.mul_(self.strongest)
            steps = ops.softplus(_steps(ops, seen, w))
            g = steps.mul_(_rates(ops, w, steps)).neg_()
            del steps
        return [q, k, v, g, b]

    def _gate_backward(self, run: Pass, given: list[Array], gate: Array, into: Array, w: Own) -> None:
        """`given`: the gradient of the gated output [T, H v], the rule's output [T H, v] and its 1/rms, in whose place the gradient
        of the rule's output [batch, seq, H, v] stays. Puts the gradient of the gate into `into`."""
        ops = run.ops
        grad, recurred, scale = given
        given.clear()
        with ops.fused():
            gates = ops.copy(gate)
            normed = rms_norm(ops, recurred, w.norm.data, self.norm_eps)[0]
            by_head = grad.view(*gates.shape)
            d_normed = (by_head * self.open(ops, gates)).view(*recurred.shape)
            self.open_backward_(ops, normed.view(*gates.shape).mul_(by_head), gates)
            into.copy_(gates)
            shape = (*gates.shape[:2], -1, gates.shape[-1])
            del gates, normed, grad, by_head
            given.append(ops.upcast(rms_norm_backward(ops, d_normed, recurred, scale, w.norm)).view(*shape))
            del d_normed

    def _rule_inputs_backward(
        self,
        run: Pass,
        found: list[Array],
        inputs: list[Array],
        seen: Projected,
        into: Projected,
        w: Own,
        before: Array | None,
    ) -> None:
        """`found`: gradients of q, k, v, g, b, taken out of the list; `inputs`: those themselves; `before`: the halo. Puts the
        gradients of what was projected into `into`; adds the weights'."""
        ops = run.ops
        d_q, d_k, d_v, d_g, d_b = found
        found.clear()
        with ops.fused():
            g, b = inputs.pop(-2), inputs.pop()
            inputs.clear()
            left = 1 - b if self.strongest == 1 else 1 - b / self.strongest
            into.strengths.copy_((d_b * b * left).unflatten(2, into.strengths.shape[2:]))
            by_rates = (d_g * g).flatten(0, 1).sum(0)
            w.decay.add((by_rates.sum(-1) if len(by_rates.shape) > 1 else by_rates).view(*w.decay.data.shape))
            slopes = _steps(ops, seen, w).sigmoid()
            d_steps = slopes.mul_(d_g).mul_(_rates(ops, w, slopes)).neg_()
            w.step_bias.add(d_steps.flatten(0, 1).sum(0).flatten())
            into.decays.copy_(d_steps.unflatten(2, into.decays.shape[2:4]))
            del d_b, d_g, g, b, left, by_rates, slopes, d_steps
        with ops.fused():
            tokens, taps = padded(ops, seen.mixed, before, self.kernel), self.taps(run, w)
            positions = positions_of(run.batch, run.parallel)
            convolved = convolve(ops, tokens, taps, positions)
            active = ops.silu(convolved)
            d_active = active.new_empty(active.shape)
            own, gradients = self.by_head(active), self.by_head(d_active)
            for x, into_x, grad, factor in zip(
                own[:2], gradients[:2], (d_q, d_k), (d_q.shape[-1] ** -0.5, 1.0), strict=True
            ):
                unit, inverse = _unit(x)
                scaled = grad * factor
                along = (scaled * unit).sum(-1, keepdim=True)
                into_x.copy_(scaled.addcmul_(unit, along, value=-1).mul_(inverse))
                del unit, inverse, scaled, along, grad, x, into_x
            gradients[2].copy_(d_v.unflatten(2, gradients[2].shape[2:4]))
            del d_q, d_k, d_v, active, own, gradients
            ops.silu_backward_(d_active, convolved)
            del d_active
            d_tokens, d_taps = convolve_backward(ops, convolved, tokens, taps, positions)
            del convolved, tokens, taps, positions
            self.add_taps(d_taps, w)
            given = [split_gradient(run.env, d_tokens, into.mixed)]
            del d_tokens, d_taps
        add_in_front(run.env, given, into.mixed)


def with_small(env: Environment, grad: Array, weight: Weight, by_small: Array, small: Weight) -> Array:
    """This rank's part of the gradient of an input [T, hidden] that two weights read, the small one in the compute format."""
    full, more = env.gemms.matmul(grad, weight.data), env.ops.matmul(by_small, small.data)
    with env.ops.fused():
        full.add_(more)
        del more
    return full


def _unit(x: Array) -> tuple[Array, Array]:
    """x [..., d] divided by its length, and the inverse of that [..., 1]."""
    length = (x * x).sum(-1, keepdim=True)
    inverse = length.add_(LENGTH_EPS).rsqrt_()
    return x * inverse, inverse


def _steps(ops: Operations, seen: Projected, w: DeltaParameters[Weight]) -> Array:
    """[batch, seq, H], or [batch, seq, H, d], before the softplus."""
    return (ops.upcast(seen.decays) + w.step_bias.data.view(*seen.decays.shape[2:])).flatten(2, 3)


def _rates(ops: Operations, w: DeltaParameters[Weight], steps: Array) -> Array:
    """Every head's factor of its steps, [H], or [H, 1]."""
    return ops.upcast(w.decay.data).exp().view(-1, *[1 for _ in steps.shape[3:]])
