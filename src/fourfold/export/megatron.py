"""Megatron-LM: the command `torchrun ... pretrain_gpt.py`, with every flag that it needs (core 0.20)."""

from fourfold.config.optimizers import AdamWSection, SgdSection
from fourfold.export.job import Export, TrainerJob, unstated
from fourfold.export.megatron_layout import layout_flags
from fourfold.export.megatron_model import Part, expert_flags, joined, model_flags
from fourfold.export.script import Flags, script, steps_input, torchrun

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
NARROW = {1.0: "fp8", 2.0: "bf16"}


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
        "MODEL": joined(({}, unstated(job, ("adamw", "sgd"))), model_flags(job)),
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
    states = NARROW.get(job.request.software.optimizer_bytes or 4.0)
    if states is not None and job.layout.zero:
        flags |= {"use-precision-aware-optimizer": True, "exp-avg-dtype": states, "exp-avg-sq-dtype": states}
    elif states is not None:
        missing.append(f"optimizer states in {states}: --use-precision-aware-optimizer needs ZeRO-1 or more")
    return flags, missing


def _training(job: TrainerJob) -> Part:
    optimizer, missing = job.optimizer, []
    styles = {"cosine": "cosine", "wsd": "WSD", "constant": "constant"}
    flags: Flags = {
        "micro-batch-size": job.layout.microbatch_sequences,
        "global-batch-size": job.request.global_sequences,
        "train-iters": job.share_of_steps(),
        "lr": optimizer.lr,
        "min-lr": optimizer.lr * optimizer.min_lr_ratio,
        "lr-decay-style": styles[optimizer.schedule],
        "lr-decay-iters": job.share_of_steps(),
        "lr-warmup-iters": optimizer.warmup_steps,
        "weight-decay": optimizer.weight_decay,
        "clip-grad": optimizer.clip_norm or 0.0,
    }
    if optimizer.schedule == "wsd":
        flags |= {"lr-wsd-decay-style": "linear", "lr-wsd-decay-iters": job.share_of_steps(optimizer.decay_fraction)}
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
