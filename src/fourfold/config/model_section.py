"""The run file's `[model]` section; the reference page prints the text under each key."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from fourfold.config.section import Section

MOST_LAYERS = 100_000
Layers = Annotated[int, Field(gt=0, le=MOST_LAYERS)]
"""Bounded, since the program makes a list of them: no run file exhausts the memory."""
Family = Literal["llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "deepseek_v3", "gpt2", "custom"]
Count = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0)]


class RopeScaling(Section):
    """Llama 3's scaling of the low rotary frequencies (Llama 3.1 model card, `rope_type = "llama3"`)."""

    factor: Annotated[float, Field(gt=0)]
    """Divisor of the low frequencies."""
    low_freq_factor: Annotated[float, Field(gt=0)]
    """Wavelengths above `original_max_position` / `low_freq_factor` are scaled in full."""
    high_freq_factor: Annotated[float, Field(gt=0)]
    """Wavelengths below `original_max_position` / `high_freq_factor` keep their frequency. More than `low_freq_factor`."""
    original_max_position: PositiveInt
    """Positions of the model before scaling [tokens]."""


class YarnScaling(Section):
    """YaRN (Peng et al. 2023). With m(x) = 0.1 x ln(factor) + 1, cosines and sines are multiplied by m(`mscale`) /
    m(`mscale_all_dim`) if both are stated and positive, else by m(1). The scores of multi-head latent attention are multiplied
    by m(`mscale_all_dim`) squared if it is stated and positive (DeepSeek-V2, section 3.1.4)."""

    factor: Annotated[float, Field(ge=1)]
    """How many times longer the context becomes."""
    original_max_position: PositiveInt
    """Positions of the model before scaling [tokens]."""
    beta_fast: Annotated[float, Field(gt=0)] = 32.0
    """Rotations over the original context above which a frequency stays. More than `beta_slow`."""
    beta_slow: Annotated[float, Field(gt=0)] = 1.0
    """Rotations over the original context below which a frequency is divided by `factor`."""
    mscale: Annotated[float, Field(ge=0)] | None = None
    """Weight of the magnitude correction of cosines and sines."""
    mscale_all_dim: Annotated[float, Field(ge=0)] | None = None
    """Weight of the magnitude correction of all elements."""


class ModelSection(Section):
    """A decoder, dense or with experts. State `preset`, or `hf`, or the dimensions; a dimension beside a preset overrides it.

    A key that is left out takes the preset's value, then the family's, then the default. 0 turns a part off: `num_experts`
    (dense model), `key_value_rank` (grouped-query attention), `query_rank`, `capacity_factor` (dropless), `sliding_window`."""

    preset: str | None = None
    """Name of a built-in model, for example `"llama3-8b"`. A wrong name is answered with the list."""
    hf: str | None = None
    """Folder with a Hugging Face `config.json`, instead of `preset`."""
    initial: str | None = None
    """Folder of safetensors weights that training starts from. Left out: random weights."""
    family: str | None = None
    """Hugging Face architecture to export as. Left out: the one that the dimensions describe."""
    nearest_to: str | None = None
    """`model_type` of the model that this one stands for: `plan` writes it where it plans the nearest decoder to one that cannot be
    trained. `train` and `job` then want `as_nearest`."""
    lost: list[str] = Field(default_factory=list)
    """The parts of that model that this one lacks, or does otherwise."""
    as_nearest: bool = False
    """Whether to train it though it is another model than `nearest_to`. `--as-nearest` says the same."""
    block: str | None = None
    """Your own block in place of the built-in ones: `"python:MODULE:NAME"` of an `OwnBlock`. Commands that only look at a run
    import it with `--trust` alone."""
    num_layers: Layers | None = None
    """Decoder blocks."""
    hidden_size: PositiveInt | None = None
    """Width of the hidden states [elements]."""
    num_heads: PositiveInt | None = None
    """Query heads."""
    num_kv_heads: PositiveInt | None = None
    """Key and value heads; divides `num_heads`. Left out: `num_heads`."""
    head_dim: PositiveInt | None = None
    """Width of one head [elements]. Left out: `hidden_size` / `num_heads`."""
    ffn_size: PositiveInt | None = None
    """Inner width of the dense feed-forward [elements]."""
    vocab_size: PositiveInt | None = None
    """Rows of the embedding. Left out: the tokenizer's entries, padded up to `vocab_multiple`."""
    dropout: Annotated[float, Field(ge=0, le=0)] | None = None
    """0, the only value: train a model without the dropout that the `config.json` of `hf` states. Left out: such a model is
    refused."""
    vocab_multiple: PositiveInt | None = None
    """The vocabulary is padded to a multiple of this where `vocab_size` is left out. Default: 64."""
    tie_embeddings: bool | None = None
    """Whether embedding and unembedding share one matrix. Default: false."""
    rope_theta: Annotated[float, Field(gt=0)] | None = None
    """Base of the rotary frequencies. Default: 10000."""
    rope_scaling: RopeScaling | None = None
    """Llama 3's scaling of rotary frequencies; not together with `yarn_scaling`."""
    norm_eps: Annotated[float, Field(gt=0)] | None = None
    """Epsilon of the norms. Default: 1e-5."""
    qkv_bias: bool | None = None
    """Whether the query, key and value projections have biases. Default: false."""
    qk_norm: bool | None = None
    """Whether queries and keys are normed per head (Qwen3). Default: false."""
    sliding_window: Count | None = None
    """Tokens that attention looks back, the query's own among them. 0: no window."""
    full_attention_layers: list[Count] | None = None
    """Layers that look back without `sliding_window`, counted from 0. Default: none of them."""
    max_position: PositiveInt | None = None
    """Longest sequence [tokens]. Default: 131072."""
    init_std: Annotated[float, Field(gt=0)] | None = None
    """Standard deviation of random initial weights. Default: 0.02."""
    mup_base_hidden_size: PositiveInt | None = None
    """muP (Yang et al. 2022): `init_std` and `optimizer.lr` are those of a model of this width, and every parameter gets its own by
    `hidden_size`, so that they hold for all widths. Needs AdamW and untied embeddings. Left out: the standard parametrization."""
    mup_base_head_dim: PositiveInt | None = None
    """muP: `head_dim` of that model, where heads widen too. Left out: `head_dim`; width is a matter of more heads."""

    num_experts: Count | None = None
    """Routed experts of a mixture-of-experts block. 0: a dense model."""
    top_k: Count | None = None
    """Experts that each token is routed to."""
    moe_ffn_size: Count | None = None
    """Inner width of one expert [elements]. Left out: `ffn_size`."""
    num_shared_experts: Count | None = None
    """Experts that every token passes, as one feed-forward of `num_shared_experts` x `moe_ffn_size`."""
    first_dense_layers: Count | None = None
    """Leading blocks with a dense feed-forward of `ffn_size`."""
    moe_period: PositiveInt | None = None
    """Every how many-th block has experts, counted from the first: 2 means the second, the fourth, and so on. Default: 1."""
    router: Literal["softmax", "sigmoid"] | None = None
    """Scores of the router: `softmax` (Mixtral, Qwen3-MoE; the default) or `sigmoid` (DeepSeek-V3)."""
    normalize_top_k: bool | None = None
    """Whether a token's chosen scores are divided by their sum. Default: true."""
    routed_scaling: Annotated[float, Field(gt=0)] | None = None
    """Factor on the routed experts' output. Default: 1."""
    num_expert_groups: PositiveInt | None = None
    """Groups of experts in group-limited routing (DeepSeek-V3). Default: 1."""
    top_groups: PositiveInt | None = None
    """Groups that a token may choose its experts from. Default: 1."""
    balance_loss: Weight | None = None
    """Weight of the sequence-wise load-balancing loss (DeepSeek-V3, equations 17 to 20). Default: 0."""
    z_loss: Weight | None = None
    """Weight of the router z-loss (Zoph et al. 2022, equation 5). Default: 0."""
    balance_bias_speed: Weight | None = None
    """Step of the auxiliary-loss-free balancing bias (Wang et al. 2024). Default: 0, the bias stays."""
    capacity_factor: Weight | None = None
    """An expert takes at most `capacity_factor` x `top_k` x tokens / `num_experts` tokens of a rank's microbatch. 0: dropless."""

    query_rank: Count | None = None
    """Width of the compressed queries of multi-head latent attention (MLA). 0: queries are not compressed."""
    key_value_rank: Count | None = None
    """Width of the compressed keys and values of MLA (DeepSeek-V2, section 2.1). 0: grouped-query attention."""
    rope_head_dim: Count | None = None
    """MLA: elements of a head's query and key that are rotated."""
    nope_head_dim: Count | None = None
    """MLA: elements of a head's query and key that are not rotated."""
    value_head_dim: Count | None = None
    """MLA: elements of a head's value."""
    rope_interleave: bool | None = None
    """Whether rotary pairs are neighbours (DeepSeek) instead of half a head apart. Default: false."""
    yarn_scaling: YarnScaling | None = None
    """YaRN's scaling of rotary frequencies; not together with `rope_scaling`."""

    mtp_layers: Annotated[int, Field(ge=0, le=100)] | None = None
    """Multi-token prediction modules after the last block (DeepSeek-V3, section 2.2). Default: 0."""
    mtp_loss: Weight | None = None
    """Weight of the mean loss of the multi-token prediction modules. Default: 0.3 where there are any."""

    norm: Literal["rms", "layer"] | None = None
    """`rms` (the default), or `layer` with mean and bias (GPT-2)."""
    activation: Literal["silu", "gelu"] | None = None
    """Activation of the feed-forward: `silu` (the default), or `gelu` in its tanh form (GPT-2)."""
    gated: bool | None = None
    """Whether the feed-forward is down(activation(gate(x)) * up(x)), else down(activation(up(x))). Default: true."""
    linear_bias: bool | None = None
    """Whether attention's output and the feed-forward have biases. Default: false."""
    positions: Literal["rope", "learned"] | None = None
    """`rope` (the default), or `learned`: a table of `max_position` rows is added to the embedding (GPT-2)."""
