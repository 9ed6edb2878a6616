"""A layer: two halves in the residual stream, a mixer of tokens and a feed-forward, each with its norms; forward and backward.

    pre         x + f(norm(x))                      Llama, GPT-2
    post        x + norm(f(x))                      OLMo-2
    sandwich    x + norm(f(norm(x)))                Gemma-2

Whoever reads the residual stream next adds to it what a half gave, if that is a norm: one pass over both.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from fourfold.model.experts.parts import Parts
from fourfold.model.kinds.feed_forward import GatedFeedForward, PlainFeedForward
from fourfold.model.kinds.kind import Mixer, Pass
from fourfold.model.kinds.routed import RoutedFeedForward
from fourfold.model.norm import Norm, NormParameters, Statistics, normalize, normalize_again, normalize_backward
from fourfold.model.operations import Array
from fourfold.model.parameter import Declared, Parameters, ParameterSpec, Widths, mapped
from fourfold.model.weights import Weight

T = TypeVar("T")
FeedForward = GatedFeedForward | PlainFeedForward | RoutedFeedForward
Placement = Literal["pre", "post", "sandwich"]
NORMS: dict[Placement, tuple[tuple[str | None, str | None], tuple[str | None, str | None]]] = {
    "pre": (("input_layernorm", None), ("post_attention_layernorm", None)),
    "post": ((None, "post_attention_layernorm"), (None, "post_feedforward_layernorm")),
    "sandwich": (
        ("input_layernorm", "post_attention_layernorm"),
        ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    ),
}
"""The names of the norms before and after the mixer, and before and after the feed-forward."""


@dataclass(frozen=True)
class HalfNorms(Parameters[T]):
    """The norms before and after a half, where there are."""

    before: NormParameters[T] | None
    after: NormParameters[T] | None


@dataclass(frozen=True)
class LayerParameters(Parameters[T]):
    """In the order in which those with the same rule of sharding lie in a unit. `feed_forward`, `mixer`: as their kinds declare."""

    feed_forward: Any
    mixer: Any
    mixer_norms: HalfNorms[T]
    feed_forward_norms: HalfNorms[T]


@dataclass(frozen=True)
class Layer:
    """Layers with equal fields compute alike: whatever is recorded or priced of one holds for all of them."""

    mixer: Mixer
    feed_forward: FeedForward
    norm: Norm
    placement: Placement = "pre"

    @property
    def is_routed(self) -> bool:
        return isinstance(self.feed_forward, RoutedFeedForward)

    @property
    def words(self) -> str:
        """A name of its computation, as a person reads it."""
        return f"{self.mixer.words}, {self.feed_forward.words}"

    def declare(self, widths: Widths, prefix: str) -> LayerParameters[Declared]:
        """`prefix`: of the names of all its parameters."""
        norms = [
            HalfNorms(*(self.norm.declare(name, widths.hidden) if name is not None else None for name in names))
            for names in NORMS[self.placement]
        ]

        def named(declared: Declared) -> Declared:
            if isinstance(declared, ParameterSpec):
                return replace(declared, name=prefix + declared.name)
            return tuple(replace(each, name=prefix + each.name) for each in declared)

        found: LayerParameters[Declared] = mapped(
            LayerParameters(self.feed_forward.declare(widths), self.mixer.declare(widths), *norms), named
        )
        return found

    def forward(self, run: Pass, x: Array, w: LayerParameters[Weight]) -> Parts:
        """x [t, hidden] -> [t, hidden]. Pauses where experts' all-to-alls are ready to start."""
        return (yield from self.feed(run, self.mix(run, x, w), w, x))

    def backward(self, run: Pass, grad: Array, x: Array, w: LayerParameters[Weight]) -> Parts:
        """grad [t, hidden] of the output, x [t, hidden] as in forward -> the gradient of x; adds the weights' gradients. Pauses
        where experts' all-to-alls are ready to start."""
        return self.mix_backward(run, (yield from self.feed_backward(run, grad, w)), x, w)

    def mix(self, run: Pass, x: Array, w: LayerParameters[Weight]) -> Array:
        """The mixer's part of the residual stream, yet to be added to it. x [t, hidden] -> the same."""
        half = Half.of(run, "mixer", w.mixer_norms, self.norm)
        return half.leave(self.mixer.forward(half.run, half.enter(x), w.mixer))

    def mix_backward(self, run: Pass, grad: Array, x: Array, w: LayerParameters[Weight]) -> Array:
        """grad [t, hidden] of the sum of x and what `mix` made of it -> the gradient of x; adds the weights' gradients."""
        half = Half.of(run, "mixer", w.mixer_norms, self.norm)
        source = HalfSource(half, x, grad)
        return self.mixer.backward(half.run, half.leave_backward(grad), w.mixer, source)

    def feed(self, run: Pass, x: Array, w: LayerParameters[Weight], residual: Array | None = None) -> Parts:
        """x and what the feed-forward makes of it. x [t, hidden] -> the same. `residual` [t, hidden]: is first added to x, in its
        place."""
        half = Half.of(run, "feed_forward", w.feed_forward_norms, self.norm)
        given = half.enter(x, residual)
        half.run.saved.keep(x=x)
        joined = x if half.norms.after is None else None
        if isinstance(self.feed_forward, RoutedFeedForward):
            out = yield from self.feed_forward.forward(half.run, given, w.feed_forward, joined)
        else:
            out = self.feed_forward.forward(half.run, given, w.feed_forward, joined)
        return out if joined is not None else half.leave(out, x)

    def feed_backward(self, run: Pass, grad: Array, w: LayerParameters[Weight]) -> Parts:
        """grad [t, hidden] of what `feed` returned -> the gradient of the x that it read; adds the weights' gradients."""
        half = Half.of(run, "feed_forward", w.feed_forward_norms, self.norm)
        source = HalfSource(half, half.run.saved.take("x"), grad)
        inner = half.leave_backward(grad)
        if isinstance(self.feed_forward, RoutedFeedForward):
            return (yield from self.feed_forward.backward(half.run, inner, w.feed_forward, source))
        return self.feed_forward.backward(half.run, inner, w.feed_forward, source)


@dataclass(frozen=True)
class Half:
    """A half of a layer in the residual stream, without what it computes."""

    run: Pass
    norms: HalfNorms[Weight]
    norm: Norm

    @staticmethod
    def of(run: Pass, name: str, norms: HalfNorms[Weight], norm: Norm) -> "Half":
        return Half(replace(run, saved=run.saved.part(name)), norms, norm)

    def enter(self, x: Array, residual: Array | None = None) -> list[Array]:
        """The half's input [t, hidden], alone in a list. `residual` [t, hidden]: is first added to x, in its place."""
        if self.norms.before is None:
            return [x if residual is None else x.add_(residual)]
        normed, statistics = normalize(self.run.ops, self.norm, x, self.norms.before, residual)
        self.run.saved.keep(statistics=statistics, normed=normed)
        return [normed]

    def leave(self, out: Array, residual: Array | None = None) -> Array:
        """The half's output [t, hidden], normed where a norm stands after it. `residual` [t, hidden]: is added to that."""
        if self.norms.after is None:
            return out
        normed, statistics = normalize(self.run.ops, self.norm, out, self.norms.after)
        self.run.saved.keep(out=out, statistics_after=statistics)
        return normed if residual is None else normed.add_(residual)

    def leave_backward(self, grad: Array) -> Array:
        """The gradient of what the half computed [t, hidden], from that of its output, which stays as it is."""
        if self.norms.after is None:
            return grad
        ops, saved = self.run.ops, self.run.saved
        with ops.fused("norm"):
            out, statistics, after = saved.take("out"), saved.take("statistics_after"), self.norms.after
            return normalize_backward(ops, self.norm, ops.copy(grad), out, statistics, after)


class HalfSource:
    """The residual stream x [t, hidden] that a half read, and `residual`, the gradient of what goes past it."""

    def __init__(self, half: Half, x: Array, residual: Array) -> None:
        self._half, self._x, self._residual = half, x, residual
        self._statistics: Statistics = half.run.saved.take("statistics") if half.norms.before is not None else ()

    def input(self) -> Array:
        half = self._half
        if half.norms.before is None:
            return self._x
        normed = half.run.saved.take_if_kept("normed")
        if normed is None:
            normed = normalize_again(half.run.ops, half.norm, self._x, self._statistics, half.norms.before)
        return normed

    def gradient(self, combine: Callable[[], Array]) -> Array:
        ops, before = self._half.run.ops, self._half.norms.before
        with ops.fused("norm"):
            grad = combine()
            if before is None:
                return grad.add_(self._residual)
            return normalize_backward(ops, self._half.norm, grad, self._x, self._statistics, before, self._residual)
