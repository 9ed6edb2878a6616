"""What one pass over a segment does, in order: kernels, and collectives started and joined. What a cost model prices.

`bytes` of a pass over memory are those of the runtime's own operators, one after the other; `least_bytes` those of one fused
kernel, which reads its inputs once and writes its outputs once.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fourfold.model.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product [rows, inner] x [inner, columns]. `accumulates`: added to what is there, as weight gradients are. `groups`:
    its tokens, which are its rows or those of `inner` where it accumulates, are divided among so many experts."""

    rows: int
    columns: int
    inner: int
    accumulates: bool = False
    groups: int = 1

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.columns * self.inner


@dataclass(frozen=True, slots=True)
class Attention:
    """Flash attention of `queries` tokens a sequence over `keys` tokens, half of the square computed for causality.

    Forward: two products; backward: five, the scores being made again (Dao 2023). `query_key_dim` and `value_dim`: a head's sizes.
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


PassPart = Literal["", "sent", "sorted", "experts"]
"""Of passes that a kernel beside them may do on its way. `sent`: rows of tokens are written where they are sent from, or summed
where they come back; `sorted`: by expert, or back; `experts`: between two products of experts."""


@dataclass(frozen=True, slots=True)
class Pass:
    """`launches` operators that do little arithmetic on what they read and write: `bytes` in all."""

    bytes: int
    least_bytes: int
    launches: int = 1
    part: PassPart = ""

    @property
    def flops(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Start:
    """A collective is started, to be joined by its `name`; what stands between overlaps with it."""

    traffic: Traffic
    name: str

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


Work = Product | Attention | Pass | Start | Join


@dataclass(frozen=True)
class Phase:
    """One pass over a segment, or a half of it."""

    work: tuple[Work, ...] = ()

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Passes are looked up far more often than they are made."""
        return hash(self.work)

    @cached_property
    def flops(self) -> int:
        """Of all its kernels."""
        return sum(item.flops for item in self.work)

    @cached_property
    def collectives(self) -> tuple[Traffic, ...]:
        """In the order of starting."""
        return tuple(item.traffic for item in self.work if isinstance(item, Start))


NOTHING = Phase()
