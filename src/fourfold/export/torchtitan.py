"""torchtitan: a Python file with the model and the run (`--module planned --config planned`), and the command (0.3).

The settings that its file cannot express are listed beside it.
"""

from itertools import accumulate

from fourfold.config.optimizers import AdamWSection
from fourfold.export.job import Export, TrainerJob, every_block, outermost, unstated, unwritten
from fourfold.export.script import Call, function, number, script, steps_input, torchrun, with_imports
from fourfold.export.torchtitan_model import FAMILIES, family, has_mtp, is_tied, model_lines
from fourfold.model.layers import windows_of
from fourfold.program.schedule import find_schedule, usual_schedule

TORCHTITAN_DECAYS = ("linear", "sqrt", "cosine")
DATA = {
    "DATA": "a dataset in the form of allenai/c4: its name or folder",
    "TOKENIZER": "a folder with a Hugging Face tokenizer",
}
MODULES = {
    "partial": "functools",
    "pairwise": "itertools",
    "nn": "torch",
    "CheckpointManager": "torchtitan.components.checkpoint",
    "ChunkedLossWrapper": "torchtitan.components.loss",
    "CrossEntropyLoss": "torchtitan.components.loss",
    "MetricsProcessor": "torchtitan.components.metrics",
    "LRSchedulersContainer": "torchtitan.components.optimizer",
    "OptimizersContainer": "torchtitan.components.optimizer",
    "ParamGroupConfig": "torchtitan.components.optimizer",
    "register_moe_load_balancing_hook": "torchtitan.components.optimizer",
    "Float8LinearConverter": "torchtitan.components.quantization",
    "Float8GroupedExpertsConverter": "torchtitan.components.quantization",
    "MXFP8LinearConverter": "torchtitan.components.quantization",
    "MXFP8GroupedExpertsConverter": "torchtitan.components.quantization",
    "NVFP4LinearConverter": "torchtitan.components.quantization",
    "CompileConfig": "torchtitan.config",
    "DebugConfig": "torchtitan.config",
    "ParallelismConfig": "torchtitan.config",
    "TrainingConfig": "torchtitan.config",
    "FullAC": "torchtitan.distributed.activation_checkpoint",
    "SelectiveAC": "torchtitan.distributed.activation_checkpoint",
    "pipeline_llm": "torchtitan.distributed.pipeline_parallel",
    "HuggingFaceTextDataLoader": "torchtitan.hf_datasets.text_datasets",
    "ComplexRoPE": "torchtitan.models.common",
    "CosSinRoPE": "torchtitan.models.common",
    "Embedding": "torchtitan.models.common",
    "Linear": "torchtitan.models.common",
    "RMSNorm": "torchtitan.models.common",
    "get_attention_config": "torchtitan.models.common.config_utils",
    "make_ffn_config": "torchtitan.models.common.config_utils",
    "make_gqa_config": "torchtitan.models.common.config_utils",
    "make_moe_config": "torchtitan.models.common.config_utils",
    "make_routed_experts_config": "torchtitan.models.common.config_utils",
    "make_router_config": "torchtitan.models.common.config_utils",
    "make_mla_attention_config": "torchtitan.models.deepseek_v3",
    "MTPLoss": "torchtitan.models.deepseek_v3",
    "MTPTransformerBlock": "torchtitan.models.deepseek_v3",
    "ModelSpec": "torchtitan.protocols.model_spec",
    "Trainer": "torchtitan.trainer",
    **{name: f"torchtitan.models.{kind.module}.model" for kind in FAMILIES for name in (kind.model, kind.block)},
    **{kind.parallelize: f"torchtitan.models.{kind.module}.parallelize" for kind in FAMILIES},
    **{kind.adapter: f"torchtitan.models.{kind.module}.state_dict_adapter" for kind in FAMILIES},
}
"""Names that the file may use, and where they are."""


def schedule_name(job: TrainerJob) -> str:
    """The layout's schedule in torch.distributed.pipelining, or the usual one of as many stages."""
    usual = usual_schedule(job.layout.virtual_stages).names["torch"]
    return find_schedule(job.layout.schedule).names.get("torch", usual)


def splits_norms(job: TrainerJob) -> bool:
    """Whether every stage has norms: torchtitan refuses a group of parameters that matches nothing."""
    return all("t" in stage or "L" in stage for stage in job.stages)


def left_out(job: TrainerJob) -> list[str]:
    """The settings that torchtitan runs otherwise, one sentence each."""
    found = [text for text, applies in (*_of_layout(job), *_of_model(job), *_of_precision(job)) if applies]
    found += [*unwritten(job.model), *job.unwritten_choices("tp_collectives", "dispatcher")]
    return [
        *unstated(job, ("adamw",), TORCHTITAN_DECAYS),
        *found,
        *outermost(job.layout, "torchtitan's mesh has pp outermost"),
    ]


def _of_layout(job: TrainerJob) -> list[tuple[str, bool]]:
    layout, model = job.layout, job.model
    is_known = "torch" in find_schedule(layout.schedule).names
    catalogue = "is not in torch.distributed.pipelining's catalogue: it will run"
    replicas = "torchtitan has replicas or FSDP"
    return [
        (f"ZeRO-0: {replicas}: data_parallel_shard_degree = 1 replicates all states", layout.zero == 0),
        ("ZeRO-0 with experts: their ranks are sharded there, as in ZeRO-2", layout.zero == 0 and layout.ep > 1),
        (f"ZeRO-1: {replicas}: parameters that are not resharded after the forward are ZeRO-2", layout.zero == 1),
        (f"the schedule {layout.schedule} {catalogue} {schedule_name(job)}", layout.pp > 1 and not is_known),
        (f"{layout.cp_method}: torchtitan gathers keys and values", layout.cp > 1 and layout.cp_method != "all_gather"),
        (f"etp = {layout.etp}: torchtitan does not split an expert's matrices", layout.etp > 1),
        (
            f"tp = {layout.tp}: has to divide num_kv_heads = {model.num_kv_heads} there",
            not model.is_mla and model.num_kv_heads % layout.tp > 0,
        ),
        (
            "selective recomputation keeps other tensors there: every second matmul is made again",
            layout.recompute.startswith("selective"),
        ),
        (every_block(layout), ":" in layout.recompute),
        ("norms are decayed too: a stage has none, and torchtitan takes no empty group", not splits_norms(job)),
        (
            "tp_collectives = overlapped: torchtitan's asynchronous tensor parallelism needs blocks that are compiled",
            job.overlaps_tensor and not compiles_blocks(job),
        ),
    ]


def _of_model(job: TrainerJob) -> list[tuple[str, bool]]:
    model, yarn = job.model, job.model.yarn_scaling
    mtp = "torchtitan has them with MLA, without pipelines and context parallelism"
    silu = model.activation == "silu" and model.gated
    return [
        ("document_mask = false: attention stays within documents there", not job.request.document_mask),
        (
            "sliding windows: are not in the file",
            job.request.windows is not None or bool(windows_of(job.model, job.request.sequence_length)),
        ),
        (
            "tie_embeddings: torchtitan does not tie them here: they are two matrices",
            model.tie_embeddings and not is_tied(job),
        ),
        (f"{model.mtp_layers} MTP modules: {mtp}: they are left out", bool(model.mtp_layers) and not has_mtp(job)),
        ("norm = 'layer': torchtitan's decoders have RMSNorm", model.norm != "rms"),
        (f"{model.activation}, gated = {model.gated}: it will run SwiGLU", not silu),
        ("learned positions: it will rotate queries and keys", model.positions != "rope"),
        ("biases: its linear layers have none", model.qkv_bias or model.linear_bias),
        (
            "rope_scaling: Qwen3's rotary embedding there has none",
            model.rope_scaling is not None and family(job).rope != "ComplexRoPE",
        ),
        (
            "yarn_scaling.attention_factor: is not there",
            yarn is not None and yarn.attention_factor is not None,
        ),
        (
            "yarn_scaling.mscale: cosines and sines keep their magnitude there",
            yarn is not None and (yarn.mscale or 1.0) != (yarn.mscale_all_dim or yarn.mscale or 1.0),
        ),
        ("balance_loss: torchtitan balances experts by a bias alone", bool(model.balance_loss)),
        ("z_loss: is not there", bool(model.z_loss)),
        ("capacity_factor: torchtitan drops no tokens", model.capacity_factor is not None),
        (
            f"vocabulary of {model.vocab_size} rows: is not padded there, and tp = {job.layout.tp} does not divide it",
            model.vocab_size % job.layout.tp > 0,
        ),
    ]


def _of_precision(job: TrainerJob) -> list[tuple[str, bool]]:
    precision = job.request.precision
    return [
        ("gradients in bf16: are reduced in fp32 there", precision.gradients_format == "bf16"),
        (f"precision {precision.compute}: torchtitan computes in bf16 or fp32", precision.compute == "fp64"),
        ("fp8 with scales of blocks: it will run scales of rows", job.gemm_dtype == "fp8-block"),
        ("nvfp4: routed experts stay in bf16", job.gemm_dtype == "nvfp4" and bool(job.model.num_experts)),
    ]


def torchtitan(job: TrainerJob) -> Export:
    """A shell script that writes `planned.py` and starts torchtitan with it."""
    where = "where torchtitan is installed (pip install torchtitan==0.3.0)"
    command = 'PYTHONPATH="$PWD" ' + torchrun(job, "-m torchtitan.train --module planned --config planned")
    lines = [*model_lines(job), *_parts(job), *function("planned() -> Trainer.Config", _config(job))]
    files = {"planned.py": with_imports(lines, MODULES)}
    return Export(script(job, where, command, {}, DATA | steps_input(job), files=files), left_out(job))


def _parts(job: TrainerJob) -> list[str]:
    """The modules of every pipeline stage."""
    if job.layout.pp == 1:
        return []
    ends = list(accumulate((stage.count("t") for stage in job.stages), initial=0))
    return [
        f"ENDS = {ends}",
        'PARTS = [[f"layers.{layer}" for layer in range(first, end)] for first, end in pairwise(ENDS)]',
        'PARTS[0].insert(0, "tok_embeddings")',
        'PARTS[-1] += ["norm", "lm_head"]',
    ]


def compiles_blocks(job: TrainerJob) -> bool:
    """Whether the file has blocks compiled."""
    return not job.model.num_experts or job.gemm_dtype is not None


def _config(job: TrainerJob) -> Call:
    keep = job.run.checkpoint.keep if job.run is not None else 2
    recompute = {"none": None, "full": "FullAC.Config()", "selective": "SelectiveAC.Config()"}
    keys: dict[str, object] = {
        "loss": _loss(job),
        "model_spec": "SPEC",
        "hf_assets_path": '"$TOKENIZER"',
        "dataloader": Call("HuggingFaceTextDataLoader.Config", {"dataset": '"c4"', "dataset_path": '"$DATA"'}),
        "optimizer": _optimizer(job),
        "lr_scheduler": _schedule(job),
        "training": _training(job),
        "parallelism": Call("ParallelismConfig", _parallelism(job)),
        "activation_checkpoint": recompute[job.layout.recompute.partition(":")[0]],
        "compile": Call(
            "CompileConfig",
            {"enable": True, "components": '["model", "loss"]' if compiles_blocks(job) else '["loss"]'}
            | ({"enable_async_tensor_parallel": True} if job.overlaps_tensor and compiles_blocks(job) else {}),
        ),
        "checkpoint": Call(
            "CheckpointManager.Config", {"enable": True, "interval": job.save_every, "keep_latest_k": max(keep, 2)}
        ),
        "metrics": Call("MetricsProcessor.Config", {"log_freq": 1}),
        "debug": Call("DebugConfig", {"seed": job.seed}),
    }
    return Call("Trainer.Config", keys)


def _loss(job: TrainerJob) -> Call:
    rows: dict[str, object] = {"global_vocab_size": job.model.vocab_size}
    if has_mtp(job):
        return Call("MTPLoss.Config", {"mtp_scale": job.model.mtp_loss} | rows)
    return Call("ChunkedLossWrapper.Config", {"loss_fn": Call("CrossEntropyLoss.Config", rows)})


def _optimizer(job: TrainerJob) -> Call:
    """Groups of parameters: norms and biases are not decayed."""
    section = job.optimizer
    adamw = section if isinstance(section, AdamWSection) else AdamWSection()
    groups = [('".*"', section.weight_decay)]
    if splits_norms(job):
        groups.insert(0, ('"norm[.]weight|bias"', 0.0))
    common = {"lr": number(section.lr), "betas": adamw.betas, "eps": number(adamw.eps)}
    calls = [
        Call(
            "ParamGroupConfig",
            {
                "pattern": pattern,
                "optimizer_name": '"AdamW"',
                "optimizer_kwargs": Call("dict", common | {"weight_decay": decay}),
            },
        )
        for pattern, decay in groups
    ]
    narrow = job.state_format == "bf16"
    more: dict[str, object] = {"implementation": '"fused_opt_states_bf16"'} if narrow else {}
    return Call("OptimizersContainer.Config", {"param_groups": calls} | more)


def _schedule(job: TrainerJob) -> Call:
    section = job.optimizer
    shape = section.decay_shape if section.decay_shape in TORCHTITAN_DECAYS else "linear"
    ratio, kind = {
        "cosine": (None, "cosine"),
        "linear": (None, "linear"),
        "wsd": (section.decay_fraction, shape),
    }.get(section.schedule, ("0.0", "linear"))
    return Call(
        "LRSchedulersContainer.Config",
        {
            "warmup_steps": section.warmup_steps,
            "decay_ratio": ratio,
            "decay_type": f'"{kind}"',
            "min_lr_factor": section.min_lr_ratio,
        },
    )


def _training(job: TrainerJob) -> Call:
    layout, request = job.layout, job.request
    at_once = request.global_sequences // layout.dp if layout.pp > 1 else layout.microbatch_sequences
    keys = {
        "local_batch_size": at_once,
        "global_batch_size": request.global_sequences,
        "seq_len": request.sequence_length,
        "max_norm": job.optimizer.clip_norm or 'float("inf")',
        "steps": job.share_of_steps(),
        "mixed_precision_param": '"bfloat16"' if request.precision.compute == "bf16" else '"float32"',
        "disable_cuda_graphs": True,
    }
    return Call("TrainingConfig", keys)


def _parallelism(job: TrainerJob) -> dict[str, object]:
    layout = job.layout
    shard = 1 if layout.zero == 0 and layout.ep == 1 else layout.dp_shard
    keys: dict[str, object] = {
        "data_parallel_replicate_degree": layout.dp // shard,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": '"always"' if layout.zero == 3 else '"never"',
        "tensor_parallel_degree": layout.tp,
        "context_parallel_degree": layout.cp,
        "pipeline_parallel_degree": layout.pp,
        "expert_parallel_degree": layout.ep,
    }
    if layout.pp > 1:
        keys |= {
            "pipeline_parallel_schedule": f'"{schedule_name(job)}"',
            "pipeline_parallel_microbatch_size": layout.microbatch_sequences,
            "module_fqns_per_model_part": "PARTS",
        }
    return keys
