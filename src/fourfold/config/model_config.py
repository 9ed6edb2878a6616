"""The dimensions of one decoder, complete: what every other package reads."""

from dataclasses import dataclass

from fourfold.config.model_section import RopeScaling, YarnScaling


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama family (Llama 2/3, Mistral, Qwen2/3, SmolLM), dense or with mixtures of experts (Mixtral,
    Qwen3-MoE, DeepSeek-V3), with grouped-query or multi-head latent attention; or one of the GPT-2 family (GPT-3).

    Sizes are in elements; `head_dim` times `num_heads` need not equal `hidden_size`. `num_experts` 0: dense.
    `key_value_rank` None: grouped-query attention; else latent (DeepSeek-V2, section 2.1), where a head's query and key have
    `nope_head_dim` + `rope_head_dim` elements, its value `value_head_dim`, and `head_dim` is the former sum.
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
    mup_base_hidden_size: int | None = None
    mup_base_head_dim: int | None = None
    """The width of which `init_std` and learning rates are stated under muP; None: the standard parametrization."""

    num_experts: int = 0
    top_k: int = 0
    moe_ffn_size: int = 0
    num_shared_experts: int = 0
    """Experts that every token passes, as one feed-forward of `num_shared_experts` x `moe_ffn_size`."""
    first_dense_layers: int = 0
    """Leading blocks with a dense feed-forward of `ffn_size`."""
    moe_period: int = 1
    """Every how many-th of the others, counted from the model's first, has experts (2: the second, the fourth, ...)."""
    router: str = "softmax"
    """`softmax` (Mixtral, Qwen3-MoE) or `sigmoid` (DeepSeek-V3) scores."""
    normalize_top_k: bool = True
    """Whether a token's chosen scores are divided by their sum."""
    routed_scaling: float = 1.0
    num_expert_groups: int = 1
    top_groups: int = 1
    balance_loss: float = 0.0
    """Weight of the sequence-wise load-balancing loss (DeepSeek-V3, equations 17 to 20; Switch Transformer's, a sequence)."""
    z_loss: float = 0.0
    """Weight of the router z-loss (Zoph et al. 2022, equation 5)."""
    balance_bias_speed: float = 0.0
    """Step of the auxiliary-loss-free balancing bias (Wang et al. 2024); 0: the bias stays."""
    capacity_factor: float | None = None
    """Limit of an expert's tokens of a rank's microbatch: capacity_factor x top_k x tokens / num_experts. None: dropless."""

    query_rank: int | None = None
    key_value_rank: int | None = None
    rope_head_dim: int = 0
    nope_head_dim: int = 0
    value_head_dim: int = 0
    rope_interleave: bool = False
    """Whether rotary pairs are neighbours (DeepSeek) instead of half a head apart."""

    yarn_scaling: YarnScaling | None = None
    """In place of `rope_scaling`."""

    mtp_layers: int = 0
    mtp_loss: float = 0.0
    """Multi-token prediction (DeepSeek-V3, section 2.2): modules after the last block, and the weight of their mean loss."""

    norm: str = "rms"
    """`rms`, or `layer`: with mean and bias (GPT-2)."""
    activation: str = "silu"
    """Activation function of the feed-forward: `silu`, or `gelu` in its tanh form (GPT-2)."""
    gated: bool = True
    """Whether the feed-forward is down(activation(gate(x)) * up(x)), else down(activation(up(x)))."""
    linear_bias: bool = False
    """Biases of attention's output and of the feed-forward; those of queries, keys and values are `qkv_bias`."""
    positions: str = "rope"
    """`rope`, or `learned`: a table of `max_position` rows is added to the embedding (GPT-2)."""

    block: str | None = None
    """A person's own block, `python:MODULE:NAME`, in place of attention and feed-forward; it reads what dimensions it likes."""

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
