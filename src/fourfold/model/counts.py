"""Counts of a model: its parameters, those that a token passes, the FLOPs of a training step."""

from dataclasses import replace
from functools import lru_cache

from fourfold.config import ModelConfig
from fourfold.model.layers import layers_of
from fourfold.model.own.replay import own_flops_per_token
from fourfold.model.spec import build_segments


def num_parameters(model: ModelConfig) -> int:
    """All parameters, tied ones once; without MTP modules, as models' sizes are stated."""
    return sum(segment.numel for segment in build_segments(replace(model, mtp_layers=0)))


def num_active_parameters(model: ModelConfig) -> int:
    """Parameters that one token passes: `top_k` of the `num_experts` routed experts, and all others."""
    units = [unit for segment in build_segments(replace(model, mtp_layers=0)) for unit in segment.own]
    return sum(u.numel * model.top_k // model.num_experts if u.domain == "expert" else u.numel for u in units)


WORTHWHILE_FLOPS = 5e12
"""FLOPs of a rank's matmuls in a run on a processor, some minute of a core, from which on it compares libraries for them."""


def step_flops_per_token(
    model: ModelConfig, sequence_length: int, convention: str = "causal", recompute: str = "none"
) -> float:
    """Model FLOPs of one training step per token: 6 for each weight of a matmul that the token passes (forward 2, backward 4), and
    attention, 6 * num_layers * num_heads * (key + value width) * sequence_length for the full matrix (Chowdhery et al. 2022,
    appendix B), less where layers have windows. Three times a mixer's `state_flops`. An MTP module is a block with a
    projection, and one more pass over the unembedding. A person's own block counts the matmuls and the attention of its trace.

    `convention`, a `FlopsConvention`: `causal` counts half of the attention matrix, `full` all of it; `hardware` is `full`
    and what `recompute` (none, selective, full) repeats (Narayanan et al. 2021, equation 3, for full); `6nd` is 6 for each
    parameter that the token passes, embedding included, and no attention.
    """
    blocks: float
    blocks, head = matmul_weights(model)
    if convention == "6nd":
        embedding = 0 if model.tie_embeddings else model.vocab_size * model.hidden_size
        return 6.0 * (blocks + head + embedding)
    if model.block is not None:
        own, half = (model.num_layers * flops for flops in own_flops_per_token(model, sequence_length))
        blocks, attention = own / 2.0, 2.0 * half
    else:
        widths = model.head_dim + (model.value_head_dim if model.is_mla else model.head_dim)
        mixers = [layer.mixer for layer in layers_of(model) if layer is not None]
        blocks += sum(mixer.state_flops for mixer in mixers) / 2
        seen = sum(seen_keys(sequence_length, mixer.window, mixer.chunk) for mixer in mixers if mixer.attends)
        attention = 2.0 * model.num_heads * widths * seen
    if convention == "causal":
        attention /= 2
    passes = 4.0 if convention == "hardware" and recompute == "full" else 3.0
    again = attention if convention == "hardware" and recompute == "selective" else 0.0
    return passes * (2.0 * blocks + attention) + again + 6.0 * head


def seen_keys(sequence_length: int, window: int | None, chunk: int | None = None) -> float:
    """Keys of a sequence that its queries see, twice the mean: all of them under a causal mask alone."""
    if chunk is not None and chunk < sequence_length:
        chunks, rest = divmod(sequence_length, chunk)
        return (chunks * chunk**2 + rest**2) / sequence_length
    if window is None or window >= sequence_length:
        return sequence_length
    return window * (2 - window / sequence_length)


@lru_cache(maxsize=64)
def matmul_weights(model: ModelConfig) -> tuple[int, int]:
    """Weights of the matmuls that one token passes: (of all blocks, of the head). MTP modules pass the head's again."""
    blocks = 0
    for segment in build_segments(model):
        for unit in segment.own if segment.kind == "block" else ():
            elements = sum(p.numel for p in unit.matrices)
            blocks += elements * model.top_k // model.num_experts if unit.domain == "expert" else elements
    return blocks, (1 + model.mtp_layers) * model.vocab_size * model.hidden_size
