"""Flags of trainers that their makers document. Whose constants one has, its software profile says (`prior_constants.toml`)."""

from dataclasses import dataclass

from fourfold.cost.software import Dispatcher

FUSED_SINCE = (2026, 6)


@dataclass(frozen=True)
class Documented:
    """The flags of a trainer that its makers document; None: nothing is said."""

    overlap: bool | None = None
    dispatcher: Dispatcher | None = None
    fused_experts: bool = False
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
            dispatcher="hybridep" if version >= (2026, 0) else "deepep", fused_experts=version >= FUSED_SINCE
        )
    return Documented()
