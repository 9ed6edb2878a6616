"""Opcodes: one row an operation, from which every other table of operations derives.

The core's stand in `ops.py`, a capability's in its own room; `capabilities.py` has all. Letters in a row name other operations.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Literal, Self

Names = Literal[
    "nothing", "microbatch", "segment", "transfer", "unit", "unit of a microbatch", "segment or unit", "instruction"
]
Pass = Literal["forward", "backward", "recomputation", "replay"]
Started = Literal["collective", "all-to-all", "send", "receive", "copy"]

COMPUTE, GROUP, SHARDS = "compute", "group", "shards"
"""Streams: the device's own computation, that of a collective's group, that of the group of a unit's shards."""
HOST_STREAMS = TO_HOST, FROM_HOST = "to_host", "from_host"
"""The two directions of the link to the host, a stream each."""
SMALL_SUMS = "norm and other sums"
"""The kind of time of sums of a few numbers over ranks, and of instructions that state no other."""


@dataclass(frozen=True)
class OpInfo:
    """A row of the table. Fields that a row leaves out are those of an operation of training alone, on the compute stream."""

    letter: str
    """The first word of the short form and of a line of text."""
    meaning: str
    """A few plain words, for legends."""
    does: str
    """A sentence for the documentation, in Markdown, without its subject."""
    names: Names = "nothing"
    """The thing that its instructions name: `F b3 m0` a segment of a microbatch, `G b3` a unit, `S> b4 m0 r1` a transfer's end."""
    reads: tuple[str, ...] = ()
    """Kinds of buffers that it may read; it may also free those, as their last reader."""
    writes: tuple[str, ...] = ()
    """Kinds of buffers that it may write."""
    frees: tuple[str, ...] = ()
    """Kinds of buffers that it frees without having read them."""
    fills: bool = False
    """Whether it fills what it writes anew, so that none of it may be live before."""
    evaluates: bool = False
    """Whether evaluations have it too; all others are of training steps alone."""
    computes: Pass | None = None
    """The pass over a segment that it is, or is a part of."""
    starts: Started | None = None
    """The thing that it starts, for a WAIT to join."""
    stream: str = COMPUTE
    """The stream that it runs on."""
    carries: str | None = None
    """The content of a send, a receive or an all-to-all; a send and a receive with the same are two ends of a transfer."""
    part_of: str | None = None
    """The letter of the pass that it is a part of, where that pass runs in parts (`overlap/parts.py`)."""
    place: int = 0
    """The place among the computing parts of that pass, or among the all-to-alls between them."""
    rest: str | None = None
    """The letter of the operation that writes the rest of a new gradient of which it writes a part."""
    phase: str | None = None
    """The phase of the step that its kernels belong to."""
    time: str | None = None
    """The kind of time that it takes by itself, where that is no communication over its group and no kernels by their kinds."""
    colour: str | None = None
    """The letter of the operation whose colour it has (`report/palette.py`); None: it is drawn as other work."""

    @property
    def is_silent(self) -> bool:
        """Whether it declares nothing: it computes nothing, sends nothing, and names no buffer but to free it."""
        return not (self.reads or self.writes or self.starts or self.computes)


class Opcode(Enum):
    """An operation of programs. `value` is the letter, `info` the row, `words` the name in small letters; the rest says what the
    row does, for whoever asks at every instruction."""

    _value_: str
    info: OpInfo
    words: str
    is_compute: bool
    """Whether it is a pass over a segment, or a part of one."""
    is_forward: bool
    is_backward: bool
    adds_gradients: bool
    """Whether it is a pass that adds to gradients, or stands for what they add."""
    is_start: bool
    """Whether it starts what a WAIT joins."""
    is_all_to_all: bool
    is_host_copy: bool
    is_send: bool
    is_receive: bool
    is_reduction: bool
    """Whether it sums a unit's gradient over data-parallel ranks."""
    is_transfer: bool
    """Whether it is an end of a transfer between stages."""
    fills: bool

    def __new__(cls, info: OpInfo) -> Self:
        op = object.__new__(cls)
        op._value_, op.info = info.letter, info
        op.is_compute, op.fills = info.computes is not None, info.fills
        op.is_forward, op.is_backward = info.computes == "forward", info.computes == "backward"
        op.adds_gradients = op.is_compute and "grad" in info.writes
        op.is_start, op.is_all_to_all, op.is_host_copy = (
            info.starts is not None,
            info.starts == "all-to-all",
            info.starts == "copy",
        )
        op.is_send, op.is_receive = info.starts == "send", info.starts == "receive"
        op.is_reduction = info.stream == SHARDS
        op.is_transfer = op.is_send or op.is_receive
        return op

    def __init__(self, info: OpInfo) -> None:
        self.words = self.name.lower().replace("_", " ")

    __hash__ = object.__hash__  # members are single objects; Enum's own hash is a Python function, and slow
