"""OLMo-2: norms after attention and feed-forward, and of queries and keys over all heads (OLMo team 2024, section 3.2)."""

from fourfold.huggingface.family import FALSE, SILU, Family
from fourfold.huggingface.key import decoder_keys

OLMO2 = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    keys=decoder_keys(max_position=2048, norm_eps=1e-5),
    states={"hidden_act": SILU, "attention_bias": FALSE},
    lacks=("mlp_bias",),
    # transformers' own pad_token_id names a token of a small vocabulary, whose row of the embedding would get no gradient
    constants={"pad_token_id": None},
    fixed={"norm_placement": "post", "qk_norm": True, "qk_norm_over": "all"},
)
