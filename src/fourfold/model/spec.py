"""A model as a list of segments, and each segment's parameters as data: names, shapes, initialisation, sharding rule."""

from dataclasses import dataclass
from math import prod, sqrt
from typing import Literal

from fourfold.config import ModelConfig


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter. `name` is its Hugging Face name; `init_std` None means ones (a norm's weight), 0.0 means zeros.

    `tensor_dim`: the dim that tensor parallelism splits (0: column-parallel, 1: row-parallel, None: replicated).
    """

    name: str
    shape: tuple[int, ...]
    init_std: float | None
    weight_decay: bool
    tensor_dim: int | None

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Segment:
    """The smallest part of a model that a program addresses: `embed`, a block `b0`, `b1`, ..., or `head`.

    Its own parameters, in this order, make one flat buffer, the *unit* of the same name. `units` are the units that it
    reads: its own, and for a head with tied embeddings the embedding's too.
    """

    name: str
    kind: Literal["embedding", "block", "head"]
    parameters: tuple[ParameterSpec, ...]
    units: tuple[str, ...]
    layer: int | None = None

    @property
    def numel(self) -> int:
        return sum(p.numel for p in self.parameters)


def build_segments(model: ModelConfig) -> tuple[Segment, ...]:
    """The segments of a model in forward order.

    Matrices come first in each unit and are decayed; norm weights and biases follow and are not. Initialisation: normal
    with `init_std`, truncated at three standard deviations; the two projections that write into the residual stream are
    scaled by 1/sqrt(2 * num_layers) (Radford et al. 2019, section 2.3; Shoeybi et al. 2019, section 4).
    """
    hidden, vocab = model.hidden_size, model.vocab_size
    embedding = ParameterSpec("model.embed_tokens.weight", (vocab, hidden), model.init_std, True, 0)
    norm = ParameterSpec("model.norm.weight", (hidden,), None, False, None)
    unembedding = ParameterSpec("lm_head.weight", (vocab, hidden), model.init_std, True, 0)
    head_own = (norm,) if model.tie_embeddings else (unembedding, norm)
    head_units = ("head", "embed") if model.tie_embeddings else ("head",)
    return (
        Segment("embed", "embedding", (embedding,), ("embed",)),
        *(_block(model, layer) for layer in range(model.num_layers)),
        Segment("head", "head", head_own, head_units),
    )


def _block(model: ModelConfig, layer: int) -> Segment:
    hidden, ffn, std = model.hidden_size, model.ffn_size, model.init_std
    query, key_value = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    residual_std = std / sqrt(2 * model.num_layers)
    prefix = f"model.layers.{layer}."

    def matrix(name: str, rows: int, columns: int, init: float, tensor_dim: int) -> ParameterSpec:
        return ParameterSpec(f"{prefix}{name}.weight", (rows, columns), init, True, tensor_dim)

    parameters = [
        matrix("self_attn.q_proj", query, hidden, std, 0),
        matrix("self_attn.k_proj", key_value, hidden, std, 0),
        matrix("self_attn.v_proj", key_value, hidden, std, 0),
        matrix("self_attn.o_proj", hidden, query, residual_std, 1),
        matrix("mlp.gate_proj", ffn, hidden, std, 0),
        matrix("mlp.up_proj", ffn, hidden, std, 0),
        matrix("mlp.down_proj", hidden, ffn, residual_std, 1),
        ParameterSpec(f"{prefix}input_layernorm.weight", (hidden,), None, False, None),
        ParameterSpec(f"{prefix}post_attention_layernorm.weight", (hidden,), None, False, None),
    ]
    if model.qkv_bias:
        for name, rows in (("q_proj", query), ("k_proj", key_value), ("v_proj", key_value)):
            parameters.append(ParameterSpec(f"{prefix}self_attn.{name}.bias", (rows,), 0.0, False, 0))
    if model.qk_norm:
        for name in ("q_norm", "k_norm"):
            parameters.append(ParameterSpec(f"{prefix}self_attn.{name}.weight", (model.head_dim,), None, False, None))
    return Segment(f"b{layer}", "block", tuple(parameters), (f"b{layer}",), layer)


def num_parameters(model: ModelConfig) -> int:
    """All parameters, tied ones once."""
    return sum(segment.numel for segment in build_segments(model))


def step_flops_per_token(model: ModelConfig, sequence_length: int) -> float:
    """Useful FLOPs of one training step per token: 6 per parameter of a matrix product (forward 2, backward 4), and causal
    attention at half the full matrix: 6 * num_layers * num_heads * head_dim * sequence_length
    (Chowdhery et al. 2022, appendix B, halved for causality). Recomputation is not counted."""
    block = sum(p.numel for p in _block(model, 0).parameters if len(p.shape) == 2)
    matrices = model.num_layers * block + model.vocab_size * model.hidden_size
    attention = model.num_layers * model.num_heads * model.head_dim * sequence_length
    return 6.0 * matrices + 6.0 * attention
