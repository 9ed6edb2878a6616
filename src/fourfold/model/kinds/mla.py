"""Multi-head latent attention (MLA; DeepSeek-V2, Liu et al. 2024, section 2.1).

Queries, keys and values come from low-rank latents, which every rank of `tp` computes of its own tokens; under sequence
parallelism the normed latents are brought together, not the hidden states. Pairs that are neighbours stay where they are, in q
and k alike, so that scores are those of transformers, which sorts them apart. YaRN's factor of the scores is in q. Symbols: T
tokens of a microbatch, t those whose hidden states this rank has, c q_lora_rank (hidden where queries have no latent), r
kv_lora_rank, d rope_head_dim; heads are this rank's.
"""

from dataclasses import dataclass
from typing import TypeVar

from fourfold.model.context.attention import attend_backward
from fourfold.model.kinds.attention import attended, output_backward, output_forward, spans
from fourfold.model.kinds.kind import Mixer, Pass
from fourfold.model.norm import apply_rms, rms_norm, rms_norm_backward
from fourfold.model.operations import Array
from fourfold.model.parameter import Declared, Parameters, ParameterSpec, Widths, column, gain, replicated, row
from fourfold.model.rope import Rope, rotate_
from fourfold.model.tensor_parallel import ColumnInput, InputSource, gather_tokens, replicated_backward, sum_partial
from fourfold.model.weights import Weight

T = TypeVar("T")
COMPRESSED_NORM_EPS = 1e-6
"""The epsilon of the latents' norms, in the released models and in transformers whatever the blocks' `norm_eps`."""


@dataclass(frozen=True)
class MLAParameters(Parameters[T]):
    """Down projections are unsplit on every rank, the others per head: output [hidden, heads value_head_dim], key_value_up [heads
    (nope_head_dim + value_head_dim), r], key_value_down [r + d, hidden], query_up [heads head_dim, c], query_down [c, hidden];
    norms of the latents."""

    output: T
    key_value_up: T
    key_value_down: T
    key_value_norm: T
    query_up: T
    query_down: T | None
    query_norm: T | None


@dataclass(frozen=True)
class MLA(Mixer):
    """A head's query and key have `nope_head_dim` + `rope_head_dim` elements, its value `value_head_dim`. `query_rank` None:
    queries have no latent."""

    num_heads: int
    key_value_rank: int
    rope_head_dim: int
    nope_head_dim: int
    value_head_dim: int
    query_rank: int | None = None
    rope: Rope | None = None
    window: int | None = None
    chunk: int | None = None

    @property
    def head_dim(self) -> int:
        return self.nope_head_dim + self.rope_head_dim

    @property
    def words(self) -> str:
        return f"MLA{spans(self.window, self.chunk)}"

    @property
    def divided(self) -> dict[str, int]:
        return {"model.num_heads": self.num_heads}

    def features(self, tp: int) -> dict[str, int]:
        heads = self.num_heads // tp
        low_rank = {"model.query_rank": self.query_rank} if self.query_rank is not None else {}
        return {
            **low_rank,
            "model.key_value_rank": self.key_value_rank,
            "num_heads / tp x nope_head_dim": heads * self.nope_head_dim,
            "num_heads / tp x value_head_dim": heads * self.value_head_dim,
            "num_heads / tp x head_dim": heads * self.head_dim,
        }

    def declare(self, widths: Widths) -> MLAParameters[Declared]:
        hidden, std, heads, rank = widths.hidden, widths.std, self.num_heads, self.key_value_rank

        def down(name: str, rows: int) -> ParameterSpec:
            return replicated(f"self_attn.{name}.weight", (rows, hidden), std, "sequence")

        def up(name: str, head_rows: tuple[int, ...], columns: int) -> ParameterSpec:
            return column(f"self_attn.{name}.weight", heads * sum(head_rows), columns, std, head_rows=head_rows)

        queries = heads * self.head_dim
        low = self.query_rank
        return MLAParameters(
            output=row("self_attn.o_proj.weight", hidden, heads * self.value_head_dim, widths.residual_std),
            key_value_up=up("kv_b_proj", (self.nope_head_dim, self.value_head_dim), rank),
            key_value_down=down("kv_a_proj_with_mqa", rank + self.rope_head_dim),
            key_value_norm=gain("self_attn.kv_a_layernorm.weight", rank),
            query_up=column("self_attn.q_proj.weight", queries, hidden, std)
            if low is None
            else up("q_b_proj", (self.head_dim,), low),
            query_down=None if low is None else down("q_a_proj", low),
            query_norm=None if low is None else gain("self_attn.q_a_layernorm.weight", low),
        )

    def forward(self, run: Pass, given: list[Array], w: MLAParameters[Weight], residual: Array | None = None) -> Array:
        """residual + attention(x) @ W_out^T. `given`: x [t, hidden], taken out of the list -> [t, hidden]. `residual` [t, hidden]
        None: it is yet to be added."""
        parts = self.query_key_value(run, given, w)
        return output_forward(run, attended(run, parts, self.window, self.chunk), w.output, residual)

    def backward(self, run: Pass, grad: Array, w: MLAParameters[Weight], source: InputSource) -> Array:
        """grad [t, hidden] of the output -> the gradient of the residual stream; adds the weights' gradients."""
        grads = attend_backward(run.env, [output_backward(run, grad, w.output)], run.saved)
        return self.query_key_value_backward(run, grads, w, source)

    def query_key_value(self, run: Pass, given: list[Array], w: MLAParameters[Weight]) -> list[Array]:
        """Projection to latents, their norms, projection to heads, rotation of the part of each head that has positions. `given`: x
        [t, hidden], taken out of the list -> q and k [batch, seq, heads, nope_head_dim + d], v [batch, seq, heads,
        value_head_dim]."""
        env, ops = run.env, run.ops
        rank, rope, x = self.key_value_rank, self.rope_head_dim, given.pop()
        down = env.gemms_of(rank + rope).linear(x, w.key_value_down.data)
        compressed, rope_key = down.split((rank, rope), dim=1)
        normed_compressed = self._norm_compressed(run, compressed, w.key_value_norm, "latent")
        query_input = x
        if w.query_down is not None and w.query_norm is not None:
            query_input = self._norm_compressed(run, env.gemms.linear(x, w.query_down.data), w.query_norm, "query")
        del x, compressed, down
        given += [normed_compressed, rope_key, query_input]
        del normed_compressed, rope_key, query_input
        _gather(run, given)
        q = self._heads(run, given.pop(), w.query_up, self.head_dim)
        with ops.fused():
            self._rotate_(run, q[..., self.nope_head_dim :])
            if self._score_scale != 1:
                q.mul_(self._score_scale)
        rope_key, compressed = given.pop(), given.pop()
        widths = (self.nope_head_dim, self.value_head_dim)
        key, value = self._heads(run, compressed, w.key_value_up, sum(widths)).split(widths, dim=-1)
        del compressed
        with ops.fused():
            shared = ops.copy(rope_key.reshape(*key.shape[:2], 1, -1))
            del rope_key
            self._rotate_(run, shared)
            k = ops.concatenate((key, shared.expand(*key.shape[:3], -1)), dim=-1)
            v = value.contiguous()
            del shared
        return [q, k, v]

    def query_key_value_backward(
        self, run: Pass, grads: list[Array], w: MLAParameters[Weight], source: InputSource
    ) -> Array:
        """The gradient of the residual stream [t, hidden]. `grads`: of q, k and v, taken out of the list."""
        env, ops = run.env, run.ops
        given = self._heads_backward(run, grads)
        x = source.input()
        query_norm = w.query_norm
        query_input = x if query_norm is None else self._norm_again(run, query_norm, "query")
        inputs = ColumnInput(env, w.query_up, query_input)
        latents = ColumnInput(env, w.key_value_up, self._norm_again(run, w.key_value_norm, "latent"))
        del query_input
        grad_query, grad_key_value, grad_rope_key = given
        given.clear()
        parts = [
            env.gemms.matmul(grad_key_value, w.key_value_up.data),
            grad_rope_key,
            env.gemms.matmul(grad_query, w.query_up.data),
        ]
        del grad_rope_key
        widths = [part.shape[1] for part in parts]
        with ops.fused():
            summed = sum_partial(ops.concatenate(parts, dim=1), env.parallel)
        parts.clear()
        inputs.add_matmul(grad_query)
        latents.add_matmul(grad_key_value)
        del inputs, latents, grad_query, grad_key_value
        grad_compressed, grad_rope_key, grad_input = summed.wait().split(widths, dim=1)
        del summed
        with ops.fused("norm"):
            grad_compressed = rms_norm_backward(ops, grad_compressed, *_taken(run, "latent"), w.key_value_norm)
            grad_down = ops.concatenate((grad_compressed, grad_rope_key), dim=1)
            del grad_compressed, grad_rope_key
        grad = replicated_backward(env, grad_down, w.key_value_down, x)
        del grad_down
        if query_norm is not None and w.query_down is not None:
            with ops.fused("norm"):
                grad_input = rms_norm_backward(ops, grad_input, *_taken(run, "query"), query_norm)
            grad_input = replicated_backward(env, grad_input, w.query_down, x)
        del x
        sums = [grad, grad_input]
        del grad, grad_input
        return source.gradient(lambda: sums.pop(0).add_(sums.pop()))

    @property
    def _score_scale(self) -> float:
        return 1.0 if self.rope is None else self.rope.score_scale

    def _rotate_(self, run: Pass, x: Array, inverse: bool = False) -> None:
        """In place, the elements of heads that have positions: x [batch, seq, heads, d]."""
        if self.rope is not None:
            rotate_(run.ops, x, *run.batch.rope[self.rope], self.rope.interleave, inverse)

    def _norm_compressed(self, run: Pass, compressed: Array, norm: Weight, name: str) -> Array:
        """The norm of a latent [t, rank], kept with the latent itself and its 1/rms."""
        with run.ops.fused("norm"):
            normed, scale = rms_norm(run.ops, compressed, norm.data, COMPRESSED_NORM_EPS)
        run.saved.keep(**{name: compressed, f"scale_{name}": scale, f"normed_{name}": normed})
        return normed

    def _norm_again(self, run: Pass, norm: Weight, name: str) -> Array:
        """A latent's norm, kept or made again."""
        saved, ops = run.saved, run.ops
        normed = saved.take_if_kept(f"normed_{name}")
        if normed is None:
            with ops.fused("norm"):
                normed = apply_rms(ops, saved.see(name), saved.see(f"scale_{name}"), norm.data, COMPRESSED_NORM_EPS)
        return normed

    def _heads(self, run: Pass, x: Array, up: Weight, width: int) -> Array:
        rows = run.batch.tokens.shape[0]
        return run.env.gemms.linear(x, up.data).view(rows, -1, up.data.shape[0] // width, width)

    def _heads_backward(self, run: Pass, grads: list[Array]) -> list[Array]:
        """Gradients of both up projections' outputs [T, heads x ...] and of the shared key [T, d], the last over this rank's
        heads."""
        ops, nope = run.ops, self.nope_head_dim
        grad_q, grad_k, grad_v = grads
        grads.clear()
        with ops.fused():
            grad_query = grad_q.contiguous()
            del grad_q
            if self._score_scale != 1:
                grad_query.mul_(self._score_scale)
            self._rotate_(run, grad_query[..., nope:], inverse=True)
        with ops.fused():
            grad_rope_key = grad_k[..., nope:].sum(-2, keepdim=True)
            self._rotate_(run, grad_rope_key, inverse=True)
            grad_key_value = ops.concatenate((grad_k[..., :nope], grad_v), dim=-1)
        tokens = grad_query.shape[0] * grad_query.shape[1]
        return [x.view(tokens, -1) for x in (grad_query, grad_key_value, grad_rope_key)]


def _taken(run: Pass, name: str) -> tuple[Array, Array]:
    """A latent and its 1/rms, no longer kept."""
    return run.saved.take(name), run.saved.take(f"scale_{name}")


def _gather(run: Pass, parts: list[Array]) -> None:
    """In place on the list: all tokens' latents, each [t, ...] -> [T, ...], in one collective."""
    if run.parallel.tp is None or not run.parallel.sequence:
        return
    widths = [part.shape[1] for part in parts]
    with run.ops.fused():
        local = run.ops.concatenate(parts, dim=1)
    full = gather_tokens(local, run.parallel).wait()
    parts[:] = full.split(widths, dim=1)
