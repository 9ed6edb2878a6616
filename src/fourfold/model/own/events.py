"""A traced block as events: memory that comes and goes, kernels in order."""

from typing import NamedTuple

from fourfold.model.work import Item


class Made(NamedTuple):
    """Memory of this many bytes is there from now on."""

    number: int
    bytes: int


class Gone(NamedTuple):
    """The memory of that number is freed."""

    number: int


class Ran(NamedTuple):
    """A kernel, or several elementwise ones. `read`: the memory that it read by something else than a matmul."""

    item: Item
    read: tuple[int, ...]


Event = Made | Gone | Ran


class TracedBlock(NamedTuple):
    """One block on one microbatch. `plain`: a forward that keeps nothing. `forward`: one that keeps the numbers `saved` beside its
    output; `backward` frees these and leaves `gradient`, that of x."""

    plain: tuple[Event, ...]
    plain_output: int
    forward: tuple[Event, ...]
    output: int
    saved: tuple[int, ...]
    backward: tuple[Event, ...]
    gradient: int


class TracedShape(NamedTuple):
    """The key of a trace: x [batch, seq, hidden], number of dimensions and width of the tables, documents, formats."""

    sequences: int
    length: int
    tables: tuple[int, ...]
    documents: bool
    compute: str
    gradients: str
