"""Small spec to lower, without torch: a model of two blocks under any layout; programs of all ranks; edits of programs."""

from dataclasses import replace
from typing import Any

from fourfold.config import ModelConfig, parse_run
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.model.work import Collective, Gemm, Item, Join, Start, Work
from fourfold.program import (
    Instruction,
    Op,
    Program,
    RankView,
    StepSpec,
    lower_evaluation,
    lower_pipeline,
    rank_view,
    resolve_step,
)
from fourfold.program.spec import Transport

DIMENSIONS = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 56, "vocab_size": 100}


def _stated(model: dict[str, Any] | None) -> dict[str, Any]:
    """The dimensions, those that are None left out."""
    return {key: value for key, value in {**DIMENSIONS, **(model or {})}.items() if value is not None}


def make_spec(
    model: dict[str, Any] | ModelConfig | None = None,
    *,
    accumulation: int = 1,
    sequence_length: int = 20,
    precision: dict[str, Any] | None = None,
    document_mask: bool = False,
    transport: Transport = "exchange",
    checked: bool = False,
    sampled: tuple[str, ...] = (),
    optimizer: str | dict[str, Any] = "adamw",
    **layout: Any,
) -> StepSpec:
    """The spec of a layout whose global batch gives every rank `accumulation` microbatches. Sequence parallelism is off unless the
    layout turns it on, or leaves it open as None. `checked`: with checksums and replays; `sampled`: quantities to measure."""
    degree = layout.get("dp_replicate", 1) * layout.get("dp_shard", 1) * layout.get("microbatch_sequences", 1)
    table = {
        "model": _stated(model) if not isinstance(model, ModelConfig) else {},
        "data": {"document_mask": document_mask},
        "batch": {"global_sequences": degree * accumulation, "sequence_length": sequence_length},
        "layout": {"sequence_parallel": False, **layout},
        "precision": precision or {},
        "optimizer": {"name": optimizer} if isinstance(optimizer, str) else optimizer,
    }
    config = parse_run(table)
    resolved = model if isinstance(model, ModelConfig) else resolve_model(config.model)
    spec = resolve_step(config, resolved, resolve_layout(config, resolved), transport)
    return replace(spec, checksum=checked, replay=checked, sampled=sampled)


def make_view(*args: Any, **kwargs: Any) -> RankView:
    """The first pipeline rank's view of the same."""
    return rank_view(make_spec(*args, **kwargs))


SAMPLED = ("gradients", "weights", "activations", "attention", "experts")
MIXTRAL = {"num_experts": 4, "top_k": 2, "moe_ffn_size": 24}
QWEN3_MOE = {**MIXTRAL, "qk_norm": True, "balance_loss": 0.01, "z_loss": 0.001}
DEEPSEEK = {
    **{"num_experts": 4, "top_k": 2, "moe_ffn_size": 16, "num_shared_experts": 1, "first_dense_layers": 1},
    **{
        "router": "sigmoid",
        "num_expert_groups": 2,
        "top_groups": 1,
        "balance_bias_speed": 0.001,
        "balance_loss": 0.001,
    },
    **{"key_value_rank": 12, "query_rank": 10, "rope_head_dim": 4, "nope_head_dim": 6, "value_head_dim": 8},
}
"""Beside `DIMENSIONS` without key and value heads: MLA, a dense block, shared experts."""


def deepseek(**dimensions: Any) -> dict[str, Any]:
    """The dimensions of a model with all that DeepSeek-V3 has."""
    return {**DEEPSEEK, "num_kv_heads": None, "num_layers": 3, **dimensions}


def by_rank(programs: list[Program], spec: StepSpec) -> dict[int, Program]:
    """The programs of the pipeline ranks, given to every rank of the mesh."""
    return {rank: programs[spec.layout.coordinates(rank)["pp"]] for rank in range(spec.layout.world_size)}


def evaluation_pipeline(spec: StepSpec) -> list[Program]:
    return [lower_evaluation(rank_view(spec, pp_rank)) for pp_rank in range(spec.layout.pp)]


def training(spec: StepSpec) -> dict[int, Program]:
    """Every rank's training step."""
    return by_rank(lower_pipeline(spec), spec)


def evaluation(spec: StepSpec) -> dict[int, Program]:
    return by_rank(evaluation_pipeline(spec), spec)


def on_all_ranks(program: Program, spec: StepSpec) -> dict[int, Program]:
    """One list for every rank: of a layout without a pipeline."""
    return dict.fromkeys(range(spec.layout.world_size), program)


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


def altered(step: Instruction, **fields: Any) -> Instruction:
    """The instruction with other fields; `collectives` and `flops` change its work."""
    work: Work = fields.pop("work", step.work)
    if "collectives" in fields:
        work = with_collectives(work, fields.pop("collectives"))
    if "flops" in fields:
        work = Work((*work.items, Gemm(1, 1, (fields.pop("flops") - work.flops) // 2)))
    return step._replace(work=work, **fields)


def with_collectives(work: Work, collectives: tuple[Collective, ...]) -> Work:
    """The work with other collectives in their places; the last places go where there are fewer, more follow at the end."""
    left, names, items = list(collectives), set(), list[Item]()
    for item in work.items:
        if isinstance(item, Start):
            if not left:
                continue
            names.add(item.name)
            item = replace(item, collective=left.pop(0))
        elif isinstance(item, Join) and item.name not in names:
            continue
        items.append(item)
    return Work((*items, *map(Start, left)))
