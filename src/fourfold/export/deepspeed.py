"""DeepSpeed: its JSON file, and Megatron-DeepSpeed's `pretrain_gpt.py` with the model's flags (DeepSpeed 0.19)."""

import json

from fourfold.export.job import Export, TrainerJob, every_block, outermost, unstated
from fourfold.export.megatron import DATA, settings
from fourfold.export.megatron_model import joined
from fourfold.export.script import Flags, script, steps_input

FILE = "ds_config.json"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEPT = _names("""
    num-layers hidden-size ffn-hidden-size num-attention-heads kv-channels seq-length max-position-embeddings
    init-method-std attention-dropout hidden-dropout swiglu disable-bias-linear
    untie-embeddings-and-output-weights tensor-model-parallel-size pipeline-model-parallel-size
    sequence-parallel bf16 micro-batch-size global-batch-size train-iters lr min-lr lr-decay-iters
    lr-warmup-iters weight-decay clip-grad optimizer adam-beta1 adam-beta2 adam-eps sgd-momentum seed
    data-path tokenizer-model split eval-interval eval-iters save load save-interval log-interval num-experts
""")
"""Flags that Megatron-DeepSpeed has under Megatron-LM's name."""
RENAMED = {
    "num-query-groups": "num-key-value-heads",
    "norm-epsilon": "layernorm-epsilon",
    "rotary-base": "rotary-position-embeddings-theta",
    "moe-router-topk": "topk",
    "moe-aux-loss-coeff": "moe-loss-coeff",
    "moe-expert-capacity-factor": "moe-train-capacity-factor",
    "expert-model-parallel-size": "moe-expert-parallel-size",
}
VALUES: dict[tuple[str, object], Flags] = {
    ("normalization", "RMSNorm"): {"normalization": "rmsnorm"},
    ("normalization", "LayerNorm"): {"normalization": "layernorm"},
    ("position-embedding-type", "rope"): {"use-rotary-position-embeddings": True},
    ("position-embedding-type", "learned_absolute"): {},
    ("tokenizer-type", "HuggingFaceTokenizer"): {"tokenizer-type": "HFTokenizer"},
    ("lr-decay-style", "cosine"): {"lr-decay-style": "cosine"},
    ("lr-decay-style", "linear"): {"lr-decay-style": "linear"},
    ("lr-decay-style", "constant"): {"lr-decay-style": "constant"},
    ("recompute-granularity", "full"): {"recompute-granularity": "full", "deepspeed-activation-checkpointing": True},
    ("recompute-method", "uniform"): {"recompute-method": "uniform"},
    ("recompute-num-layers", 1): {"recompute-num-layers": 1},
    ("moe-router-score-function", "softmax"): {},
    ("moe-router-load-balancing-type", "none"): {"moe-loss-coeff": 0.0},
    ("moe-router-load-balancing-type", "seq_aux_loss"): {},
}
"""Flags with other values there."""
ITS_OWN = _names("""
    group-query-attention padded-vocab-size use-distributed-optimizer overlap-grad-reduce overlap-param-gather
    use-megatron-fsdp data-parallel-sharding-strategy no-gradient-accumulation-fusion ckpt-format
    accumulate-allreduce-grads-in-fp32 no-create-attention-mask-in-dataloader log-throughput
    cross-entropy-loss-fusion moe-grouped-gemm moe-permute-fusion moe-router-dtype moe-token-dispatcher-type
    context-parallel-size cp-comm-type expert-tensor-parallel-size num-distributed-optimizer-instances
    tp-comm-overlap overlap-moe-expert-parallel-comm moe-flex-dispatcher-backend
    use-tp-pp-dp-mapping hierarchical-context-parallel-sizes recompute-modules recompute-granularity
    recompute-method recompute-num-layers pipeline-model-parallel-layout num-virtual-stages-per-pipeline-rank
    moe-ffn-hidden-size moe-layer-freq microbatch-group-size-per-virtual-pipeline-stage
""")
"""Flags that DeepSpeed's file, its own flags or a sentence of `_of_layout` speak for."""


def deepspeed(job: TrainerJob) -> Export:
    """A shell script that writes the file and starts the launcher, from one node."""
    flags, missing = _translated(joined(*settings(job).values())[0])
    if job.model.num_experts and not job.model.has_dense_blocks:
        flags["ffn-hidden-size"] = job.model.moe_ffn_size
    files = {FILE: json.dumps(_file(job), indent=2)}
    inputs, command = DATA | steps_input(job), f"deepspeed --num_gpus {job.node_devices}"
    if job.nodes > 1:
        inputs |= {"HOSTFILE": f"a file of {job.nodes} lines, HOST slots={job.node_devices}"}
        command = f'deepspeed --hostfile "$HOSTFILE" --num_nodes {job.nodes} --num_gpus {job.node_devices}'
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if job.layout.tp > 1 else {}
    if environment and job.nodes > 1:
        files[".deepspeed_env"] = "CUDA_DEVICE_MAX_CONNECTIONS=1"
    text = script(
        job,
        "in a checkout of deepspeedai/Megatron-DeepSpeed",
        f"{command} pretrain_gpt.py",
        {"MODEL_AND_TRAINING": flags, "DEEPSPEED": _own_flags(job)},
        inputs,
        environment,
        files,
        one_node=True,
    )
    return Export(text, [*_of_model(job), *_of_layout(job), *missing, *job.unwritten_choices()])


def _translated(flags: Flags) -> tuple[Flags, list[str]]:
    """Megatron-LM's flags in Megatron-DeepSpeed's, and those that it has not."""
    found: Flags = {}
    missing = []
    for name, value in flags.items():
        same = None if isinstance(value, list) else VALUES.get((name, value))
        if name in KEPT or name in RENAMED:
            found[RENAMED.get(name, name)] = value
        elif same is not None:
            found |= same
        elif name not in ITS_OWN:
            stated = "" if value is True else f" {value}"
            missing.append(f"--{name}{stated}: Megatron-DeepSpeed has no such setting")
    return found, missing


def _zero(job: TrainerJob) -> int:
    """ZeRO stage in DeepSpeed's file: 1 at most in a pipeline."""
    return min(job.layout.zero, 1) if job.layout.pp > 1 else job.layout.zero


def _own_flags(job: TrainerJob) -> Flags:
    layout, model = job.layout, job.model
    flags: Flags = {"deepspeed": True, "deepspeed_config": FILE, "zero-stage": _zero(job)}
    flags |= {"make-vocab-size-divisible-by": 1, "no-query-key-layer-scaling": True, "use-flash-attn-v2": True}
    flags |= {"no-pipeline-parallel": True} if layout.pp == 1 else {}
    flags |= {"enable-zbh1-pipeline": True} if _is_zero_bubble(job) else {}
    flags |= {"ds-sequence-parallel-size": layout.cp} if layout.cp > 1 else {}
    if model.num_experts:
        flags |= {"expert-interval": model.moe_period, "create-moe-param-group": True}
        flags |= {"disable-moe-token-dropping": True} if model.capacity_factor is None else {}
        flags |= {"enable-expert-tensor-parallelism": True} if layout.etp > 1 else {}
    return flags


def _is_zero_bubble(job: TrainerJob) -> bool:
    return job.layout.schedule == "zb_h1" and job.layout.pp > 1 and job.layout.tp == 1


def _file(job: TrainerJob) -> dict[str, object]:
    layout, request = job.layout, job.request
    narrow = request.precision.gradients_format == "bf16"
    table: dict[str, object] = {
        "train_batch_size": request.global_sequences,
        "train_micro_batch_size_per_gpu": layout.microbatch_sequences,
        "gradient_accumulation_steps": job.microbatches,
        "gradient_clipping": job.optimizer.clip_norm or 0.0,
        "bf16": {"enabled": request.precision.compute == "bf16"},
        "data_types": {"grad_accum_dtype": "bf16" if narrow else "fp32"},
        "zero_optimization": {"stage": _zero(job), "overlap_comm": True},
        "steps_per_print": 10,
    }
    return table | ({"sequence_parallel_size": layout.cp} if layout.cp > 1 else {})


def _of_layout(job: TrainerJob) -> list[str]:
    layout, missing = job.layout, []
    if layout.pp > 1 and layout.zero > 1:
        missing.append("ZeRO-2 and 3 do not work with DeepSpeed's pipeline: ZeRO-1 is written instead")
    if layout.pp > 1 and layout.schedule != "1f1b" and not _is_zero_bubble(job):
        missing.append(
            f"the schedule {layout.schedule}, v = {layout.virtual_stages}: DeepSpeed has 1F1B with one stage a rank"
        )
    if layout.pp > 1 and not job.has_even_stages:
        missing.append("stages of unequal size: DeepSpeed divides blocks evenly, or as many parameters to each")
    if layout.cp > 1 and layout.cp_method != "ulysses":
        missing.append(f"cp = {layout.cp} ({layout.cp_method}): DeepSpeed splits sequences by Ulysses alone")
    if layout.cp > 1 and layout.pp > 1:
        missing.append("cp in a pipeline: DeepSpeed's sequence parallelism goes without one")
    if layout.pp > 1 and job.model.num_experts:
        missing.append(f"experts in a pipeline: Megatron-DeepSpeed has none: choose pp = 1 instead of {layout.pp}")
    if layout.dp_replicate > 1 and _zero(job):
        missing.append("shards within replicas (HSDP): DeepSpeed shards over all of dp, since it dropped MiCS")
    if layout.etp not in (1, layout.tp):
        missing.append(f"etp = {layout.etp}: an expert's matrices are split over tp = {layout.tp} there, or not at all")
    if layout.recompute.startswith("selective"):
        missing.append(f"recompute {layout.recompute}: is not there: blocks are kept, or recomputed with full")
    elif ":" in layout.recompute:
        missing.append(every_block(layout))
    return missing + outermost(layout, "PipeModelDataParallelTopology has pipe outermost; give another topology")


def _of_model(job: TrainerJob) -> list[str]:
    model, missing = job.model, unstated(job, ("adamw", "sgd"))
    if model.num_experts and model.has_dense_blocks and model.ffn_size != model.moe_ffn_size:
        missing.append(f"experts of {model.moe_ffn_size} elements: blocks and experts have one ffn-hidden-size there")
    if model.first_dense_layers:
        missing.append(f"first_dense_layers = {model.first_dense_layers}: every block has experts there")
    return missing
