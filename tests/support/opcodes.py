"""Sets of operations, of the core's and of all capabilities', by what their rows say."""

from collections.abc import Callable

from fourfold.program.capabilities import OPCODES
from fourfold.program.instruction import Opcode


def _where(holds: Callable[[Opcode], bool]) -> frozenset[Opcode]:
    return frozenset(filter(holds, OPCODES))


COMPUTE_OPS = _where(lambda op: op.is_compute)
BACKWARD_OPS = _where(lambda op: op.is_backward)
GRADIENT_OPS = _where(lambda op: op.adds_gradients)
ALL_TO_ALLS = _where(lambda op: op.is_all_to_all)
HOST_COPIES = _where(lambda op: op.is_host_copy)
SENDS = _where(lambda op: op.is_send)
RECEIVES = _where(lambda op: op.is_receive)
TRANSFERS = _where(lambda op: op.is_transfer)
REDUCTIONS = _where(lambda op: op.is_reduction)
STARTS = _where(lambda op: op.is_start)
