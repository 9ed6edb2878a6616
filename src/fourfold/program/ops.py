"""Operations of programs: one row an operation, from which every other table of operations derives.

To add an operation, add its row here, a pass that places its instructions, what it must declare (`declared.py`), and the executor's
handler. Letters in a row name other operations.
"""

from dataclasses import dataclass
from enum import Enum, unique
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
    """The letter of the pass that it is a part of, where that pass runs in parts (`parts.py`)."""
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


@unique
class Op(Enum):
    """Operations. `value` is the letter, `info` the row, `words` the name in small letters."""

    _value_: str
    info: OpInfo
    words: str

    def __new__(cls, info: OpInfo) -> Self:
        op = object.__new__(cls)
        op._value_, op.info = info.letter, info
        return op

    def __init__(self, info: OpInfo) -> None:
        self.words = self.name.lower().replace("_", " ")

    # fmt: off
    LOAD = OpInfo("L", "load a microbatch", "fetches a microbatch", names="microbatch", writes=("batch",), fills=True,
        evaluates=True)
    COUNT = OpInfo("N", "count valid target tokens",
        "starts to sum the valid target tokens over all data ranks: the [loss's one divisor](decisions/one_loss_rule.md)",
        evaluates=True, starts="collective", stream=GROUP, time=SMALL_SUMS)
    FORWARD = OpInfo("F", "forward",
        "runs a segment and keeps the activations that its backward needs; in parts, up to the dispatch", names="segment",
        reads=("batch", "hidden", "params", "rope", "router"), writes=("dispatched", "hidden", "saved"), evaluates=True,
        computes="forward", phase="forward", colour="F")
    RECOMPUTE = OpInfo("K", "recompute the forward",
        "runs a segment's forward again to rebuild what the backward needs ([activation "
        "recomputation](glossary.md#activation-recomputation))", names="segment",
        reads=("batch", "hidden", "params", "rope", "router"), writes=("saved",), fills=True, computes="recomputation",
        phase="recomputation", time="recomputation", colour="K")
    BACKWARD = OpInfo("B", "backward",
        "computes the gradients of the input and of the weights; the head's also does its forward, chunk by chunk; in "
        "parts, up to the dispatch", names="segment", reads=("batch", "dhidden", "hidden", "params", "router", "saved"),
        writes=("ddispatched", "dhidden", "grad", "router"), computes="backward", phase="backward", colour="B")
    BACKWARD_INPUT = OpInfo("I", "input gradient",
        "computes the gradient of the input alone ([split backward](glossary.md#split-backward))", names="segment",
        reads=("batch", "dhidden", "hidden", "params", "router", "saved"), writes=("deferred", "dhidden", "grad", "router"),
        computes="backward", rest="W", phase="backward, inputs", colour="I")
    BACKWARD_WEIGHT = OpInfo("W", "weight gradient", "computes the gradient of the weights alone", names="segment",
        reads=("deferred",), writes=("grad",), computes="backward", phase="backward, weights", colour="W")
    REPLAY = OpInfo("J", "compute once more and compare",
        "runs forward and backward of a segment once more, and compares the bits with those of the first time", names="segment",
        reads=("batch", "dhidden", "grad", "hidden", "params", "rope", "router"), writes=("grad",), computes="replay")
    DISPATCH_TOKENS = OpInfo("D>", "send tokens to their experts",
        "starts the all-to-all of tokens to the ranks of their experts ([below](#dispatch-and-combine))", names="segment",
        reads=("dispatched",), writes=("dispatched",), starts="all-to-all", stream=GROUP, carries="tokens", part_of="F", place=0)
    DISPATCH_GRADIENT = OpInfo("D<", "send gradients to the experts",
        "starts the all-to-all of the outputs' gradients to the ranks of the experts", names="segment", reads=("ddispatched",),
        writes=("ddispatched",), starts="all-to-all", stream=GROUP, carries="gradients of outputs", part_of="B", place=0)
    EXPERTS_FORWARD = OpInfo("E>", "experts forward", "runs the experts on the rows that came, and the shared experts",
        names="segment", reads=("dispatched", "params"), writes=("combined",), computes="forward", part_of="F", place=1,
        phase="forward", colour="F")
    EXPERTS_BACKWARD = OpInfo("E<", "experts backward", "runs the experts backward on the rows that came, and the shared experts",
        names="segment", reads=("ddispatched", "dhidden", "params", "router"), writes=("dcombined", "grad", "router"),
        computes="backward", part_of="B", place=1, rest="Z<", phase="backward", colour="B")
    COMBINE_TOKENS = OpInfo("C>", "send outputs back", "starts the all-to-all of the experts' outputs back", names="segment",
        reads=("combined",), writes=("combined",), starts="all-to-all", stream=GROUP, carries="outputs", part_of="F", place=1)
    COMBINE_GRADIENT = OpInfo("C<", "send gradients back", "starts the all-to-all of the tokens' gradients back", names="segment",
        reads=("dcombined",), writes=("dcombined",), starts="all-to-all", stream=GROUP, carries="gradients of tokens",
        part_of="B", place=1)
    FINISH_FORWARD = OpInfo("Z>", "rest of the forward", "adds up what came back; what the backward needs is complete",
        names="segment", reads=("combined", "hidden"), writes=("hidden", "saved"), computes="forward", part_of="F", place=2,
        phase="forward", colour="F")
    FINISH_BACKWARD = OpInfo("Z<", "rest of the backward",
        "adds up what came back; computes the gradients of router and attention", names="segment",
        reads=("batch", "dcombined", "dhidden", "hidden", "params", "router"), writes=("dhidden", "grad", "router"),
        computes="backward", part_of="B", place=2, phase="backward", colour="B")
    OFFLOAD = OpInfo("O>", "offload to the host",
        "starts to copy a segment's activations, or a unit's optimizer states, to the host's memory ([below](#offload))",
        names="segment or unit", reads=("master", "optimizer", "saved"), writes=("host_master", "host_optimizer", "host_saved"),
        starts="copy", stream=TO_HOST)
    FETCH = OpInfo("O<", "fetch from the host", "starts to copy them back", names="segment or unit",
        reads=("host_master", "host_optimizer", "host_saved"), writes=("master", "optimizer", "saved"), fills=True, starts="copy",
        stream=FROM_HOST)
    SEND_ACTIVATION = OpInfo("S>", "send activations", "starts to send hidden states for the segment to the rank that has it",
        names="transfer", reads=("hidden",), evaluates=True, starts="send", stream=GROUP, carries="activations")
    SEND_GRADIENT = OpInfo("S<", "send their gradient", "starts to send their gradient back", names="transfer",
        reads=("dhidden",), starts="send", stream=GROUP, carries="gradients")
    RECV_ACTIVATION = OpInfo("R>", "receive activations", "starts to receive hidden states for the segment", names="transfer",
        writes=("hidden",), fills=True, evaluates=True, starts="receive", stream=GROUP, carries="activations")
    RECV_GRADIENT = OpInfo("R<", "receive their gradient", "starts to receive their gradient", names="transfer",
        writes=("dhidden",), fills=True, starts="receive", stream=GROUP, carries="gradients")
    GATHER = OpInfo("G", "all-gather parameters (ZeRO-3)", "starts the all-gather of a unit's parameters (ZeRO-3)", names="unit",
        reads=("shard",), writes=("params",), fills=True, evaluates=True, starts="collective", stream=GROUP)
    FREE = OpInfo("X", "free gathered parameters", "frees the gathered parameters", names="unit", frees=("params",),
        evaluates=True)
    REDUCE = OpInfo("R", "reduce gradients", "starts to sum a unit's gradients over the data-parallel ranks",
        names="unit of a microbatch", reads=("grad",), writes=("grad", "grad_shard", "reduce"), starts="collective",
        stream=SHARDS)
    REDUCE_TIED = OpInfo("T", "reduce tied gradients", "starts to sum the gradients of a tensor that two stages share",
        names="unit", reads=("grad", "grad_shard"), writes=("grad", "grad_shard"), starts="collective", stream=GROUP)
    SUM_LOSS = OpInfo("Y", "sum the loss", "starts to sum the loss over all ranks that have a part of it, for the record",
        evaluates=True, starts="collective", stream=GROUP, time=SMALL_SUMS)
    BALANCE = OpInfo("E", "balance experts",
        "sums the experts' loads over all ranks that route tokens; the step moves the balancing biases by them",
        reads=("router",), writes=("router",), time=SMALL_SUMS)
    CHECKSUM = OpInfo("H", "compare checksums", "compares checksums of the values that several ranks hold alike",
        reads=("master", "optimizer", "params", "shard"), time=SMALL_SUMS)
    CLIP_NORM = OpInfo("C", "gradient norm", "computes the global gradient norm, and whether every gradient is finite",
        reads=("grad", "grad_shard"), phase="gradient norm", time=SMALL_SUMS)
    MOMENTUM = OpInfo("M", "momentum of matrices",
        "moves Muon's momentum of a unit's hidden matrices, and makes the directions of the shard", names="unit",
        reads=("grad", "grad_shard", "optimizer"), writes=("direction", "optimizer"), phase="optimizer",
        time="optimizer", colour="U")
    BRING = OpInfo("A", "all-gather directions (Muon)",
        "starts the all-gather of a unit's directions over the ranks that have parts of its matrices", names="unit",
        reads=("direction",), writes=("matrices",), fills=True, starts="collective", stream=GROUP)
    ORTHOGONALIZE = OpInfo("O", "orthogonalize own matrices",
        "computes the steps of the matrices that this rank owns (Newton-Schulz)", names="unit", reads=("direction", "matrices"),
        writes=("home",), phase="optimizer", time="optimizer", colour="U")
    ALL_GATHER_HOMES = OpInfo("Q", "all-gather orthogonal matrices", "starts the all-gather of what all owners computed",
        names="unit", reads=("home",), writes=("homes",), fills=True, starts="collective", stream=GROUP)
    UPDATE = OpInfo("U", "optimizer update", "runs the optimizer on this rank's shard", names="unit",
        reads=("direction", "grad", "grad_shard", "homes", "master", "matrices", "optimizer", "params", "shard"),
        writes=("master", "optimizer", "params", "shard"), phase="optimizer", time="optimizer", colour="U")
    PARAMETER_ALL_GATHER = OpInfo("P", "all-gather updated parameters",
        "starts the all-gather of parameters after the update (ZeRO-1 and 2)", names="unit", reads=("params",),
        writes=("params",), starts="collective", stream=GROUP, time="compute/communication contention")
    WAIT = OpInfo("wait", "join what was started",
        "joins what an earlier instruction started, named by that one's short form; frees what it has left",
        names="instruction", evaluates=True)
    # fmt: on

    __hash__ = object.__hash__  # members are single objects; Enum's own hash is a Python function, and slow


def _computing(*passes: Pass) -> frozenset[Op]:
    return frozenset(op for op in Op if op.info.computes in passes)


def _starting(*kinds: Started) -> frozenset[Op]:
    return frozenset(op for op in Op if op.info.starts in kinds)


BY_LETTER = {op.info.letter: op for op in Op}
FORWARD_OPS = _computing("forward")
BACKWARD_OPS = _computing("backward")
COMPUTE_OPS = frozenset(op for op in Op if op.info.computes)
ALL_TO_ALLS = _starting("all-to-all")
HOST_COPIES = _starting("copy")
SENDS = _starting("send")
RECEIVES = _starting("receive")
TRANSFERS = SENDS | RECEIVES
STARTS = frozenset(op for op in Op if op.info.starts)
FILLS = frozenset(op for op in Op if op.info.fills)
"""Operations that fill a buffer anew."""
PART_OPS = frozenset(op for op in Op if op.info.part_of)
"""Operations of passes that run in parts, but for the first of each."""
GRADIENT_OPS = frozenset(op for op in COMPUTE_OPS if "grad" in op.info.writes)
"""Passes that add to gradients, or stand for what they add."""
OTHER_END = {op: end for op in TRANSFERS for end in TRANSFERS - {op} if end.info.carries == op.info.carries}
"""The operation at the other end of a transfer."""
