"""A layout in other trainers' words: Megatron-LM's flags, torchtitan's and DeepSpeed's files; and what they cannot say.

Names of flags and keys as in Megatron-LM (core 0.12), torchtitan (2025) and DeepSpeed (0.16) documentation.
"""

import json
from collections.abc import Callable

from fourfold.config.optimizers import AdamWSection
from fourfold.plan.candidate import Candidate
from fourfold.plan.request import Request
from fourfold.program.schedule import find_schedule, usual_schedule

Export = tuple[str, list[str]]
"""The text, and the settings that it leaves out or changes."""


def _own_code(request: Request) -> list[str]:
    """Settings that their files cannot name: another optimizer than theirs, a person's own block."""
    name, block = request.optimizer.name, request.model.block
    optimizer = f"optimizer {name}: is priced here, but not stated there: state it"
    own = f"model.block = {block!r}: is priced here; their model has to have the same block"
    return ([] if name == AdamWSection.spec.name else [optimizer]) + ([] if block is None else [own])


def megatron(request: Request, layout: Candidate) -> Export:
    """Command-line flags of `pretrain_gpt.py`."""
    missing = _own_code(request)
    flags = [
        f"--tensor-model-parallel-size {layout.tp}",
        f"--pipeline-model-parallel-size {layout.pp}",
        f"--context-parallel-size {layout.cp}",
        f"--micro-batch-size {layout.microbatch_sequences}",
        f"--global-batch-size {request.global_sequences}",
        f"--seq-length {request.sequence_length}",
    ]
    flags += ["--sequence-parallel"] if layout.tp > 1 else []
    if layout.virtual_stages > 1 and layout.pp > 1:
        stages = layout.pp * layout.virtual_stages
        if request.model.num_layers % stages:
            missing.append(
                f"{request.model.num_layers} layers do not divide by {stages} stages: Megatron needs "
                f"--account-for-embedding-in-pipeline-split and --account-for-loss-in-pipeline-split, or another v"
            )
        flags.append(f"--num-virtual-stages-per-pipeline-rank {layout.virtual_stages}")
    if "megatron" not in find_schedule(layout.schedule).names and layout.pp > 1:
        usual = usual_schedule(layout.virtual_stages).names["megatron"]
        missing.append(
            f"the schedule {layout.schedule} is not in Megatron-LM: it will run {usual}, with a larger bubble"
        )
    if layout.cp > 1:
        kind = {"ring": "p2p", "all_gather": "all_gather", "ulysses": "a2a"}.get(layout.cp_method, "a2a+p2p")
        flags.append(f"--cp-comm-type {kind}")
        if kind == "a2a+p2p":
            inner = int(layout.cp_method.rpartition(":")[2])
            flags.append(f"--hierarchical-context-parallel-sizes {inner} {layout.cp // inner}")
    if layout.ep > 1 or layout.etp > 1:
        flags += [f"--expert-model-parallel-size {layout.ep}", f"--expert-tensor-parallel-size {layout.etp}"]
    if layout.zero == 1:
        flags += ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    elif layout.zero >= 2:
        kind = "optim_grads" if layout.zero == 2 else "optim_grads_params"
        flags += ["--use-megatron-fsdp", f"--data-parallel-sharding-strategy {kind}", "--ckpt-format fsdp_dtensor"]
        missing.append("Megatron-FSDP wants CUDA_DEVICE_MAX_CONNECTIONS unset or above 1")
        if layout.pp > 1:
            missing.append(
                f"ZeRO-{layout.zero} inside a pipeline: Megatron-FSDP reduces and gathers otherwise than priced here"
            )
    if layout.dp_replicate > 1 and layout.zero:
        flags.append(f"--num-distributed-optimizer-instances {layout.dp_replicate}")
    is_replicated = layout.outermost == "dp_replicate" and layout.dp_shard == 1
    if (layout.outermost == "dp" or is_replicated) and layout.pp > 1:
        flags.append("--use-tp-pp-dp-mapping")
        if layout.ep * layout.etp > 1 and layout.ep * layout.etp != layout.tp * layout.cp:
            missing.append("--use-tp-pp-dp-mapping: Megatron-LM takes it with experts only where ep x etp = tp x cp")
    elif layout.outermost == "dp_replicate" and layout.pp > 1:
        missing.append(
            "dp_replicate outermost: Megatron-LM numbers ranks with pp outermost, or all of dp (--use-tp-pp-dp-mapping)"
        )
    policy, some, count = layout.recompute.partition(":")
    flags += {
        "none": [],
        "selective": [
            "--recompute-granularity selective",
            f"--recompute-modules layernorm{' moe_act' if request.model.num_experts else ''}",
        ],
        "full": ["--recompute-granularity full", "--recompute-method uniform", "--recompute-num-layers 1"],
    }[policy]
    if some and policy == "full" and layout.pp == 1:
        flags[-2:] = ["--recompute-method block", f"--recompute-num-layers {count}"]
    elif some:
        missing.append(_every_block_instead(layout))
    if policy == "selective" and not request.model.num_experts:
        missing.append("selective recomputation makes the feed-forward's activation function again: it is kept there")
    return " \\\n".join([*flags, "--bf16" if request.precision.compute == "bf16" else ""]).rstrip(" \\\n"), missing


def _every_block_instead(layout: Candidate) -> str:
    count = layout.recompute.partition(":")[2]
    return f"recompute {layout.recompute}, the first {count} blocks alone: every block recomputes instead"


def torchtitan(request: Request, layout: Candidate) -> Export:
    """The sections of a job's TOML file."""
    missing = _own_code(request)
    if layout.zero in (0, 1):
        missing.append(
            "ZeRO-0: torchtitan has replicas or FSDP: data_parallel_shard_degree = 1 replicates all states"
            if layout.zero == 0
            else "ZeRO-1: torchtitan has replicas or FSDP: parameters that are not resharded after the forward are ZeRO-2"
        )
    shard = 1 if layout.zero == 0 else layout.dp_shard
    reshard = {3: "always", 2: "never", 1: "never"}.get(layout.zero, "default")
    at_once = request.global_sequences // layout.dp if layout.pp > 1 else layout.microbatch_sequences
    lines = [
        "[training]",
        f"local_batch_size = {at_once}",
        f"global_batch_size = {request.global_sequences}",
        f"seq_len = {request.sequence_length}",
        "",
        "[parallelism]",
        f"data_parallel_replicate_degree = {layout.dp // shard}",
        f"data_parallel_shard_degree = {shard}",
        f'fsdp_reshard_after_forward = "{reshard}"',
        f"tensor_parallel_degree = {layout.tp}",
        f"context_parallel_degree = {layout.cp}",
        f"pipeline_parallel_degree = {layout.pp}",
    ]
    if layout.pp > 1:
        name = find_schedule(layout.schedule).names.get("torch")
        if name is None:
            missing.append(
                f"the schedule {layout.schedule} is not in torch.distributed.pipelining's catalogue under that name"
            )
        lines.append(f'pipeline_parallel_schedule = "{name or "1F1B"}"')
        lines.append(f"pipeline_parallel_microbatch_size = {layout.microbatch_sequences}")
        stages = layout.pp * layout.virtual_stages
        each = -(-(request.model.num_layers + 2) // stages)  # torchtitan counts embedding and head as a layer each
        if -(-(request.model.num_layers + 2) // each) == stages:
            lines.append(f"pipeline_parallel_layers_per_stage = {each}")
        elif layout.virtual_stages > 2:
            missing.append(
                f"{request.model.num_layers} layers do not make {stages} stages there: it will run two stages a rank"
            )
    if layout.cp > 1:
        lines.append(
            f'context_parallel_rotate_method = "{"allgather" if layout.cp_method == "all_gather" else "alltoall"}"'
        )
        if "ulysses" in layout.cp_method:
            missing.append(f"{layout.cp_method}: torchtitan's context parallelism is a ring")
    if layout.ep > 1 or layout.etp > 1:
        lines += [f"expert_parallel_degree = {layout.ep}", f"expert_tensor_parallel_degree = {layout.etp}"]
    if layout.outermost != "pp" and layout.pp > 1:
        missing.append(f"{layout.outermost} outermost: torchtitan's mesh has pp outermost")
    mode, some, _ = layout.recompute.partition(":")
    lines += ["", "[activation_checkpoint]", f'mode = "{mode}"']
    if some:
        missing.append(_every_block_instead(layout))
    if mode == "selective":
        lines.append('selective_ac_option = "op"')
        missing.append("selective recomputation keeps other tensors there: products are kept, attention and norms too")
    return "\n".join(lines), missing


def deepspeed(request: Request, layout: Candidate) -> Export:
    """The JSON configuration; degrees beside data parallelism are the client's."""
    missing = _own_code(request)
    if layout.pp > 1:
        missing.append(
            f"pp = {layout.pp}: wrap the model in PipelineModule(num_stages={layout.pp}), which runs 1F1B alone"
        )
        if layout.zero > 1:
            missing.append("ZeRO-2 and 3 do not work with DeepSpeed's pipeline: ZeRO-1 is written instead")
        if "deepspeed" not in find_schedule(layout.schedule).names:
            missing.append(
                f"the schedule {layout.schedule}, v = {layout.virtual_stages}: DeepSpeed has 1F1B with one stage a rank"
            )
    if layout.tp > 1:
        missing.append(f"tp = {layout.tp}: give an mpu, as Megatron-DeepSpeed does, or tensor_parallel.autotp_size")
    if layout.cp > 1 and layout.cp_method != "ulysses":
        missing.append(f"cp = {layout.cp} ({layout.cp_method}): DeepSpeed splits sequences by Ulysses alone")
    if layout.ep > 1:
        missing.append(f"ep = {layout.ep}: is an argument of deepspeed.moe.layer.MoE, not of the file")
    if layout.dp_replicate > 1 and layout.zero in (1, 2):
        missing.append("shards within replicas (HSDP): MiCS does so for ZeRO-3 alone")
    if layout.outermost != "pp" and layout.pp > 1:
        missing.append(
            f"{layout.outermost} outermost: PipeModelDataParallelTopology has pipe outermost; give another topology"
        )
    zero = {"stage": min(layout.zero, 1) if layout.pp > 1 else layout.zero, "overlap_comm": True}
    if layout.dp_replicate > 1 and layout.zero == 3:
        zero |= {"mics_shard_size": layout.dp_shard}
    table: dict[str, object] = {
        "train_batch_size": request.global_sequences,
        "train_micro_batch_size_per_gpu": layout.microbatch_sequences,
        "gradient_accumulation_steps": request.global_sequences // (layout.dp * layout.microbatch_sequences),
        "bf16": {"enabled": request.precision.compute == "bf16"},
        "zero_optimization": zero,
    }
    if layout.cp > 1:
        table["sequence_parallel_size"] = layout.cp
    if layout.recompute != "none":
        missing.append(
            f"recompute {layout.recompute}: is called in the model (deepspeed.checkpointing), not in the file"
        )
    return json.dumps(table, indent=2), missing


EXPORTS: dict[str, Callable[[Request, Candidate], Export]] = {
    "megatron": megatron,
    "torchtitan": torchtitan,
    "deepspeed": deepspeed,
}
