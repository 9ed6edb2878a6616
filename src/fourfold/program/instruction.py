"""The instruction set: what one rank does in one step, with the buffers, collectives and arithmetic of each instruction."""

from enum import Enum
from typing import NamedTuple

from fourfold.model.work import NOTHING, Collective, Work


class Op(Enum):
    """Operations; the value is the short form's first word.

    LOAD                    fetches a microbatch
    COUNT                   sums the valid target tokens over all data ranks: the loss's one divisor
    FORWARD                 runs a segment and keeps the activations that its backward needs
    RECOMPUTE               runs a segment's forward again to rebuild those activations
    BACKWARD                computes input and weight gradients; the head's does its forward too, chunk by chunk
    BACKWARD_INPUT, BACKWARD_WEIGHT     the two halves of a split backward (zero bubble)
    REPLAY                  runs a segment's forward and backward once more and compares both, bit by bit, with the first time
    DISPATCH_TOKENS, DISPATCH_GRADIENT  start an all-to-all: tokens, or gradients of outputs, go to the ranks of their experts
    EXPERTS_FORWARD, EXPERTS_BACKWARD   run the experts on the rows that came; F or B before them has ended at the dispatch
    COMBINE_TOKENS, COMBINE_GRADIENT    start the way back, of outputs or of the gradients of tokens
    FINISH_FORWARD, FINISH_BACKWARD     complete such a pass with the rows that came back
    OFFLOAD, FETCH          start a copy to the host's memory, or back: of a segment's activations, or of a unit's optimizer states
    SEND_ACTIVATION, SEND_GRADIENT, RECV_ACTIVATION, RECV_GRADIENT     start a transfer between stages
    GATHER, FREE            all-gather a unit's parameters, drop them
    REDUCE                  sums a unit's gradients over its groups
    REDUCE_TIED             sums the gradients of a tensor that two stages share
    SUM_LOSS                sums the loss over all ranks that have a part of it, for the record
    BALANCE                 sums the loads of the experts over all ranks that route tokens: the step moves the biases by them
    CHECKSUM                compares checksums of what several ranks hold alike
    CLIP_NORM               computes the global gradient norm, and whether every gradient is finite
    MOMENTUM                moves the momentum of a unit's hidden matrices (Muon) and makes their direction
    BRING                   all-gathers a unit's directions: a rank has parts of matrices, their update needs them full
    ORTHOGONALIZE           computes the steps of the matrices whose home this rank is (Newton-Schulz)
    ALL_GATHER_HOMES        all-gathers what all homes computed
    UPDATE                  runs the optimizer on the local shard
    PARAMETER_ALL_GATHER    all-gathers parameters that ZeRO-1 and 2 updated shard by shard
    WAIT                    joins what an earlier instruction started; `handle` is that instruction's short form
    """

    LOAD = "L"
    COUNT = "N"
    FORWARD = "F"
    RECOMPUTE = "K"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    REPLAY = "J"
    DISPATCH_TOKENS = "D>"
    DISPATCH_GRADIENT = "D<"
    EXPERTS_FORWARD = "E>"
    EXPERTS_BACKWARD = "E<"
    COMBINE_TOKENS = "C>"
    COMBINE_GRADIENT = "C<"
    FINISH_FORWARD = "Z>"
    FINISH_BACKWARD = "Z<"
    OFFLOAD = "O>"
    FETCH = "O<"
    SEND_ACTIVATION = "S>"
    SEND_GRADIENT = "S<"
    RECV_ACTIVATION = "R>"
    RECV_GRADIENT = "R<"
    GATHER = "G"
    FREE = "X"
    REDUCE = "R"
    REDUCE_TIED = "T"
    SUM_LOSS = "Y"
    BALANCE = "E"
    CHECKSUM = "H"
    CLIP_NORM = "C"
    MOMENTUM = "M"
    BRING = "A"
    ORTHOGONALIZE = "O"
    ALL_GATHER_HOMES = "Q"
    UPDATE = "U"
    PARAMETER_ALL_GATHER = "P"
    WAIT = "wait"

    __hash__ = object.__hash__  # members are single objects; Enum's own hash is a Python function, and slow


FORWARD_OPS = frozenset((Op.FORWARD, Op.EXPERTS_FORWARD, Op.FINISH_FORWARD))
BACKWARD_OPS = frozenset((Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.EXPERTS_BACKWARD, Op.FINISH_BACKWARD))
COMPUTE_OPS = FORWARD_OPS | BACKWARD_OPS | {Op.RECOMPUTE, Op.REPLAY}
ALL_TO_ALLS = frozenset((Op.DISPATCH_TOKENS, Op.DISPATCH_GRADIENT, Op.COMBINE_TOKENS, Op.COMBINE_GRADIENT))
HOST_COPIES = frozenset((Op.OFFLOAD, Op.FETCH))
SENDS = frozenset((Op.SEND_ACTIVATION, Op.SEND_GRADIENT))
RECEIVES = frozenset((Op.RECV_ACTIVATION, Op.RECV_GRADIENT))
TRANSFERS = SENDS | RECEIVES
STARTS = (
    TRANSFERS
    | ALL_TO_ALLS
    | HOST_COPIES
    | {
        Op.GATHER,
        Op.REDUCE,
        Op.REDUCE_TIED,
        Op.BRING,
        Op.ALL_GATHER_HOMES,
        Op.PARAMETER_ALL_GATHER,
        Op.COUNT,
        Op.SUM_LOSS,
    }
)

_WORDS = {op: op.value for op in Op}


class Instruction(NamedTuple):
    """One entry of a program. `reads`, `writes`, `frees` name buffers; a write to a buffer that is not live allocates it.

    `work` is what it computes and sends, recorded from the code that runs it; what it costs is priced from that alone.
    `workspace_bytes` lives only while the instruction runs, above what it reads and writes at its end. `stream` is where it
    runs: `compute`, the name of the group whose link it uses, or a direction of the link to the host (`to_host`, `from_host`).
    """

    op: Op
    segment: str | None = None
    microbatch: int | None = None
    peer: int | None = None
    handle: str | None = None
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    frees: tuple[str, ...] = ()
    work: Work = NOTHING
    workspace_bytes: int = 0
    stream: str = "compute"

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Its collectives, in order."""
        return self.work.collectives

    @property
    def flops(self) -> int:
        """The arithmetic of its matmuls and attention."""
        return self.work.flops

    @property
    def short(self) -> str:
        """The short form, as `B b3 m0` or `wait R b3 m0`: unique among what is in flight."""
        op, segment, microbatch, peer, handle, *_ = self
        if op is Op.WAIT:
            return f"wait {handle}"
        short = _WORDS[op]
        if segment is not None:
            short += f" {segment}"
        if microbatch is not None:
            short += f" m{microbatch}"
        if peer is not None:
            short += f" r{peer}"
        return short
