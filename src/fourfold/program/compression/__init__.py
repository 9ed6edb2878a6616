"""Gradient compression: gradients travel between data-parallel ranks in 16 bits, and are summed in fp32.

A reduction sends every rank its shard of a gradient, rounded once by its sender, in an all-to-all; each rank adds up what it
receives in the order of ranks. The bytes are half those of a reduce-scatter in fp32; one in bf16 would round partial sums
at every hop. Replicas (HSDP) add up the shards in fp32, as without it.
"""

from fourfold.program.capability import Capability
from fourfold.program.compression.declared import declared, gradient_rules
from fourfold.program.compression.steps import (
    CompressionOp,
    check_planned,
    compressed_reduction,
    resolve,
    staging_bytes,
)
from fourfold.program.ops import Op

COMPRESSION = Capability(
    "compression",
    opcodes=CompressionOp,
    after=Op.REDUCE,
    resolve=resolve,
    check_planned=check_planned,
    unit_bytes=staging_bytes,
    reduction=compressed_reduction,
    declared=declared,
    gradient_rules=gradient_rules,
)
