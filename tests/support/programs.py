"""Small facts to lower, without torch: a model of two blocks under any layout."""

from typing import Any

from fourfold.config import ModelConfig, parse_run, resolve_model
from fourfold.layout import resolve_layout
from fourfold.program import Instruction, Lowering, Op, Program
from fourfold.program.buffers import Transport

DIMENSIONS = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 56, "vocab_size": 99}


def make_facts(
    model: dict[str, Any] | ModelConfig | None = None,
    *,
    accumulation: int = 1,
    sequence_length: int = 20,
    precision: dict[str, Any] | None = None,
    document_mask: bool = False,
    transport: Transport = "exchange",
    **layout: Any,
) -> Lowering:
    """The facts of a layout whose global batch gives every rank `accumulation` microbatches."""
    degree = layout.get("dp_replicate", 1) * layout.get("dp_shard", 1) * layout.get("microbatch_sequences", 1)
    table = {
        "model": {**DIMENSIONS, **(model or {})} if not isinstance(model, ModelConfig) else {},
        "data": {"document_mask": document_mask},
        "batch": {"global_sequences": degree * accumulation, "sequence_length": sequence_length},
        "layout": layout,
        "precision": precision or {},
    }
    config = parse_run(table)
    resolved = model if isinstance(model, ModelConfig) else resolve_model(config.model)
    return Lowering.of(config, resolved, resolve_layout(config, resolved), transport)


def on_all_ranks(program: Program, facts: Lowering) -> dict[int, Program]:
    return dict.fromkeys(range(facts.layout.world_size), program)


def positions(program: Program, *ops: Op) -> list[int]:
    """Where instructions of these operations stand."""
    return [i for i, step in enumerate(program.instructions) if step.op in ops]


def wait_of(program: Program, start: int) -> int:
    """Where the Wait stands that joins the instruction at `start`."""
    handle = program.instructions[start].short
    return next(
        i
        for i in range(start + 1, len(program.instructions))
        if program.instructions[i].op is Op.WAIT and program.instructions[i].handle == handle
    )


def edited(program: Program, *changes: tuple[int, list[Instruction]]) -> Program:
    """The program with the instruction at each index replaced by a list (empty: dropped)."""
    steps = list(program.instructions)
    for index, replacement in sorted(changes, key=lambda change: -change[0]):
        steps[index : index + 1] = replacement
    return program.with_instructions(steps)


def moved(program: Program, source: int, target: int) -> Program:
    """The program with the instruction at `source` moved to stand before the one now at `target`."""
    steps = list(program.instructions)
    step = steps.pop(source)
    steps.insert(target - 1 if target > source else target, step)
    return program.with_instructions(steps)
