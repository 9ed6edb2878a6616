"""The dimensions of one dense decoder, complete: what every other package reads."""

from dataclasses import dataclass

from fourfold.config.schema import RopeScaling


@dataclass(frozen=True)
class ModelConfig:
    """A dense Llama-family decoder (Llama 2/3, Mistral, Qwen2/3, SmolLM).

    Sizes are in elements; `head_dim` times `num_heads` need not equal `hidden_size`.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    family: str = "llama"
    tie_embeddings: bool = False
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-5
    qkv_bias: bool = False
    qk_norm: bool = False
    sliding_window: int | None = None
    max_position: int = 131072
    init_std: float = 0.02
