"""The software profile of a trainer: one of a dozen families that share kernels, overlap and memory, with what its makers document
as flags."""

from dataclasses import dataclass

from fourfold.config.kernel_choice import NO_CHOICE, KernelChoice

FAMILIES: dict[str, tuple[str, ...]] = {
    "megatron": ("internevo", "mindformers", "paddlenlp"),
    "megatron-deepspeed": ("megatron-neox", "vtrain-megatron-deepspeed", "oneflow"),
    "deepspeed": ("colossal-ai", "sagemaker", "xtuner"),
    "torchtitan": ("halo", "kempnerforge", "olmo-core", "prime-rl", "thunder", "veomni"),
    "pytorch": ("ds3lab", "fsdp", "lightning", "llm-foundry", "modalities", "nanogpt", "picotron"),
    "maxtext": ("levanter", "neuronx", "paxml"),
    "maxtext-gpu": ("alpa",),
    "llm.c": ("llmq",),
}
"""Frameworks by the profile whose kind they are: Megatron's kernels and layouts on other devices, Megatron under DeepSpeed,
DeepSpeed's ZeRO, torch's FSDP2 compiled, torch's own modules under FSDP, DDP or a pipeline of their own, programs that XLA compiles
for a TPU or for GPUs, programs in C and CUDA. A framework that is not named is its own profile, or that of what its name begins
with (a fork of Megatron, Megatron's)."""
PROFILES = (
    *FAMILIES,
    "megatron-rocm",
    "nemo",
    "nanotron",
    "meta",
    "deepseek",
    "torchtitan-2026",
    "automodel",
)
YEARS = {"torchtitan": 2026}
"""Profiles with another one from a year on: sources that are left out are predicted better so, by 1 % of their error and more."""
FUSED_SINCE = (2026, 6)
_OF = {framework: profile for profile, frameworks in FAMILIES.items() for framework in frameworks}


def profile_of(framework: str, platform: str, year: int = 0) -> str:
    """Megatron's forks on AMD are one profile, wherever they come from."""
    if framework.startswith(("megatron", "nemo")) and platform == "rocm":
        return "megatron-rocm"
    words = framework.split("-")
    names = ("-".join(words[:number]) for number in range(len(words), 0, -1))
    profile = next((_OF.get(name, name) for name in names if name in _OF or name in PROFILES), framework)
    return f"{profile}-{YEARS[profile]}" if year >= YEARS.get(profile, year + 1) else profile


@dataclass(frozen=True)
class Documented:
    """The flags of a trainer that its makers document; None: nothing is said."""

    overlap: bool | None = None
    kernels: KernelChoice = NO_CHOICE
    outermost: str = "pp"


def documented(framework: str, version: tuple[int, int]) -> Documented:
    """SimuMax's runs wait for their communication. NeMo and Megatron Bridge dispatch by DeepEP, since 2026 by HybridEP, and fuse
    the experts' activation and quantization into grouped kernels since 26.06. Meta's ranks are ordered TP, CP, PP, DP (Llama Team
    2024, section 3.3.2)."""
    if framework == "meta":
        return Documented(outermost="dp")
    if framework == "megatron-simumax":
        return Documented(overlap=False)
    if framework == "nemo":
        return Documented(
            kernels=KernelChoice(
                dispatcher="hybridep" if version >= (2026, 0) else "deepep",
                experts="fused" if version >= FUSED_SINCE else None,
            )
        )
    return Documented()
