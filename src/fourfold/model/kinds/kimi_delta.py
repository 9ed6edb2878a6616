"""Kimi Delta Attention (KDA; Kimi Team 2025), as in Kimi-Linear: the delta rule with a decay of every channel of a key.

Decays and the output's gates come through a matrix of d rows each, which every rank of `tp` multiplies its own tokens by; under
sequence parallelism what these give is brought together, beside the hidden states. Decays and gates themselves are projected again
in backward. Tensor parallelism splits heads. Symbols are those of `delta_rule.py`, where G = H and v = d.
"""

from dataclasses import dataclass

from fourfold.model.context.recurrence import stretches
from fourfold.model.kinds.delta_rule import FIRST_STEPS, DeltaParameters, DeltaRule, Projected, T, with_small
from fourfold.model.kinds.kind import Pass
from fourfold.model.operations import Array, Operations
from fourfold.model.parameter import Declared, ParameterSpec, Widths, column, gain, replicated, row
from fourfold.model.tensor_parallel import ColumnInput, InputSource, gather_tokens, replicated_backward, sum_partial
from fourfold.model.weights import Weight


@dataclass(frozen=True)
class KimiDeltaParameters(DeltaParameters[T]):
    """projection [3 H d, hidden]: q, k and v of all heads; convolution [3 H d, 1, kernel]; decay [1, 1, H, 1]; step_bias [H d];
    strength [H, hidden]. Low ranks: down [2 d, hidden], decay_up and gate_up [H d, d]."""

    strength: T
    down: T
    decay_up: T
    gate_up: T


Weights = KimiDeltaParameters[Weight]
_PROJECTED = ("projected", "strengths")


@dataclass(frozen=True)
class KimiDelta(DeltaRule[Weights]):
    num_heads: int
    head_dim: int
    kernel: int = 4
    norm_eps: float = 1e-5
    strongest: float = 1.0

    @property
    def words(self) -> str:
        return "Kimi delta rule"

    @property
    def divided(self) -> dict[str, int]:
        return {"model.delta_key_heads": self.num_heads}

    def features(self, tp: int) -> dict[str, int]:
        channels = self.num_heads * self.head_dim
        return {
            "delta_value_heads / tp x delta_value_dim": channels // tp,
            "model.delta_key_dim": self.head_dim,
        }

    @property
    def state_flops(self) -> int:
        """A token erases from the state, writes to it and reads it."""
        return 6 * self.num_heads * self.head_dim**2

    def declare(self, widths: Widths) -> KimiDeltaParameters[Declared]:
        heads, size, hidden, std = self.num_heads, self.head_dim, widths.hidden, widths.std
        channels = heads * size
        down, up = (
            [f"self_attn.{name}_{side}_proj.weight" for name in ("f", "g")] for side in ("a", "b")
        )  # of the decay (the forget gate), of the output's gate
        return KimiDeltaParameters(
            output=row("self_attn.o_proj.weight", hidden, channels, widths.residual_std),
            projection=tuple(column(f"self_attn.{name}_proj.weight", channels, hidden, std) for name in "qkv"),
            convolution=tuple(
                ParameterSpec(f"self_attn.{name}_conv1d.weight", (channels, 1, self.kernel), std, True, 0)
                for name in "qkv"
            ),
            decay=ParameterSpec("self_attn.A_log", (1, 1, heads, 1), std, False, 2, log_uniform=(1.0, 16.0)),
            step_bias=ParameterSpec("self_attn.dt_bias", (channels,), std, False, 0, softplus_log_uniform=FIRST_STEPS),
            norm=gain("self_attn.o_norm.weight", size, "always"),
            strength=column("self_attn.b_proj.weight", heads, hidden, std),
            down=tuple(replicated(name, (size, hidden), std, "sequence") for name in down),
            decay_up=column(up[0], channels, size, std),
            gate_up=column(up[1], channels, size, std),
        )

    def project(self, run: Pass, given: list[Array], w: Weights) -> Projected:
        x, parallel = given.pop(), run.parallel
        arriving = gather_tokens(x, parallel)
        narrow = gather_tokens(run.env.gemms_of(2 * self.head_dim).linear(x, w.down.data), parallel)
        del x
        projected = run.env.gemms.linear(arriving.wait(), w.projection.data)
        strengths = run.ops.linear(arriving.wait(), w.strength.data)
        del arriving
        run.saved.keep(projected=projected, strengths=strengths, narrow=narrow.wait())
        return self._seen(run, [projected, strengths], narrow.wait(), w)

    def projected_again(self, run: Pass, w: Weights) -> Projected:
        return self._seen(run, [run.saved.take(each) for each in _PROJECTED], run.saved.see("narrow"), w)

    def gradients(self, run: Pass, seen: Projected, w: Weights) -> tuple[list[Array], Projected]:
        """Gradients of strengths, decays and gates take their place."""
        into = seen._replace(mixed=seen.mixed.new_empty(seen.mixed.shape))
        return [x.flatten(2).flatten(0, 1) for x in (into.mixed, into.strengths, into.decays, into.gate)], into

    def project_backward(self, run: Pass, grads: list[Array], w: Weights, source: InputSource) -> Array:
        env, ops = run.env, run.ops
        grad, d_strengths, d_decays, d_gate = grads
        grads.clear()
        x = source.input()
        inputs = ColumnInput(env, w.projection, x)
        arriving = sum_partial(with_small(env, grad, w.projection, d_strengths, w.strength), env.parallel)
        parts = [env.gemms.matmul(d_decays, w.decay_up.data), env.gemms.matmul(d_gate, w.gate_up.data)]
        with ops.fused():
            narrow = sum_partial(ops.concatenate(parts, dim=1), env.parallel)
        parts.clear()
        forget, opening = run.saved.take("narrow").split((self.head_dim, self.head_dim), dim=1)
        w.decay_up.add_matmul(env.gemms, d_decays, forget)
        w.gate_up.add_matmul(env.gemms, d_gate, opening)
        inputs.add_matmul(grad, (w.strength, d_strengths))
        del inputs, grad, d_strengths, d_decays, d_gate, forget, opening
        sums = [replicated_backward(env, narrow.wait(), w.down, x)]
        del narrow, x
        sums.append(arriving.wait())
        del arriving
        return source.gradient(lambda: sums.pop().add_(sums.pop()))

    def by_head(self, channels: Array) -> tuple[Array, Array, Array]:
        q, k, v = channels.squeeze(2).unflatten(-1, (3, -1, self.head_dim)).unbind(2)
        return q, k, v.unsqueeze(3)

    def open(self, ops: Operations, gate: Array) -> Array:
        return gate.sigmoid()

    def open_backward_(self, ops: Operations, grad: Array, gate: Array) -> None:
        opened = gate.sigmoid()
        gate.copy_((1 - opened).mul_(opened).mul_(grad))

    def _seen(self, run: Pass, projected: list[Array], narrow: Array, w: Weights) -> Projected:
        """`projected`: what is convolved [T, 3 H d], and strengths [T, H], taken out of the list."""
        size, gemms = self.head_dim, run.env.gemms
        rows = run.batch.tokens.shape[0] * stretches(run.parallel)
        forget, opening = narrow.split((size, size), dim=1)
        large = [gemms.linear(forget, w.decay_up.data), gemms.linear(opening, w.gate_up.data)]
        mixed, strengths, decays, gate = (x.view(rows, -1, x.shape[1]) for x in (*projected, *large))
        projected.clear()
        return Projected(mixed.unsqueeze(2), self._by_head(gate), strengths, self._by_head(decays).unsqueeze(3))

    def _by_head(self, x: Array) -> Array:
        """[batch, seq, H d] -> view [batch, seq, H, d]."""
        return x.unflatten(-1, (-1, self.head_dim))
