"""Offload: activations wait for their backward, and optimizer states for their update, in the host's memory."""

from fourfold.program.capability import Capability
from fourfold.program.offload.declared import check_state_copies, declared, declared_resident
from fourfold.program.offload.steps import (
    OffloadOp,
    insert_activation_offloads,
    insert_optimizer_offloads,
    resident,
)
from fourfold.program.ops import Op

OFFLOAD = Capability(
    "offload",
    opcodes=OffloadOp,
    after=Op.REPLAY,
    into_stages=insert_activation_offloads,
    into_step=insert_optimizer_offloads,
    resident=resident,
    declared=declared,
    declared_resident=declared_resident,
    check=check_state_copies,
)
