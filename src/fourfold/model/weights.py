"""Weights as views of flat buffers: what a segment's function reads, and where its gradients are added."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from fourfold.model.low_precision import Gemms
from fourfold.model.operations import Array


class Deferred:
    """Deferred weight gradients (the W of zero-bubble schedules, Qi et al. 2023), in the order in which they were met.

    Each is held as a function that adds it, with the operands that it needs; `run` drops those one by one.
    """

    def __init__(self) -> None:
        self._additions: deque[tuple[Callable[[], None], Callable[[], None] | None]] = deque()

    def append(self, addition: Callable[[], None], begin: Callable[[], None] | None = None) -> None:
        """`begin` starts the collective that the addition waits for; it is called while the addition before it is yet to run."""
        self._additions.append((addition, begin))

    def __len__(self) -> int:
        return len(self._additions)

    def run(self) -> None:
        """Adds all that was deferred, once."""
        self._begin(0)
        while self._additions:
            self._begin(1)
            self._additions.popleft()[0]()

    def _begin(self, index: int) -> None:
        if index < len(self._additions):
            begin = self._additions[index][1]
            if begin is not None:
                begin()


class Weight:
    """A view of a unit's flat parameters and the matching view of its flat gradients.

    The views stay valid while the storage below them is freed and refilled. A gradient is added to what is there, except
    the first into a new buffer, whose content means nothing (`fresh`): that one is assigned, so nobody clears the buffer.
    While `deferred` is set, matmuls are deferred; what they read must then stay as it is until they run.
    """

    __slots__ = ("data", "deferred", "fresh", "grad")

    def __init__(self, data: Array, grad: Array) -> None:
        self.data = data
        self.grad = grad
        self.fresh = False
        self.deferred: Deferred | None = None

    def add_matmul(self, gemms: Gemms, grad_output: Array, inputs: Array) -> None:
        """grad += grad_output^T @ inputs, now or deferred. Shapes: [tokens, out], [tokens, in] -> [out, in]."""
        self.add_later(lambda: self.add_matmul_now(gemms, grad_output, inputs))

    def add_later(self, addition: Callable[[], None]) -> None:
        """Runs a function that adds to this gradient, now or deferred; what it reads must stay as it is until then."""
        if self.deferred is None:
            addition()
        else:
            self.deferred.append(addition)

    def add_matmul_now(self, gemms: Gemms, grad_output: Array, inputs: Array) -> None:
        """grad += grad_output^T @ inputs even while others are deferred: from within a deferred addition, or where it cannot
        wait."""
        gemms.accumulate(self.grad, grad_output, inputs, self.fresh)
        self.fresh = False

    def add(self, grad: Array) -> None:
        """Adds a gradient at once: sums for norms and biases are cheap."""
        if self.fresh:
            self.grad.copy_(grad)
            self.fresh = False
        else:
            self.grad.add_(grad)

    def clear_if_fresh(self) -> None:
        """Zeros where nothing was added yet: before adding to some rows alone, or where no gradient came."""
        if self.fresh:
            self.grad.zero_()
            self.fresh = False


class Shaped(Protocol):
    """A parameter, or one rank's part of it."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def numel(self) -> int: ...


class WeightUnit:
    """Named weights that are brought together, deferred and reduced as one."""

    def __init__(self) -> None:
        self._weights: dict[tuple[str, str | None], Weight] = {}

    def weight(self, first: str, last: str | None = None) -> Weight:
        """The parameter `first`, or the consecutive run `first`..`last` stacked along dim 0 (q, k, v as one matrix). The same
        object every time, so that segments which share a parameter add to it as one."""
        weight = self._weights.get((first, last))
        if weight is None:
            weight = self._weights[first, last] = self.make(first, last)
        return weight

    @property
    def made(self) -> Mapping[tuple[str, str | None], Weight]:
        """The weights that were asked for, by first and last parameter."""
        return self._weights

    def make(self, first: str, last: str | None) -> Weight:
        """A weight that nobody has asked for yet."""
        raise NotImplementedError

    def set_deferred(self, deferred: Deferred | None) -> None:
        for weight in self._weights.values():
            weight.deferred = deferred


class FlatUnit(WeightUnit):
    """One unit's flat parameters and gradients with a named view for each run of consecutive parameters."""

    def __init__(self, contents: Sequence[Shaped], parameters: Array, gradients: Array) -> None:
        super().__init__()
        self.parameters = parameters
        self.gradients = gradients
        self.numel = sum(spec.numel for spec in contents)
        self._ranges: dict[str, tuple[int, int, Shaped]] = {}
        offset = 0
        for spec in contents:
            self._ranges[spec.name] = (offset, offset + spec.numel, spec)
            offset += spec.numel

    def make(self, first: str, last: str | None) -> Weight:
        start, end, spec = self._ranges[first]
        if last is not None:
            end = self._ranges[last][1]
        shape = (-1, *spec.shape[1:])
        return Weight(self.parameters[start:end].view(shape), self.gradients[start:end].view(shape))

    def begin_gradients(self) -> None:
        """The gradient buffer is new: its padding is cleared, the rest is assigned by the first gradients."""
        if self.numel < len(self.gradients):
            self.gradients[self.numel :].zero_()
        for weight in self._weights.values():
            weight.fresh = True

    def settle_gradients(self) -> None:
        """Clears what got no gradient."""
        for weight in self._weights.values():
            weight.clear_if_fresh()


@contextmanager
def deferring(units: Iterable[WeightUnit]) -> Iterator[Deferred]:
    """Within the block, the units' weight gradients that are matmuls are deferred into the object that it yields."""
    units, deferred = list(units), Deferred()
    for unit in units:
        unit.set_deferred(deferred)
    try:
        yield deferred
    finally:
        for unit in units:
            unit.set_deferred(None)


@dataclass(frozen=True)
class EmbeddingWeights:
    """The embedding [this rank's part of vocab, hidden] and, where positions are learned, their table [max_position, hidden]."""

    tokens: Weight
    positions: Weight | None = None


@dataclass(frozen=True)
class AttentionWeights:
    """Grouped-query attention: qkv [(heads + 2 kv_heads) head_dim, hidden], output [hidden, heads head_dim], local heads.
    `norm_bias`: of a LayerNorm; `output_bias` [hidden] is unsplit on every rank."""

    norm: Weight
    qkv: Weight
    qkv_bias: Weight | None
    query_norm: Weight | None
    key_norm: Weight | None
    output: Weight
    norm_bias: Weight | None = None
    output_bias: Weight | None = None


@dataclass(frozen=True)
class MLAWeights:
    """Multi-head latent attention (DeepSeek-V2, section 2.1). Down projections are unsplit on every rank, the others per head:
    query_up [heads head_dim, query_rank or hidden], key_value_down [key_value_rank + rope_head_dim, hidden],
    key_value_up [heads (nope_head_dim + value_head_dim), key_value_rank], output [hidden, heads value_head_dim]."""

    norm: Weight
    query_down: Weight | None
    query_norm: Weight | None
    query_up: Weight
    key_value_down: Weight
    key_value_norm: Weight
    key_value_up: Weight
    output: Weight
    norm_bias: Weight | None = None


@dataclass(frozen=True)
class FeedForwardWeights:
    """SwiGLU: gate_up [2 ffn, hidden], down [hidden, ffn], this rank's part of ffn."""

    norm: Weight
    gate_up: Weight
    down: Weight
    norm_bias: Weight | None = None


@dataclass(frozen=True)
class PlainFeedForwardWeights:
    """A feed-forward without a gate: up [ffn, hidden], up_bias [ffn], down [hidden, ffn], this rank's part of ffn; down_bias
    [hidden] is unsplit on every rank."""

    norm: Weight
    up: Weight
    down: Weight
    norm_bias: Weight | None = None
    up_bias: Weight | None = None
    down_bias: Weight | None = None


@dataclass(frozen=True)
class RoutedWeights:
    """Mixture of experts: router [experts, hidden]; this rank's experts gate_up [experts, 2, ffn, hidden], down [experts,
    hidden, ffn]; `shared`: the experts that every token passes, after the same norm."""

    norm: Weight
    router: Weight
    gate_up: Weight
    down: Weight
    shared: FeedForwardWeights | None
    norm_bias: Weight | None = None


@dataclass(frozen=True)
class BlockWeights:
    """The two halves of a decoder block."""

    attention: AttentionWeights | MLAWeights
    feed_forward: FeedForwardWeights | PlainFeedForwardWeights | RoutedWeights


@dataclass(frozen=True)
class HeadWeights:
    """Final norm [hidden] and unembedding [this rank's part of vocab, hidden]: the embedding itself where they are tied."""

    norm: Weight
    unembedding: Weight
    norm_bias: Weight | None = None
    depth_norms: tuple[Weight, ...] = ()
    """In place of `norm`, for the MTP modules."""


@dataclass(frozen=True)
class ModuleWeights:
    """An MTP module: norms [hidden] of embedding and hidden state, projection [hidden, 2 hidden], a block."""

    embedding: EmbeddingWeights
    embedding_norm: Weight
    hidden_norm: Weight
    projection: Weight
    block: BlockWeights


@dataclass(frozen=True)
class OwnWeights:
    """A person's own block: its parameters by the names that it declares."""

    parameters: Mapping[str, Weight]


Weights = EmbeddingWeights | BlockWeights | ModuleWeights | OwnWeights | HeadWeights
