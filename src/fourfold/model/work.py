"""The work of an instruction, in order: kernels, and collectives started and joined. A cost model prices it.

`bytes` of elementwise kernels are those of the runtime's own, one after the other; `least_bytes` those of one fused kernel, which
reads its inputs once and writes its outputs once.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matmul [rows, inner] x [inner, columns]. `accumulates`: added to what is there, as weight gradients are. `groups`:
    its tokens, which are its rows or those of `inner` where it accumulates, are divided among this many experts. `dtype`: the
    recipe by which both operands were quantized before it; empty: they are in the run's format. `batch`: so many of these sizes,
    each with matrices of its own."""

    rows: int
    columns: int
    inner: int
    accumulates: bool = False
    groups: int = 1
    dtype: str = ""
    batch: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.rows * self.columns * self.inner


@dataclass(frozen=True, slots=True)
class Attention:
    """Flash attention of `queries` tokens a sequence over `keys` tokens, half of the square computed for causality.

    Forward: two matmuls; backward: five, the scores being made again (Dao 2023). `query_key_dim` and `value_dim`: a head's sizes.
    """

    sequences: int
    queries: int
    keys: int
    heads: int
    kv_heads: int
    query_key_dim: int
    value_dim: int
    backward: bool = False

    @property
    def flops(self) -> int:
        square = self.sequences * self.queries * self.keys * self.heads
        widths = (3 if self.backward else 1) * self.query_key_dim + (2 if self.backward else 1) * self.value_dim
        return square * widths


ElementwisePart = Literal["", "sent", "sorted", "experts", "quantized", "norm", "rotary", "loss"]
"""Kinds of memory-bound kernels. Another kernel may do some of them on its way: `sent`: rows of tokens are written where they are
sent from, or summed where they come back; `sorted`: by expert, or back; `experts`: between two matmuls of experts; `quantized`: a
matmul's operand is rounded to 8 bits. For others software may have a kernel: `norm`, `rotary`, `loss`."""


@dataclass(frozen=True, slots=True)
class Elementwise:
    """`launches` memory-bound kernels that read and write `bytes` in all."""

    bytes: int
    least_bytes: int
    launches: int = 1
    part: ElementwisePart = ""

    @property
    def flops(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Copies of `bytes` in all over the device's link to its host's memory: there, or (not `to_host`) back. They run beside
    kernels; `copies`: how many the host issues."""

    to_host: bool
    bytes: int
    copies: int = 1

    @property
    def flops(self) -> int:
        return 0


CollectiveKind = Literal["all_gather", "reduce_scatter", "all_reduce", "all_to_all", "shift", "send", "recv"]


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a group. `axes` names the group (`tp`, `cp_ring`, `dp_replicate+dp_shard`); `bytes` is the full buffer's
    size: what all_gather produces, what reduce_scatter, all_reduce and all_to_all consume, what a send or a shift sends."""

    kind: CollectiveKind
    axes: str
    bytes: int
    group_size: int

    @property
    def sent_bytes(self) -> int:
        """Bytes that one rank sends, as in a ring: (N-1)/N of the buffer, twice that for an all-reduce (Patarasuk & Yuan 2009)."""
        return sent_bytes(self.kind, self.bytes, self.group_size)


def sent_bytes(kind: str, buffer_bytes: int, group_size: int) -> int:
    """Bytes one rank sends in a collective over `group_size` ranks on a buffer of `buffer_bytes`."""
    if kind in ("send", "shift"):
        return buffer_bytes
    if kind == "recv":
        return 0
    factor = 2 if kind == "all_reduce" else 1
    return factor * (group_size - 1) * buffer_bytes // group_size


@dataclass(frozen=True, slots=True)
class Start:
    """A collective is started, to be joined by its `name`; what stands between overlaps with it. Without a name, a later
    instruction joins it."""

    collective: Collective
    name: str = ""

    @property
    def flops(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Join:
    """The collective `name` is waited for."""

    name: str

    @property
    def flops(self) -> int:
        return 0


Item = Gemm | Attention | Elementwise | HostCopy | Start | Join


@dataclass(frozen=True)
class Work:
    """The kernels and collectives of an instruction, in order."""

    items: tuple[Item, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Work is looked up far more often than it is made."""
        return hash(self.items)

    @cached_property
    def flops(self) -> int:
        """FLOPs of all its kernels."""
        return sum(item.flops for item in self.items)

    @cached_property
    def elementwise_bytes(self) -> int:
        """Bytes that its elementwise kernels read and write."""
        return sum(item.bytes for item in self.items if isinstance(item, Elementwise))

    @cached_property
    def host_bytes(self) -> int:
        """Bytes that it copies to or from its host's memory."""
        return sum(item.bytes for item in self.items if isinstance(item, HostCopy))

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """In the order of starting."""
        return tuple(item.collective for item in self.items if isinstance(item, Start))


NOTHING = Work()


def sends(*collectives: Collective) -> Work:
    """Collectives one after the other, which a later instruction joins."""
    return Work(tuple(map(Start, collectives)))


def without_foreign_joins(work: Work) -> Work:
    """Work without joins of what other work has started: what a part of a pass does."""
    started: set[str] = set()
    kept = []
    for item in work.items:
        if isinstance(item, Start):
            started.add(item.name)
        if not isinstance(item, Join) or item.name in started:
            kept.append(item)
    return Work(tuple(kept))


def touches(size: int) -> Work:
    """One elementwise kernel that reads and writes this many bytes."""
    return Work((Elementwise(size, size),))


class SavedParts(NamedTuple):
    """Parts of what a segment saves for backward, in bytes: `operands`, which matmuls alone read, and `attended`, attention's
    output, which its own backward reads beside a matmul. Software that keeps operands in a low-precision format
    holds less of the first."""

    operands: int = 0
    attended: int = 0


NO_PARTS = SavedParts()
