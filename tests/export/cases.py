"""Jobs that are exported: models of every kind, with layouts of every kind."""

from dataclasses import replace
from functools import cache

from fourfold.config import ModelSection
from fourfold.config.kernel_choice import KernelChoice
from fourfold.config.optimizers import AdamWSection, SgdSection
from fourfold.config.schema import PrecisionSection
from fourfold.cost.prices import Windows
from fourfold.export.job import TrainerJob
from fourfold.hardware import load_cluster
from fourfold.huggingface import resolve_model
from fourfold.plan.candidate import Candidate
from fourfold.plan.request import Request
from fourfold.simulate.run_prices import SoftwareOverrides
from tests.plan.test_bounds import DENSE, EXPERTS, MLA, drawn

DEFAULT = Candidate(
    pp=1, schedule="1f1b", virtual_stages=1, dp_replicate=1, dp_shard=4, zero=1, cp=1, cp_method="ring", tp=1, ep=1, etp=1,
    microbatch_sequences=1, recompute="none",
)  # fmt: skip
SHAPES: dict[str, dict] = {
    "dense": DENSE,
    "experts": DENSE | EXPERTS,
    "experts after dense": DENSE | EXPERTS | {"first_dense_layers": 2, "balance_loss": 0.01, "z_loss": 1e-3},
    "experts in every second block": DENSE | EXPERTS | {"moe_period": 2, "normalize_top_k": False},
    "latent": DENSE | MLA,
}
LLAMA = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0, "original_max_position": 1024}
YARN = {"factor": 4.0, "original_max_position": 4096, "mscale": 1.0, "mscale_all_dim": 1.0}
OTHERS: dict[str, dict] = {
    "yarn": DENSE | {"yarn_scaling": YARN},
    "latent, yarn": DENSE | MLA | {"yarn_scaling": YARN},
    "scaled rotary": DENSE | {"rope_scaling": LLAMA},
    "biases, tied": DENSE | {"qkv_bias": True, "tie_embeddings": True},
    "capacity": DENSE | EXPERTS | {"capacity_factor": 1.25, "top_k": 1, "num_shared_experts": 1},
    "sigmoid": DENSE | EXPERTS | {"router": "sigmoid", "balance_bias_speed": 1e-3, "routed_scaling": 2.5},
}
"""Models that are exported under two layouts alone."""
PRESETS = ("llama3-8b", "llama3.1-8b", "llama3.2-1b", "qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b")
LARGE = ("llama3-405b", "deepseek-v3", "gpt3-175b")
LAYOUTS: dict[str, dict] = {
    "replicas": {"zero": 0, "dp_replicate": 4, "dp_shard": 1},
    "zero 1": {},
    "zero 2": {"zero": 2},
    "zero 3": {"zero": 3},
    "hsdp": {"zero": 3, "dp_replicate": 2},
    "hsdp, zero 1": {"dp_replicate": 2},
    "tp": {"tp": 4},
    "tp, zero 3": {"tp": 2, "zero": 3},
    "cp ring": {"cp": 2},
    "cp all-gather": {"cp": 2, "cp_method": "all_gather"},
    "cp ulysses": {"cp": 2, "cp_method": "ulysses"},
    "cp ring + ulysses": {"cp": 4, "cp_method": "ring+ulysses:2"},
    "pp": {"pp": 2},
    "pp, zero 3": {"pp": 2, "zero": 3},
    "pp 3": {"pp": 3, "tp": 2},
    "pp uneven": {"pp": 4},
    "interleaved": {"pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 3},
    "interleaved uneven": {"pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    "interleaved, odd batch": {
        "pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 3, "microbatch_sequences": 4,
    },
    "zero bubble": {"pp": 2, "schedule": "zb_h1"},
    "zero bubble v": {"pp": 2, "schedule": "zb_v", "virtual_stages": 2},
    "data outermost": {"pp": 2, "outermost": "dp"},
    "data outermost, zero 3": {"pp": 2, "outermost": "dp", "zero": 3},
    "replicas outermost": {"pp": 2, "outermost": "dp_replicate", "dp_replicate": 2, "dp_shard": 2},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full", "tp": 2},
    "full of some": {"recompute": "full:3"},
    "full of some, pp": {"recompute": "full:3", "pp": 2},
    "selective of some": {"recompute": "selective:3"},
    "microbatch 2": {"microbatch_sequences": 2},
}  # fmt: skip
EXPERT_LAYOUTS: dict[str, dict] = {
    "ep": {"ep": 4},
    "ep, tp": {"ep": 2, "tp": 2},
    "ep, etp": {"ep": 2, "etp": 2, "tp": 2},
    "ep, pp": {"ep": 4, "pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2, "recompute": "selective"},
    "ep, zero 3": {"ep": 2, "zero": 3},
    "ep, data outermost": {"ep": 2, "pp": 2, "outermost": "dp"},
}
MEGATRON = {"software": "megatron-2025"}
REQUESTS: dict[str, dict] = {
    "fp8": {"software_overrides": SoftwareOverrides(gemm_dtype="fp8"), **MEGATRON},
    "fp8 in blocks": {"software_overrides": SoftwareOverrides(gemm_dtype="fp8-block"), **MEGATRON},
    "mxfp8": {"software_overrides": SoftwareOverrides(gemm_dtype="mxfp8"), "cluster": "dgx-b200", **MEGATRON},
    "nvfp4": {"software_overrides": SoftwareOverrides(gemm_dtype="nvfp4"), "cluster": "dgx-b200", **MEGATRON},
    "bf16 gradients": {"precision": PrecisionSection(compute="bf16", gradients="bf16")},
    "fp32": {"precision": PrecisionSection(compute="fp32")},
    "sgd": {"optimizer": SgdSection(name="sgd", nesterov=True)},
    "wsd": {"optimizer": AdamWSection(schedule="wsd", lr=1e-3, warmup_steps=100, betas=(0.9, 0.99), clip_norm=0.5)},
    "constant": {"optimizer": AdamWSection(schedule="constant")},
    "documents": {"document_mask": True},
    "windows": {"windows": Windows(512)},
    "windows in half": {"windows": Windows(512, 0.5)},
    "overlapped": {
        "software_overrides": SoftwareOverrides(kernels=KernelChoice(tp_collectives="overlapped")),
        **MEGATRON,
    },
    "graph": {"software_overrides": SoftwareOverrides(kernels=KernelChoice(launches="graph")), **MEGATRON},
    "hybridep": {"software_overrides": SoftwareOverrides(kernels=KernelChoice(dispatcher="hybridep")), **MEGATRON},
    "deepseek": {"software": "deepseek-2024"},
    "megatron": {"software": "megatron-2025"},
}


@cache
def asked(model: str, devices: int, options: str = "") -> Request:
    section = ModelSection(**(SHAPES | OTHERS)[model]) if model in SHAPES | OTHERS else ModelSection(preset=model)
    more = dict(REQUESTS[options]) if options else {}
    cluster = load_cluster(f"{more.pop('cluster', 'dgx-h100')}:{devices}")
    return Request.of(resolve_model(section), cluster, 2048, 48 if devices < 64 else 1024, **more)


def job(model: str, layout: dict, options: str = "") -> TrainerJob:
    candidate = replace(DEFAULT, **layout)
    devices = candidate.pp * candidate.dp * candidate.cp * candidate.tp
    return TrainerJob(asked(model, devices, options), candidate)


def jobs() -> dict[str, TrainerJob]:
    """By name, all that are written out above."""
    found = {f"{model}: {name}": job(model, layout) for model in SHAPES for name, layout in LAYOUTS.items()}
    experts = [model for model in SHAPES if model != "dense"]
    found |= {f"{model}: {name}": job(model, layout) for model in experts for name, layout in EXPERT_LAYOUTS.items()}
    found |= {f"{model}: {name}": job(model, LAYOUTS[name]) for model in OTHERS for name in ("tp", "pp")}
    for options in REQUESTS:
        found |= {f"{model}, {options}": job(model, LAYOUTS["pp"], options) for model in SHAPES}
        found[f"ep, {options}"] = job("experts", EXPERT_LAYOUTS["ep, pp"], options)
    found |= {f"{model}, 16 devices": job(model, {"dp_shard": 8, "pp": 2, "tp": 1}) for model in PRESETS}
    for model in LARGE:
        experts = {"ep": 8} if model == "deepseek-v3" else {}
        found[f"{model}, 128 devices"] = job(model, {"tp": 4, "pp": 8, "dp_shard": 4, **experts})
    for layout in ("tp", "full"):
        found[f"dense, overlapped: {layout}"] = job("dense", LAYOUTS[layout], "overlapped")
    return found


def traits(name: str) -> dict[str, object]:
    """Model, keys of the layout and options of a job of `jobs()`, by its name."""
    model, _, layout = name.partition(": ")
    model, _, options = model.partition(", ") if model not in OTHERS else (model, "", "")
    return {"model": model, "options": options, **(LAYOUTS | EXPERT_LAYOUTS).get(layout, {})}


def drawn_jobs(count: int, seed: int) -> list[TrainerJob]:
    """Layouts that the planner enumerates, drawn evenly."""
    requests = [asked(model, devices) for model in SHAPES for devices in (16, 32)]
    return [TrainerJob(request, candidate) for request in requests for candidate, _, _ in drawn(request, count, seed)]
