"""A dense model of 16 blocks, and a layout of it on 8 devices, whose blocks choose what they do with their activations."""

from fourfold.plan.candidate import Candidate

DENSE = {
    "num_layers": 16,
    "hidden_size": 2048,
    "num_heads": 16,
    "num_kv_heads": 4,
    "ffn_size": 8192,
    "vocab_size": 8192,
}
LAYOUT = Candidate(
    pp=1, schedule="1f1b", virtual_stages=1, dp_replicate=1, dp_shard=8, zero=3, cp=1, cp_method="ring", tp=1, ep=1, etp=1,
    microbatch_sequences=1, recompute="none",
)  # fmt: skip
