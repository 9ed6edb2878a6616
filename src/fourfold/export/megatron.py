"""Megatron-LM: the command `torchrun ... pretrain_gpt.py`, with every flag that it needs (core 0.20).

A layout is said in its flags, with what they leave out.
"""

from fourfold.config.optimizers import AdamWSection, SgdSection
from fourfold.export.job import Export, TrainerJob, every_block, unstated
from fourfold.export.megatron_model import Part, expert_flags, joined, model_flags, runs
from fourfold.export.script import Flags, script, steps_input, torchrun
from fourfold.program.schedule import find_schedule, usual_schedule

CP_TYPES = {"ring": "p2p", "all_gather": "all_gather", "ulysses": "a2a"}
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
DATA = {
    "DATA": "tokenized documents: the prefix of a .bin and an .idx file (tools/preprocess_data.py)",
    "TOKENIZER": "a Hugging Face tokenizer: its name or folder",
}
FP8: dict[str, Flags] = {
    "fp8": {"fp8-format": "hybrid", "fp8-recipe": "tensorwise"},
    "fp8-block": {"fp8-format": "e4m3", "fp8-recipe": "blockwise"},
    "mxfp8": {"fp8-format": "e4m3", "fp8-recipe": "mxfp8"},
    "nvfp4": {"fp4-format": "e2m1", "fp4-recipe": "nvfp4"},
}
MEGATRON_DECAYS = {"linear": "linear", "cosine": "cosine", "sqrt": "minus_sqrt", "exponential": "exponential"}
"""Megatron-LM's names of the final decay's shapes."""


def layout_flags(job: TrainerJob) -> Part:
    """Degrees, pipeline, data parallelism, recomputation, overlap."""
    layout = job.layout
    flags: Flags = {
        "tensor-model-parallel-size": layout.tp,
        "pipeline-model-parallel-size": layout.pp,
        "context-parallel-size": layout.cp,
    }
    flags |= {"sequence-parallel": True} if job.request.section(layout).sequence_parallel else {}
    if layout.ep > 1 or layout.etp > 1 or (layout.tp > 1 and job.model.num_experts):
        flags |= {"expert-model-parallel-size": layout.ep, "expert-tensor-parallel-size": layout.etp}
    parts = (_pipeline(job), _context(job), _data_parallel(job), _order(job), _recompute(job), _expert_overlap(job))
    unwritten = job.unwritten_choices("tp_collectives", "dispatcher", "ep_collectives")
    return joined((flags, unwritten), _tensor_overlap(job), *parts)


def _pipeline(job: TrainerJob) -> Part:
    layout = job.layout
    if layout.pp == 1:
        return {}, []
    flags: Flags = {}
    missing = []
    if not job.has_even_stages:
        flags["pipeline-model-parallel-layout"] = stage_text(job.stages)
    elif layout.virtual_stages > 1:
        flags["num-virtual-stages-per-pipeline-rank"] = layout.virtual_stages
    usual = usual_schedule(layout.virtual_stages).names["megatron"]
    if "megatron" not in find_schedule(layout.schedule).names:
        missing.append(
            f"the schedule {layout.schedule} is not in Megatron-LM: it will run {usual}, with a larger bubble"
        )
    if layout.virtual_stages > 1 and job.microbatches % layout.pp:
        group = _microbatch_group(job.microbatches, layout.pp)
        flags |= {"microbatch-group-size-per-virtual-pipeline-stage": group} if group else {}
        change = (
            f"a stage takes {group} in a row and holds more activations"
            if group
            else "it will refuse: change the batch"
        )
        missing.append(f"{job.microbatches} microbatches: {usual} wants a multiple of pp = {layout.pp} there: {change}")
    return flags, missing


def _microbatch_group(microbatches: int, pp: int) -> int | None:
    """The fewest microbatches in a row, at least `pp`, whose last group has none or at least `pp`."""
    sizes = range(pp, microbatches + 1)
    return next((size for size in sizes if not 0 < microbatches % size < pp), None)


def stage_text(stages: tuple[str, ...]) -> str:
    """`Et*3|(t*4|)*6t*2L`: the value of `--pipeline-model-parallel-layout`."""
    *before, last = ["".join(f"{one}*{n}" if n > 1 else one for one, n in runs(stage)) for stage in stages]
    return "".join(f"({text}|)*{n}" if n > 1 else f"{text}|" for text, n in runs(before)) + last


def _context(job: TrainerJob) -> Part:
    layout = job.layout
    if layout.cp == 1:
        return {}, []
    kind = CP_TYPES.get(layout.cp_method, "a2a+p2p")
    inner = layout.shape.ulysses
    sizes: Flags = {"hierarchical-context-parallel-sizes": [inner, layout.cp // inner]} if kind == "a2a+p2p" else {}
    return {"cp-comm-type": kind} | sizes, []


def _data_parallel(job: TrainerJob) -> Part:
    layout, flags, missing = job.layout, Flags(), []
    flags["overlap-grad-reduce"] = True
    if layout.zero:
        flags |= {"use-distributed-optimizer": True, "overlap-param-gather": True}
        flags |= {"num-distributed-optimizer-instances": layout.dp_replicate} if layout.dp_replicate > 1 else {}
    if layout.zero >= 2:
        flags |= {
            "use-megatron-fsdp": True,
            "data-parallel-sharding-strategy": SHARDING[layout.zero],
            "no-gradient-accumulation-fusion": True,
            "ckpt-format": "fsdp_dtensor",
        }
        missing.append("Megatron-FSDP wants CUDA_DEVICE_MAX_CONNECTIONS unset or above 1: the script unsets it")
        if layout.pp > 1:
            missing.append(
                f"ZeRO-{layout.zero} inside a pipeline: Megatron-FSDP reduces and gathers otherwise than priced here"
            )
        if job.optimizer.name not in ("adamw", "sgd"):
            missing.append(f"optimizer {job.optimizer.name}: Megatron-FSDP has adam and sgd")
    return flags, missing


def _order(job: TrainerJob) -> Part:
    """Which axis lies outermost."""
    layout, missing = job.layout, []
    if layout.pp == 1 or layout.outermost == "pp":
        return {}, []
    if layout.outermost == "dp_replicate" and layout.dp_shard > 1:
        words = "Megatron-LM numbers ranks with pp outermost, or all of dp (--use-tp-pp-dp-mapping)"
        return {}, [f"dp_replicate outermost: {words}"]
    if layout.zero >= 2:
        return {}, [f"{layout.outermost} outermost: Megatron-FSDP goes without --use-tp-pp-dp-mapping"]
    if layout.ep * layout.etp > 1 and layout.ep * layout.etp != layout.tp * layout.cp:
        missing.append("--use-tp-pp-dp-mapping: Megatron-LM takes it with experts only where ep x etp = tp x cp")
    return {"use-tp-pp-dp-mapping": True}, missing


def _recompute(job: TrainerJob) -> Part:
    layout, model = job.layout, job.model
    policy, some, count = layout.recompute.partition(":")
    if policy == "none":
        return {}, []
    missing = []
    if policy == "full":
        is_block = bool(some) and layout.pp == 1
        flags: Flags = {
            "recompute-granularity": "full",
            "recompute-method": "block" if is_block else "uniform",
            "recompute-num-layers": int(count) if is_block else 1,
        }
        return flags, [every_block(layout)] if some and not is_block else []
    modules = ["layernorm", *(["moe_act"] if model.num_experts else []), *(["mla_up_proj"] if model.is_mla else [])]
    if some:
        missing.append(every_block(layout))
    if model.has_dense_blocks or model.num_shared_experts:
        where = "the feed-forward's activation function again"
        missing.append(f"selective recomputation makes {where}: outside routed experts it is kept there")
    if model.is_mla:
        missing.append("selective recomputation keeps the up-projections of latents: mla_up_proj makes them again too")
    return {"recompute-granularity": "selective", "recompute-modules": modules}, missing


def _tensor_overlap(job: TrainerJob) -> Part:
    """Collectives of tensor parallelism beside matmuls, where the software's price has it."""
    if not job.overlaps_tensor:
        return {}, []
    if not job.request.section(job.layout).sequence_parallel:
        return {}, ["tp_collectives = overlapped: --tp-comm-overlap needs --sequence-parallel"]
    return {"tp-comm-overlap": True}, []


def _expert_overlap(job: TrainerJob) -> Part:
    """Dispatch to experts beside another microbatch's computation, where the software's price has it."""
    layout, software = job.layout, job.request.software
    if layout.ep == 1 or not (software.merged_experts or software.overlap_experts):
        return {}, []
    name, reasons = "--overlap-moe-expert-parallel-comm", []
    reasons += ["a pipeline with several stages a rank"] if layout.pp > 1 and layout.virtual_stages == 1 else []
    reasons += ["no full recomputation"] if layout.recompute.startswith("full") else []
    reasons += ["at most one MTP module"] if job.model.mtp_layers > 1 else []
    if reasons:
        return {}, [f"dispatch beside computation: {name} needs {' and '.join(reasons)}"]
    return {"overlap-moe-expert-parallel-comm": True}, []


def megatron(job: TrainerJob) -> Export:
    """A shell script, to be run in a checkout of Megatron-LM."""
    parts = settings(job)
    flags, inputs = {name: part[0] for name, part in parts.items()}, DATA | steps_input(job)
    where = "in a checkout of NVIDIA/Megatron-LM (core 0.20)"
    text = script(job, where, torchrun(job, "pretrain_gpt.py"), flags, inputs, environment(job))
    return Export(text, joined(*parts.values())[1])


def settings(job: TrainerJob) -> dict[str, Part]:
    """All flags, in groups."""
    return {
        "MODEL": joined(({}, unstated(job, ("adamw", "sgd"), MEGATRON_DECAYS)), model_flags(job)),
        "EXPERTS": expert_flags(job),
        "LAYOUT": layout_flags(job),
        "PRECISION": _precision(job),
        "TRAINING": _training(job),
        "DATA_AND_LOG": _data(job),
    }


def environment(job: TrainerJob) -> dict[str, str | None]:
    """Variables that Megatron-LM asserts: one hardware queue where tensors or sequences are split, more for its FSDP."""
    if job.layout.zero >= 2:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": None}
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if job.layout.tp * job.layout.cp > 1 else {}


def _precision(job: TrainerJob) -> Part:
    precision, missing = job.request.precision, []
    flags: Flags = {}
    if precision.compute == "bf16":
        narrow = precision.gradients_format == "bf16"
        flags = {"bf16": True, "grad-reduce-in-bf16" if narrow else "accumulate-allreduce-grads-in-fp32": True}
    for key, value in (("compute", precision.compute), ("master", precision.master_format)):
        if value == "fp64":
            missing.append(f"precision.{key} = 'fp64': Megatron-LM computes in bf16, fp16 or fp32")
    flags |= FP8[job.gemm_dtype] if job.gemm_dtype else {}
    states = job.state_format
    if states is not None and job.layout.zero:
        flags |= {"use-precision-aware-optimizer": True, "exp-avg-dtype": states, "exp-avg-sq-dtype": states}
    elif states is not None:
        missing.append(f"optimizer states in {states}: --use-precision-aware-optimizer needs ZeRO-1 or more")
    return flags, missing


def _training(job: TrainerJob) -> Part:
    optimizer, missing = job.optimizer, []
    styles = {"cosine": "cosine", "linear": "linear", "wsd": "WSD"}
    flags: Flags = {
        "micro-batch-size": job.layout.microbatch_sequences,
        "global-batch-size": job.request.global_sequences,
        "train-iters": job.share_of_steps(),
        "lr": optimizer.lr,
        "min-lr": optimizer.lr * optimizer.min_lr_ratio,
        "lr-decay-style": styles.get(optimizer.schedule, "constant"),
        "lr-decay-iters": job.share_of_steps(),
        "lr-warmup-iters": optimizer.warmup_steps,
        "weight-decay": optimizer.weight_decay,
        "clip-grad": optimizer.clip_norm or 0.0,
    }
    if optimizer.schedule == "wsd":
        shape = MEGATRON_DECAYS.get(optimizer.decay_shape, "linear")
        flags |= {"lr-wsd-decay-style": shape, "lr-wsd-decay-iters": job.share_of_steps(optimizer.decay_fraction)}
    if isinstance(optimizer, AdamWSection):
        beta1, beta2 = optimizer.betas
        flags |= {"optimizer": "adam", "adam-beta1": beta1, "adam-beta2": beta2, "adam-eps": optimizer.eps}
    elif isinstance(optimizer, SgdSection):
        flags |= {"optimizer": "sgd", "sgd-momentum": optimizer.momentum}
        if optimizer.nesterov:
            missing.append("optimizer.nesterov: Megatron-LM's sgd has plain momentum")
    flags |= {"seed": job.seed} if job.seed > 0 else {}
    return flags | {"cross-entropy-loss-fusion": True}, missing


def _data(job: TrainerJob) -> Part:
    percent = job.validation_percent
    flags: Flags = {
        "data-path": "$DATA",
        "tokenizer-type": "HuggingFaceTokenizer",
        "tokenizer-model": "$TOKENIZER",
        "split": f"{100 - percent},{percent},0",
        "no-create-attention-mask-in-dataloader": True,
        "eval-interval": job.evaluate_every,
        "eval-iters": job.evaluations,
        "save": "${CHECKPOINTS:-checkpoints}",
        "load": "${CHECKPOINTS:-checkpoints}",
        "save-interval": job.save_every,
        "log-interval": 1,
        "log-throughput": True,
    }
    return flags | ({"dataloader-inter-document-masking": True} if job.request.document_mask else {}), []
