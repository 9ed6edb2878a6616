"""Overlap of experts: all-to-alls of one microbatch's tokens run behind the computation of another."""

from fourfold.program.capability import Capability
from fourfold.program.ops import Op
from fourfold.program.overlap.declared import declared
from fourfold.program.overlap.rows import BACKWARD_BUFFERS, BUFFERS, FORWARD_BUFFERS, OverlapOp, held_bytes
from fourfold.program.overlap.turns import interleave

OVERLAP = Capability(
    "overlap",
    opcodes=OverlapOp,
    after=Op.REPLAY,
    buffers=BUFFERS,
    uses={Op.FORWARD: FORWARD_BUFFERS[:1], Op.BACKWARD: BACKWARD_BUFFERS[:1]},
    segment_bytes=held_bytes,
    interleave=interleave,
    declared=declared,
)
