"""What attention over a split sequence sends and computes, declared without torch.

Every number is a function of shapes alone: documents that make work empty save arithmetic but no communication, so that all
ranks always enter the same collectives.
"""

from dataclasses import dataclass
from math import lcm

from fourfold.model.traffic import Traffic


@dataclass(frozen=True)
class AttentionShape:
    """One rank's attention on one microbatch: `sequences` rows of `tokens` of its own, with all heads.

    `element_bytes`: of q, k and v. `ring`, `ulysses`, `gather`: as in `ContextParallel`. `documents`: whether rows are cut into
    documents. `exchange`: sums that are scattered need landing space (gloo), as in `Shape`.
    """

    sequences: int
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    element_bytes: int
    ring: int = 1
    ulysses: int = 1
    gather: bool = False
    documents: bool = False
    exchange: bool = True

    @property
    def wide_bytes(self) -> int:
        """Of sums over pieces and ranks, and of log-sum-exps."""
        return max(4, self.element_bytes)

    @property
    def whole_tokens(self) -> int:
        """Tokens, of all rows, that the rank attends from, after heads were exchanged."""
        return self.sequences * self.tokens * self.ulysses

    @property
    def sequence_length(self) -> int:
        return self.tokens * self.ring * self.ulysses

    @property
    def own_heads(self) -> int:
        """Query heads of a rank after the exchange."""
        return self.heads // self.ulysses

    @property
    def own_kv_heads(self) -> int:
        """Key and value heads after the exchange, copies included where they do not divide by the ranks."""
        return lcm(self.kv_heads, self.ulysses) // self.ulysses

    @property
    def width(self) -> int:
        """The head size of the kernels, to which the smaller one is padded."""
        return max(self.head_dim, self.value_dim)

    @property
    def key_value_elements(self) -> int:
        """Of the keys and values that a rank holds after the exchange."""
        return self.whole_tokens * self.own_kv_heads * (self.head_dim + self.value_dim)

    @property
    def head_elements(self) -> int:
        """Of q, k and v after the exchange."""
        return self.whole_tokens * self.own_heads * self.head_dim + self.key_value_elements

    @property
    def forward_flops(self) -> int:
        """Two products, each half of the square for causality; zig-zag gives every rank an even share."""
        products = self.head_dim + self.value_dim
        return self.sequences * self.tokens * self.sequence_length * self.heads * products

    @property
    def backward_flops(self) -> int:
        """Five products: the scores again, and the gradients of weights, values, queries and keys (Dao 2023)."""
        products = 3 * self.head_dim + 2 * self.value_dim
        return self.sequences * self.tokens * self.sequence_length * self.heads * products


def forward_collectives(shape: AttentionShape) -> tuple[Traffic, ...]:
    """In the order of starting."""
    before = _exchanges(shape, shape.head_elements)
    after = _exchanges(shape, shape.whole_tokens * shape.own_heads * shape.value_dim)
    return (*before, *_keys_arrive(shape), *after)


def backward_collectives(shape: AttentionShape) -> tuple[Traffic, ...]:
    """In the order of starting."""
    before = _exchanges(shape, shape.whole_tokens * shape.own_heads * shape.value_dim)
    after = _exchanges(shape, shape.head_elements)
    size = shape.key_value_elements * shape.wide_bytes
    if shape.ring == 1:
        return (*before, *after)
    if shape.gather:
        scatter = Traffic("reduce_scatter", "cp_ring", shape.ring * size // 2)
        return (*before, *_keys_arrive(shape), scatter, scatter, *after)
    first, *rest = _keys_arrive(shape)
    gradients = Traffic("shift", "cp_ring", size)
    middle = [each for keys in rest for each in (keys, gradients)]
    return (*before, first, *middle, gradients, *after)


def _keys_arrive(shape: AttentionShape) -> list[Traffic]:
    """All keys and values of the ring, one rank's after the other or front and back chunks at once."""
    size = shape.key_value_elements * shape.element_bytes
    if shape.gather and shape.ring > 1:
        return [Traffic("all_gather", "cp_ring", shape.ring * size // 2)] * 2
    return [Traffic("shift", "cp_ring", size)] * (shape.ring - 1)


def _exchanges(shape: AttentionShape, elements: int) -> list[Traffic]:
    """Front and back parts, apart."""
    if shape.ulysses == 1:
        return []
    return [Traffic("all_to_all", "cp_ulysses", elements * shape.element_bytes // 2)] * 2
