"""What attention over a split sequence sends and computes, declared without torch.

Every number is a function of shapes alone: documents that make work empty save arithmetic but no communication, so that all
ranks always enter the same collectives.
"""

from dataclasses import dataclass
from math import lcm

from fourfold.model.traffic import Traffic
from fourfold.model.work import Attention, Join, Pass, Start, Work


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


def forward_work(shape: AttentionShape) -> list[Work]:
    """Kernels and collectives in the order of the operators; a collective that is in flight stands before what overlaps it."""
    before = _exchanges(shape, shape.head_elements)
    after = _exchanges(shape, shape.whole_tokens * shape.own_heads * shape.value_dim)
    return [*before, *_attend_forward(shape), *after]


def backward_work(shape: AttentionShape) -> list[Work]:
    """As `forward_work`."""
    before = _exchanges(shape, shape.whole_tokens * shape.own_heads * shape.value_dim)
    after = _exchanges(shape, shape.head_elements)
    return [*before, *_attend_backward(shape), *after]


def _attend_forward(shape: AttentionShape) -> list[Work]:
    own = _kernel(shape, 1, shape.own_heads)
    if shape.ring == 1:
        return [own]
    if shape.gather:
        front, back = _gathers(shape)
        others = _kernel(shape, (shape.ring - 1) / 2, shape.own_heads)
        return [front, back, own, Join(front.name), others, Join(back.name), others]
    work: list[Work] = [_shift(shape, 1), own]
    for step in range(1, shape.ring):
        work += [Join(f"keys {step}"), *([_shift(shape, step + 1)] if step + 1 < shape.ring else []), own]
    return work


def _attend_backward(shape: AttentionShape) -> list[Work]:
    """The own block's gradients in two parts, so that one is left to compute while the last sums are on their way."""
    if shape.ring == 1:
        return [_kernel(shape, 1, shape.own_heads, backward=True)]
    part = max(1, shape.own_kv_heads // 2) * shape.own_heads // shape.own_kv_heads
    first = _kernel(shape, 1, part, backward=True)
    rest = [_kernel(shape, 1, shape.own_heads - part, backward=True)] if part < shape.own_heads else []
    size = shape.key_value_elements * shape.wide_bytes
    if shape.gather:
        front, back = _gathers(shape)
        others = _kernel(shape, (shape.ring - 1) / 2, shape.own_heads, backward=True)
        sums = [
            Start(Traffic("reduce_scatter", "cp_ring", shape.ring * size // 2), f"{name} sums")
            for name in ("front", "back")
        ]
        middle: list[Work] = [Join(front.name), others, sums[0], Join(back.name), others, sums[1]]
        return [front, back, first, *middle, *rest, Join(sums[0].name), Join(sums[1].name)]
    work: list[Work] = [_shift(shape, 1), first]
    whole = _kernel(shape, 1, shape.own_heads, backward=True)
    for step in range(1, shape.ring):
        work += [Join(f"keys {step}"), *([_shift(shape, step + 1)] if step + 1 < shape.ring else []), whole]
        work += [Join(f"sums {step - 1}")] if step > 1 else []
        work.append(Start(Traffic("shift", "cp_ring", size), f"sums {step}"))
    return [*work, *rest, Join(f"sums {shape.ring - 1}")]


def _kernel(shape: AttentionShape, blocks: float, heads: int, backward: bool = False) -> Attention:
    """The rank's queries against `blocks` times as many keys: half of that square, as zig-zag leaves on every rank."""
    own = shape.tokens * shape.ulysses
    kv_heads = max(1, shape.own_kv_heads * heads // shape.own_heads)
    keys = int(own * blocks)
    return Attention(shape.sequences, own, keys, heads, kv_heads, shape.head_dim, shape.value_dim, backward)


def _shift(shape: AttentionShape, step: int) -> Start:
    """Keys and values go on to the next rank."""
    return Start(Traffic("shift", "cp_ring", shape.key_value_elements * shape.element_bytes), f"keys {step}")


def _gathers(shape: AttentionShape) -> tuple[Start, Start]:
    """All keys and values of the ring, front and back chunks apart."""
    traffic = Traffic("all_gather", "cp_ring", shape.ring * shape.key_value_elements * shape.element_bytes // 2)
    return Start(traffic, "front"), Start(traffic, "back")


def _exchanges(shape: AttentionShape, elements: int) -> list[Work]:
    """Front and back parts, apart; their numbers are copied to where they are sent from, and back."""
    if shape.ulysses == 1:
        return []
    size = elements * shape.element_bytes
    starts: list[Work] = [Start(Traffic("all_to_all", "cp_ulysses", size // 2), name) for name in ("front", "back")]
    return [Pass(2 * size, 0), *starts, Join("front"), Join("back"), Pass(2 * size, 0)]
