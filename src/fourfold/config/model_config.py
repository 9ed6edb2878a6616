"""The dimensions of one decoder, complete: what every other package reads."""

from dataclasses import dataclass

from fourfold.config.model_section import RopeScaling, YarnScaling


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama family (Llama 2/3, Mistral, Qwen2/3, SmolLM), dense or with mixtures of experts (Mixtral,
    Qwen3-MoE, DeepSeek-V3), with grouped-query or multi-head latent attention; or one of the GPT-2 family (GPT-3).

    Sizes are in elements; `head_dim` times `num_heads` need not equal `hidden_size`. `num_experts` 0: dense.
    `key_value_rank` None: grouped-query attention; else latent (DeepSeek-V2, section 2.1), where a head's query and key have
    `nope_head_dim` + `rope_head_dim` elements, its value `value_head_dim`, and `head_dim` is the former sum. `ModelSection` says
    what each field is; None here: that part is not there.
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
    full_attention_layers: tuple[int, ...] = ()
    """Layers, counted from 0, that have no `sliding_window`; ascending."""
    max_position: int = 131072
    init_std: float = 0.02
    mup_base_hidden_size: int | None = None
    mup_base_head_dim: int | None = None
    num_experts: int = 0
    top_k: int = 0
    moe_ffn_size: int = 0
    num_shared_experts: int = 0
    first_dense_layers: int = 0
    moe_period: int = 1
    router: str = "softmax"
    normalize_top_k: bool = True
    routed_scaling: float = 1.0
    num_expert_groups: int = 1
    top_groups: int = 1
    balance_loss: float = 0.0
    z_loss: float = 0.0
    balance_bias_speed: float = 0.0
    capacity_factor: float | None = None
    query_rank: int | None = None
    key_value_rank: int | None = None
    rope_head_dim: int = 0
    nope_head_dim: int = 0
    value_head_dim: int = 0
    rope_interleave: bool = False
    yarn_scaling: YarnScaling | None = None
    mtp_layers: int = 0
    mtp_loss: float = 0.0
    norm: str = "rms"
    activation: str = "silu"
    gated: bool = True
    linear_bias: bool = False
    positions: str = "rope"
    block: str | None = None

    @property
    def is_mla(self) -> bool:
        """Multi-head latent attention."""
        return self.key_value_rank is not None

    def is_moe(self, layer: int) -> bool:
        """Whether a block's feed-forward is a mixture of experts."""
        return self.num_experts > 0 and layer >= self.first_dense_layers and (layer + 1) % self.moe_period == 0

    @property
    def has_dense_blocks(self) -> bool:
        """Whether some block has a feed-forward of `ffn_size`."""
        return self.num_experts == 0 or self.first_dense_layers > 0 or self.moe_period > 1
