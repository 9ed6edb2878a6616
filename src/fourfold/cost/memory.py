"""Memory of a device: the program's buffers, a software profile's own tensors, its allocator and its context."""

from collections.abc import Iterator
from dataclasses import replace

from fourfold.config import DTYPE_BYTES
from fourfold.cost.software import SoftwareProfile
from fourfold.model.work import SavedParts
from fourfold.program import Program
from fourfold.program.buffers import device
from fourfold.program.communicators import num_communicators
from fourfold.program.instruction import Instruction, Op
from fourfold.program.narrow.steps import splits_master
from fourfold.program.program import BufferKind, Buffers
from fourfold.program.spec import StepSpec
from fourfold.program.view import RankView

DROPOUT_BYTES = 3
"""Bytes of each score's activations beside its softmax: the score after dropout, and the mask (Korthikanti et al. 2022)."""


NARROW = {"fp8": 0.5, "fp4": 9 / 32}
"""Share of 16 bits that a low-precision number takes; in 4 bits with its part of a scale."""
UNITS = "units"
BLOCKS = 4
"""In flight at once: gathered ahead, in use, on their way into a reduction and out of it."""


def held_program(program: Program, view: RankView, software: SoftwareProfile) -> Program:
    """The program with its buffers as large as the software's: for memory alone."""
    extra = block_bytes(view.spec, software)
    buffers = [*_changed(program, view.spec, software, extra)]
    steps, resident = program.steps, program.resident
    if software.unit_bytes and (units := units_bytes(view, software)):
        buffers, resident = [*buffers, BufferKind(UNITS, units)], (*resident, UNITS)
    if software.logits_bytes or extra:
        logits = logits_bytes(view.spec, software)
        steps = steps.mapped(lambda step: _held(step, logits, extra))
    return replace(program, buffers=Buffers(buffers), instructions=steps, resident=resident)


def _changed(program: Program, spec: StepSpec, software: SoftwareProfile, extra: int) -> Iterator[BufferKind]:
    """Buffers, as large as the software has them."""
    shares = _state_shares(spec, software)
    for buffer in program.buffer_kinds:
        kind, _, rest = device(buffer.text).partition("/")
        size = buffer.bytes
        if kind == "saved":
            size = kept_bytes(size, program.saved_parts[rest], software) + extra
        elif kind == "deferred":
            size = int(size * _operand_share(software))
        elif kind in shares:
            size = int(size * shares[kind])
        yield buffer if size == buffer.bytes else replace(buffer, bytes=size)


def _state_shares(spec: StepSpec, software: SoftwareProfile) -> dict[str, float]:
    """Sizes of optimizer states and master weights that the software states, as shares of the declared, by kind of buffer."""
    optimizer, shares = spec.optimizer, dict[str, float]()
    if software.optimizer_bytes is not None and optimizer.state and not optimizer.states_own_format:
        shares["optimizer"] = len(optimizer.state) * software.optimizer_bytes / optimizer.state_bytes(spec.master)
    if software.master_bytes is not None and not splits_master(spec):
        shares["master"] = software.master_bytes / DTYPE_BYTES[spec.master]
    return shares


def kept_bytes(saved: int, parts: SavedParts, software: SoftwareProfile) -> int:
    """Bytes that a block keeps for backward where it declares `saved`. Attention's output stays beside its low-precision copy."""
    kept = software.saved_share * saved
    if software.narrow_operands and software.gemm_dtype:
        narrow = NARROW[software.gemm_dtype]
        kept -= (1 - narrow) * parts.operands - narrow * parts.attended
    return int(kept)


def _operand_share(software: SoftwareProfile) -> float:
    """Share of the declared bytes of operands that wait for a deferred weight gradient."""
    if software.narrow_operands and software.gemm_dtype:
        return NARROW[software.gemm_dtype]
    return min(1.0, software.saved_share)


def _held(step: Instruction, logits: int, extra: int) -> Instruction:
    if step.segment == "head" and step.op is Op.BACKWARD:
        return step._replace(workspace_bytes=max(step.workspace_bytes, logits))
    ends = step.op.is_forward and any(name.startswith("hidden/") for name in step.writes)
    if ends and step.segment != "embed" and not any(name.startswith("saved/") for name in step.writes):
        return step._replace(workspace_bytes=step.workspace_bytes + extra)
    return step


def units_bytes(view: RankView, software: SoftwareProfile) -> int:
    """Bytes that ZeRO-3's runtime allocates for unsharded units beyond the declared: embedding and head, which it does not gather
    again in a step, and a few blocks. The same however many ranks share them."""
    sizes = {unit: flat.padded_numel for unit, flat in view.flats.items() if flat.zero == 3}
    blocks = [[unit.name for unit in segment.own] for segment in view.segments if segment.kind == "block"]
    largest = sorted(sum(sizes.pop(unit, 0) for unit in units) for units in blocks)[-BLOCKS:]
    return int(software.unit_bytes * (sum(largest) + sum(sizes.values())))


def block_bytes(spec: StepSpec, software: SoftwareProfile) -> int:
    """Bytes that one block keeps beyond the declared."""
    model, shape = spec.model, spec.shape
    hidden = software.saved_bytes * shape.hidden_tokens * model.hidden_size
    if shape.sequence_parallel and spec.layout.tp > 1:
        hidden += software.gathered_bytes * shape.tokens * model.hidden_size
    if not software.fused_attention and not software.attention_recomputed:
        heads, _ = shape.heads(model)
        width = (4 if software.fp32_scores else shape.element_bytes) + DROPOUT_BYTES * software.attention_dropout
        hidden += width * heads * shape.tokens * shape.sequence_length
    return int(hidden)


def logits_bytes(spec: StepSpec, software: SoftwareProfile) -> int:
    """Bytes of the logits of all tokens of a microbatch, in this rank's part of the vocabulary."""
    return int(software.logits_bytes * spec.shape.tokens * spec.model.vocab_size // spec.layout.tp)


def allocated_bytes(peak: int, software: SoftwareProfile) -> int:
    """Peak of allocated memory: `torch.cuda.max_memory_allocated`."""
    return int(peak * (1 + software.extra))


def reserved_bytes(peak: int, software: SoftwareProfile) -> int:
    """Peak of reserved memory, with free blocks that are cut up: `torch.cuda.max_memory_reserved`."""
    return int(allocated_bytes(peak, software) * (1 + software.fragmentation))


def overhead_bytes(spec: StepSpec, pp_rank: int, software: SoftwareProfile) -> int:
    """Memory of a process beside what its allocator reserves: its context, and its communicators."""
    return int(software.context_bytes) + int(software.communicator_bytes) * num_communicators(spec, pp_rank)


def device_bytes(peak: int, software: SoftwareProfile, spec: StepSpec, pp_rank: int) -> int:
    """Memory of the device of a pipeline rank when its program's peak is `peak`."""
    return reserved_bytes(peak, software) + overhead_bytes(spec, pp_rank, software)
