"""Model FLOPs of one training step, in the conventions under which papers and vendors report theirs."""

from fourfold.config import ModelConfig

CONVENTIONS = ("causal", "full", "hardware", "6nd")
"""`causal`: products of weights, and half of the attention matrix. `full`: all of it. `hardware`: `full`, and what is recomputed
(Narayanan et al. 2021, equation 3, where all blocks are). `6nd`: 6 x parameters that a token passes x tokens, no attention."""


def step_flops(
    model: ModelConfig, sequence_length: int, global_sequences: int, convention: str = "causal", recompute: str = "none"
) -> float:
    """FLOPs of forward and backward on the whole global batch, all devices together.

    Forward of a token: 2 x (weights of its products, unembedding included) + 2 x s x heads x (key size + value size) for the whole
    attention matrix of a sequence of s; backward twice that. Norms, softmax, embedding and optimizer do not count.
    """
    tokens = float(global_sequences) * sequence_length
    blocks, head = _block_weights(model), float(model.vocab_size) * model.hidden_size * (1 + model.mtp_layers)
    if convention == "6nd":
        embedding = 0.0 if model.tie_embeddings else float(model.vocab_size) * model.hidden_size
        return 6.0 * tokens * (blocks + head + embedding)
    attention = _attention_flops(model, sequence_length)
    if convention == "causal":
        attention /= 2
    passes = 3.0
    extra = 0.0
    if convention == "hardware":
        if recompute == "full":
            passes = 4.0
        elif recompute == "selective":
            extra = attention
    return tokens * (passes * (2.0 * blocks + attention) + extra + 6.0 * head)


def active_parameters(model: ModelConfig) -> float:
    """Weights that one token passes, embedding aside."""
    return _block_weights(model) + float(model.vocab_size) * model.hidden_size


def _block_weights(model: ModelConfig) -> float:
    """Weights of all blocks' GEMMs that one token passes, modules of multi-token prediction included."""
    hidden, layers = model.hidden_size, model.num_layers + model.mtp_layers
    matrices = 3 if model.gated else 2
    dense = sum(not model.is_moe(layer) for layer in range(layers))
    weights = float(layers) * _attention_weights(model) + float(dense) * matrices * hidden * model.ffn_size
    if model.num_experts:
        passed = model.top_k + model.num_shared_experts
        weights += (layers - dense) * (
            float(passed) * matrices * hidden * model.moe_ffn_size + hidden * model.num_experts
        )
    return weights + 2.0 * model.mtp_layers * hidden * hidden


def _attention_weights(model: ModelConfig) -> float:
    hidden, heads = model.hidden_size, model.num_heads
    if model.key_value_rank is None:
        return float(hidden) * model.head_dim * (2 * heads + 2 * model.num_kv_heads)
    rank, key = model.key_value_rank, model.nope_head_dim + model.rope_head_dim
    query = (hidden + heads * key) * model.query_rank if model.query_rank else hidden * heads * key
    down = hidden * (rank + model.rope_head_dim)
    up = rank * heads * (model.nope_head_dim + model.value_head_dim)
    return float(query + down + up + heads * model.value_head_dim * hidden)


def _attention_flops(model: ModelConfig, sequence_length: int) -> float:
    """FLOPs of the full attention matrix, forward, for one token, all layers."""
    value = model.value_head_dim if model.is_latent else model.head_dim
    layers = model.num_layers + model.mtp_layers
    return 2.0 * layers * sequence_length * model.num_heads * (model.head_dim + value)
