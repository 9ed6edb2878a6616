"""The groups that a segment's own collectives run over. A segment's function knows nothing else of other ranks or the mesh."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fourfold.model.operations import Array


class Pending(Protocol):
    """A started collective."""

    def wait(self) -> None: ...


class Group(Protocol):
    """The ranks along some axes, seen from one of them. Every method starts a collective and returns at once; what it reads and
    fills belongs to it until `wait` has returned. All tensors are contiguous; parts are equal unless rows are stated."""

    size: int
    index: int

    def all_gather(self, full: Array, shard: Array) -> Pending:
        """Fills `full` [size * n, ...] with every rank's `shard` [n, ...]."""
        ...

    def sum_scatter(self, full: Array, into: Array) -> Pending:
        """`into` [n, ...] = this rank's part of the sum of every rank's `full` [size * n, ...]."""
        ...

    def all_reduce(self, full: Array) -> Pending:
        """Sums `full` over the group in place."""
        ...

    def all_to_all(
        self,
        received: Array,
        sent: Array,
        received_rows: Sequence[int] | None = None,
        sent_rows: Sequence[int] | None = None,
    ) -> Pending:
        """Part i of `sent` goes to rank i of the group, part i of `received` comes from it. Without their rows, parts are equal."""
        ...

    def shift(self, received: Sequence[Array], sent: Sequence[Array], back: bool = False) -> Pending:
        """`sent` goes to the next rank of the group, `received` comes from the one before (a ring); `back`: the other way."""
        ...


@dataclass(frozen=True)
class ContextParallel:
    """How the sequence is split. `ring` x `ulysses` ranks (None: one); `gather`: keys and values are all-gathered over `ring`
    instead of rotating.

    With R ring ranks the sequence is cut into 2R chunks, and ring rank r has chunks r and 2R - 1 - r (zig-zag); documents that are
    kept apart may be placed otherwise (`context/placement.py`). Ulysses rank u of U has part u of each half of its ring rank's
    tokens.
    """

    ring: Group | None = None
    ulysses: Group | None = None
    gather: bool = False


@dataclass(frozen=True)
class Parallel:
    """The groups of one rank; None where a degree is 1.

    `sequence`: the residual stream, [tokens, hidden] of a microbatch laid flat, is split evenly by tokens over `tp`.
    `tp_copies`: ranks of `tp` that hold the same key and value heads (1 unless kv heads < tp).
    `scales`: the ranks of `cp` and `tp`, which share the scales of low-precision operands that they hold parts of.
    """

    tp: Group | None = None
    sequence: bool = False
    tp_copies: int = 1
    context: ContextParallel | None = None
    ep: Group | None = None
    etp: Group | None = None
    scales: Group | None = None


ALONE = Parallel()
"""One rank holds all of the model and of the sequence."""
