"""Narrow states: optimizer states in bf16, master weights as 16 bits beside the weights that are computed with.

    AdamW, bf16 computation           weights + master + states      bytes a parameter
    fp32 states                       2 + 4 + 8                      14
    states in bf16                    2 + 4 + 4                      10
    and master weights in halves      2 + 2 + 4                      8

An update takes a shard a chunk at a time: its states in the format of the arithmetic, the update, its states rounded.
"""

from fourfold.program.capability import Capability
from fourfold.program.narrow.declared import declared
from fourfold.program.narrow.steps import launches, master_bytes, narrow_updates, resolve

NARROW = Capability(
    "narrow",
    resolve=resolve,
    unit_bytes=master_bytes,
    into_step=narrow_updates,
    declared=declared,
    launches=launches,
)
