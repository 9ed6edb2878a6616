"""Llama 2 and 3, and the many models that share its form (SmolLM, Yi, ...)."""

from fourfold.huggingface.family import FALSE, SILU, Family
from fourfold.huggingface.key import decoder_keys

LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    keys=decoder_keys(max_position=2048),
    states={"hidden_act": SILU, "attention_bias": FALSE, "mlp_bias": FALSE},
)
