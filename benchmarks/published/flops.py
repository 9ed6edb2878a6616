"""Model FLOPs of one training step, in the conventions under which papers and vendors report theirs."""

from fourfold.config import ModelConfig
from fourfold.model.counts import matmul_weights, step_flops_per_token


def step_flops(
    model: ModelConfig,
    sequence_length: int,
    global_sequences: int,
    convention: str = "causal",
    recompute: str = "none",
) -> float:
    """FLOPs of forward and backward on the whole global batch, all devices together (`step_flops_per_token`)."""
    tokens = float(global_sequences) * sequence_length
    return tokens * step_flops_per_token(model, sequence_length, convention, recompute)


def active_parameters(model: ModelConfig) -> float:
    """Weights that one token passes, embedding aside."""
    return float(matmul_weights(model)[0]) + float(model.vocab_size) * model.hidden_size
