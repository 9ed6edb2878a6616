"""Norms of queries and keys, of every head alone (Dehghani et al. 2023), or of all heads together (OLMo-2): then sums run over
`tp`.

x [batch, seq, heads + kv_heads, head_dim] are the local heads, queries first; both parts are normed in place.
"""

from dataclasses import dataclass
from typing import Literal

from fourfold.model.kinds.kind import Pass
from fourfold.model.norm import Norm, rms_norm, rms_norm_backward
from fourfold.model.operations import Array
from fourfold.model.parameter import ParameterSpec
from fourfold.model.weights import Weight

Weights = tuple[Weight, Weight]
"""Norms' weights of queries and of keys, [head_dim] each, or [heads head_dim] and [kv_heads head_dim]."""


@dataclass(frozen=True)
class QueryKeyNorm:
    """`of`: what is normed together, a head or all heads of a token. `weights`: whether the norms have some. Without,
    they are of heads, and stand behind the rotation (Llama 4)."""

    norm: Norm
    of: Literal["head", "all"] = "head"
    weights: bool = True

    def declare(self, name: str, heads: int, head_dim: int, kv_heads: bool) -> ParameterSpec:
        if self.of == "head":
            weight = self.norm.declare(name, head_dim, summed="always").weight
        else:
            rule = {"tensor_dim": 0, "kv_heads": kv_heads, "summed": "never"}
            weight = self.norm.declare(name, heads * head_dim, **rule).weight
        assert isinstance(weight, ParameterSpec)
        return weight

    def forward_(self, run: Pass, x: Array, heads: int, weights: Weights, widths: tuple[int, int]) -> None:
        """Norms x in place and keeps it as it was. `heads`: local ones of queries; `widths`: elements of all ranks' queries and
        keys of a token."""
        ops = run.ops
        if self.of == "head":
            with ops.fused("norm"):
                unnormed = x.clone()
                output, scale = rms_norm(ops, unnormed, self._gains(run, x, heads, weights), self.norm.eps)
                x.copy_(output)
                del output
            run.saved.keep(unnormed=unnormed, head_scale=scale)
            return
        with ops.fused("norm"):
            unnormed = x.clone()
        parts = [part.flatten(2) for part in _split(unnormed, heads)]
        with ops.fused("norm"):
            sums = [ops.vector_norm(ops.upcast(part)).square_() for part in parts]
        scales = _summed(run, sums)
        for part, into, weight, scale, width in zip(parts, _split(x, heads), weights, scales, widths, strict=True):
            with ops.fused("norm"):
                scale.div_(width).add_(self.norm.eps).rsqrt_()
                normed = (ops.upcast(part) * scale).to(x.dtype).mul_(self.norm.gain(weight))
                into.copy_(normed.view(into.shape))
                del normed
        run.saved.keep(unnormed=unnormed, head_scale=scales)

    def backward_(self, run: Pass, grad: Array, heads: int, weights: Weights, widths: tuple[int, int]) -> None:
        """In place on the gradient of what was normed; adds the weights' gradients."""
        ops = run.ops
        if self.of == "head":
            with ops.fused("norm"):
                self._heads_backward_(run, grad, heads, weights)
            return
        x, scale = run.saved.take("unnormed"), run.saved.take("head_scale")
        flat = [part.flatten(2) for part in _split(x, heads)]
        sums = []
        for into, part, s, weight, width in zip(_split(grad, heads), flat, scale, weights, widths, strict=True):
            with ops.fused("norm"):
                projected = (ops.upcast(into.flatten(2)) * ops.upcast(part)).mul_(s)
                weight.add(projected.flatten(0, 1).sum(0))
                sums.append((projected * ops.upcast(self.norm.gain(weight))).sum(-1, keepdim=True).div_(width))
                del projected
        means = _summed(run, sums)
        for into, part, s, weight, mean in zip(_split(grad, heads), flat, scale, weights, means, strict=True):
            with ops.fused("norm"):
                g = ops.upcast(into.flatten(2)) * ops.upcast(self.norm.gain(weight))
                g.addcmul_(ops.upcast(part), mean.mul_(s), value=-1).mul_(s)
                into.copy_(g.to(grad.dtype).view(into.shape))
                del g

    def plain_forward_(self, run: Pass, x: Array) -> None:
        """Norms every head of x in place, without weights, and keeps it as it was."""
        ops = run.ops
        with ops.fused("norm"):
            unnormed = x.clone()
            source = ops.upcast(unnormed)
            scale = ops.vector_norm(source).square_().div_(x.shape[-1]).add_(self.norm.eps).rsqrt_()
            x.copy_(source * scale)
            del source
        run.saved.keep(unnormed=unnormed, head_scale=scale)

    def plain_backward(self, run: Pass, *grads: Array) -> list[Array]:
        """The gradients of what was normed, queries' and keys', from those of the norms' outputs."""
        ops = run.ops
        x, scale = run.saved.take("unnormed"), run.saved.take("head_scale")
        heads, found = grads[0].shape[-2], []
        for grad, part, s in zip(grads, _split(x, heads), _split(scale, heads), strict=True):
            with ops.fused("norm"):
                g, source = ops.upcast(grad), ops.upcast(part)
                mean = (g * source).sum(-1, keepdim=True).div_(x.shape[-1]).mul_(s).mul_(s)
                found.append((source * mean).neg_().add_(g).mul_(s).to(grad.dtype))
                del g, source, mean
        return found

    def _heads_backward_(self, run: Pass, grad: Array, heads: int, weights: Weights) -> None:
        x, scale = run.saved.take("unnormed"), run.saved.take("head_scale")
        parts = zip(_split(grad, heads), _split(x, heads), _split(scale, heads), weights, strict=True)
        for g, part, s, weight in parts:
            ops, rows, gain = run.ops, (-1, x.shape[-1]), self.norm.gain(weight)
            result = rms_norm_backward(  # without a star, which would keep what is handed over
                ops, ops.copy(g).view(*rows), part.reshape(*rows), s.reshape(-1, 1), weight, None, gain
            )
            g.copy_(result.view_as(g))

    def _gains(self, run: Pass, x: Array, heads: int, weights: Weights) -> Array:
        """The gains, one row a head: [heads + kv_heads, head_dim]."""
        queries, keys = (self.norm.gain(weight) for weight in weights)
        return run.ops.concatenate((queries.expand(heads, -1), keys.expand(x.shape[-2] - heads, -1)))


def _split(x: Array, heads: int) -> tuple[Array, Array]:
    """Queries' part and keys'."""
    queries, keys = x.split((heads, x.shape[-2] - heads), dim=-2)
    return queries, keys


def _summed(run: Pass, sums: list[Array]) -> list[Array]:
    """Sums [batch, seq, 1] of queries and of keys over `tp`; ranks that hold copies of keys count them once."""
    tp = run.parallel.tp
    if tp is None:
        return sums
    both = run.ops.concatenate(sums, dim=-1)
    both[..., 1:].div_(run.parallel.tp_copies)
    tp.all_reduce(both).wait()
    return [run.ops.copy(part) for part in both.split((1, 1), dim=-1)]
