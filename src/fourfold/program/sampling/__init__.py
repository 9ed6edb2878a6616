"""Sampling: in some steps a rank measures gradients, weights, updates, activations and scores of its layers, and all ranks add them
up. The other steps have none of these instructions: they are the same programs as without sampling.
"""

from fourfold.program.capability import Capability
from fourfold.program.ops import Op
from fourfold.program.sampling.declared import check_samples, declared
from fourfold.program.sampling.rows import BUFFERS, SamplingOp
from fourfold.program.sampling.steps import insert_samples, kept_bytes, launches, table_bytes

SAMPLING = Capability(
    "sampling",
    opcodes=SamplingOp,
    after=Op.PARAMETER_ALL_GATHER,
    buffers=BUFFERS,
    unit_bytes=kept_bytes,
    plain_bytes=table_bytes,
    into_step=insert_samples,
    declared=declared,
    check=check_samples,
    launches=launches,
)
