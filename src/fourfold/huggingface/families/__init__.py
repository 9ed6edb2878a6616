"""The families that fourfold trains, one file each, and the one that a model belongs to.

To add a family: write a file with its record (`Family`), list it in `FAMILIES`, and add a small model of it to
`tests/support/model_families.py`. Tests of configs, weights and gradients then compare it with transformers: docs/extending.md.
"""

from typing import Any

from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.families.deepseek import DEEPSEEK_V3
from fourfold.huggingface.families.gemma import GEMMA2, GEMMA3
from fourfold.huggingface.families.glm import GLM4_MOE
from fourfold.huggingface.families.gpt2 import GPT2
from fourfold.huggingface.families.gpt_oss import GPT_OSS
from fourfold.huggingface.families.kimi import KIMI_LINEAR
from fourfold.huggingface.families.lfm2 import LFM2
from fourfold.huggingface.families.llama import LLAMA
from fourfold.huggingface.families.llama4 import LLAMA4
from fourfold.huggingface.families.mistral import MISTRAL, MIXTRAL
from fourfold.huggingface.families.olmo import OLMO2, OLMO3, OLMO_HYBRID
from fourfold.huggingface.families.phi3 import PHI3
from fourfold.huggingface.families.qwen import QWEN2, QWEN3, QWEN3_5, QWEN3_5_MOE, QWEN3_MOE, QWEN3_NEXT
from fourfold.huggingface.family import Family

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(LLAMA, MISTRAL, QWEN2, QWEN3, MIXTRAL, QWEN3_MOE, DEEPSEEK_V3, GPT2, PHI3),
        *(OLMO2, OLMO3, OLMO_HYBRID, GEMMA2, GEMMA3),
        *(GLM4_MOE, QWEN3_NEXT, GPT_OSS, LFM2, LLAMA4, KIMI_LINEAR, QWEN3_5, QWEN3_5_MOE),
    )
}
"""Families by `model_type`. A model that several families can be belongs to the first."""
SAME_AS = {"kimi_k2": "deepseek_v3"}
"""Other `model_type`s of models that are a family's: read as it, in run files too, and written as it, which transformers loads."""
CUSTOM = "custom"
"""A model that no Hugging Face family describes: it trains, and is not exported."""


def family_of(model: ModelConfig) -> str:
    """The family that has this architecture, the stated one where it does; `custom` where none has."""
    names = (model.family, *FAMILIES)
    return next((name for name in names if name in FAMILIES and not FAMILIES[name].departures(model)), CUSTOM)


def nearest_family(model: ModelConfig) -> tuple[str, dict[str, Any]]:
    """The family that has the most of the model, and the model's values that it cannot have."""
    families = [f for f in FAMILIES.values() if not model.num_experts or f.has_experts]
    return min(((f.name, f.departures(model)) for f in families), key=lambda pair: len(pair[1]))
