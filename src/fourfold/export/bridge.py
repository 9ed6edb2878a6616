"""Megatron-Bridge: a Python recipe, made of the same settings as Megatron-LM's command."""

from collections.abc import Mapping

from fourfold.export.job import Export, TrainerJob
from fourfold.export.megatron import DATA, environment, settings
from fourfold.export.megatron_model import joined
from fourfold.export.script import Call, Flags, assigned, expression, script, steps_input, torchrun, with_imports

FILE = "pretrain.py"
Place = str | tuple[str, ...] | None
"""`section.key`, several of them, or None: nothing there to say."""

PLACES: dict[str, Place] = {
    "swiglu": ("model.activation_func=functional.silu", "model.gated_linear_unit"),
    "seq-length": ("model.seq_length", "dataset.seq_length"),
    "max-position-embeddings": None,
    "padded-vocab-size": "model.vocab_size",
    "norm-epsilon": "model.layernorm_epsilon",
    "group-query-attention": None,
    "untie-embeddings-and-output-weights": "model.share_embeddings_and_output_weights=False",
    "disable-bias-linear": "model.add_bias_linear=False",
    "use-rope-scaling": "model.rope_scaling",
    "no-rope-fusion": "model.apply_rope_fusion=False",
    "num-experts": "model.num_moe_experts",
    "num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "microbatch-group-size-per-virtual-pipeline-stage": "model.microbatch_group_size_per_vp_stage",
    "overlap-grad-reduce": "ddp.overlap_grad_reduce",
    "overlap-param-gather": ("ddp.overlap_param_gather", "optimizer.overlap_param_gather"),
    "use-distributed-optimizer": ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
    "num-distributed-optimizer-instances": "ddp.num_distributed_optimizer_instances",
    "use-megatron-fsdp": ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"),
    "data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
    "no-gradient-accumulation-fusion": "model.gradient_accumulation_fusion=False",
    "ckpt-format": "checkpoint.ckpt_format",
    "use-tp-pp-dp-mapping": "dist.use_tp_pp_dp_mapping",
    "bf16": (
        "mixed_precision.bf16",
        "mixed_precision.params_dtype=torch.bfloat16",
        "mixed_precision.pipeline_dtype=torch.bfloat16",
    ),
    "grad-reduce-in-bf16": "mixed_precision.grad_reduce_in_fp32=False",
    "accumulate-allreduce-grads-in-fp32": "mixed_precision.grad_reduce_in_fp32",
    "fp8-format": "mixed_precision.fp8",
    "fp8-recipe": "mixed_precision.fp8_recipe",
    "fp4-format": "mixed_precision.fp4",
    "fp4-recipe": "mixed_precision.fp4_recipe",
    "use-precision-aware-optimizer": "optimizer.use_precision_aware_optimizer",
    "seed": ("rng.seed", "dataset.random_seed"),
    "data-path": "dataset.data_path",
    "split": "dataset.split",
    "no-create-attention-mask-in-dataloader": None,
    "dataloader-inter-document-masking": "dataset.inter_document_masking",
    "log-throughput": "logger.log_throughput",
    "log-interval": "logger.log_interval",
    "optimizer": "optimizer.optimizer",
    "weight-decay": ("optimizer.weight_decay", "scheduler.start_weight_decay", "scheduler.end_weight_decay"),
}
"""Flags whose key has another name than theirs, or a fixed value; switches become True."""
SECTIONS: dict[str, tuple[str, ...]] = {
    "train": ("train-iters", "global-batch-size", "micro-batch-size"),
    "validation": ("eval-interval", "eval-iters"),
    "optimizer": ("lr", "min-lr", "clip-grad", "sgd-momentum", "adam-beta1", "adam-beta2", "adam-eps"),
    "scheduler": ("lr-decay-style", "lr-decay-iters", "lr-warmup-iters", "lr-wsd-decay-style", "lr-wsd-decay-iters"),
    "tokenizer": ("tokenizer-type", "tokenizer-model"),
    "checkpoint": ("save", "load", "save-interval"),
}
"""Flags that keep their name, by section; those that stand nowhere are the model's."""
STATES = {"exp-avg-dtype": "optimizer.exp_avg_dtype", "exp-avg-sq-dtype": "optimizer.exp_avg_sq_dtype"}
YARN = ("rotary-scaling-factor", "mscale", "mscale-all-dim")
"""Flags whose keys are those of MLA; other attention has `yarn_` before them."""
TORCH_DTYPES = {"bf16": "torch.bfloat16", "fp8": "torch.uint8"}
CLASSES = {
    "train": "TrainingConfig",
    "validation": "ValidationConfig",
    "optimizer": "OptimizerConfig",
    "scheduler": "SchedulerConfig",
    "ddp": "DistributedDataParallelConfig",
    "dataset": "GPTDatasetConfig",
    "logger": "LoggerConfig",
    "tokenizer": "TokenizerConfig",
    "checkpoint": "CheckpointConfig",
    "rng": "RNGConfig",
    "dist": "DistributedInitConfig",
    "mixed_precision": "MixedPrecisionConfig",
}
ALWAYS: dict[str, dict[str, str]] = {
    "ddp": {"check_for_nan_in_grad": "True"},
    "dataset": {
        "random_seed": "1234",
        "dataloader_type": '"single"',
        "reset_position_ids": "False",
        "reset_attention_mask": "False",
        "eod_mask_loss": "False",
    },
    "logger": {"tensorboard_dir": '"tensorboard"'},
}
"""Keys that Bridge wants stated."""
MODULES = {
    "torch": "",
    "functional": "torch.nn",
    "GPTModelProvider": "megatron.bridge.models.gpt_provider",
    "MLAModelProvider": "megatron.bridge.models.mla_provider",
    "ConfigContainer": "megatron.bridge.training.config",
    **{name: "megatron.bridge.training.config" for section, name in CLASSES.items() if section != "mixed_precision"},
    "forward_step": "megatron.bridge.training.gpt_step",
    "MixedPrecisionConfig": "megatron.bridge.training.mixed_precision",
    "pretrain": "megatron.bridge.training.pretrain",
}
"""Names that the recipe may use, and where they are."""


def bridge(job: TrainerJob) -> Export:
    """A shell script that writes the recipe and starts it."""
    flags, missing = joined(*settings(job).values())
    if job.model.positions == "learned" and job.model.max_position > job.request.sequence_length:
        missing.append(f"max_position = {job.model.max_position}: Bridge learns as many positions as a sequence has")
    text = _recipe(job, _placed(job, flags))
    where = "where Megatron-Bridge is installed (pip install megatron-bridge)"
    command = torchrun(job, FILE)
    inputs = DATA | steps_input(job)
    return Export(script(job, where, command, {}, inputs, environment(job), {FILE: text}), missing)


def _placed(job: TrainerJob, flags: Flags) -> dict[str, dict[str, str]]:
    """Python expressions by section and key."""
    own = {flag: section for section, names in SECTIONS.items() for flag in names}
    found: dict[str, dict[str, str]] = {section: {} for section in ("model", *CLASSES)}
    for flag, value in flags.items():
        key = flag.replace("-", "_")
        if flag in YARN and not job.model.is_mla:
            key = f"yarn_{key}"
        place = (PLACES | STATES).get(flag, f"{own.get(flag, 'model')}.{key}")
        for text in (place,) if isinstance(place, str) else place or ():
            path, _, fixed = text.partition("=")
            section, _, name = path.partition(".")
            found[section][name] = fixed or (TORCH_DTYPES[str(value)] if flag in STATES else _expression(flag, value))
    if "bf16" not in flags:
        found["mixed_precision"] |= {"fp32": "True"} | dict.fromkeys(
            ("params_dtype", "pipeline_dtype"), "torch.float32"
        )
    for section, stated in ALWAYS.items():
        found[section] = stated | found[section]
    return found


def _expression(flag: str, value: object) -> str:
    """A flag's value in Python; the shell fills in `$NAME` before Python reads it."""
    if value is True:
        return "True"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return expression(value)
    if isinstance(value, list):
        return "[" + ", ".join(_expression(flag, each) for each in value) + "]"
    text = str(value)
    if flag in ("moe-layer-freq", "window-size"):
        return f"({text})" if flag == "window-size" else text
    return text if flag.endswith("-iters") else f'"{text}"'


def _recipe(job: TrainerJob, sections: Mapping[str, Mapping[str, str]]) -> str:
    provider = "MLAModelProvider" if job.model.is_mla else "GPTModelProvider"
    parts = {name: Call(kind, sections[name]) for name, kind in ({"model": provider} | CLASSES).items()}
    lines = assigned("config", Call("ConfigContainer", parts))
    return with_imports([*lines, "pretrain(config=config, forward_step_func=forward_step)"], MODULES)
