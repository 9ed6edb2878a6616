"""The dimensions of one decoder, complete: what every other package reads, and each key of `[model]` that says one of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from annotated_types import Ge, Gt, Le
from pydantic import Field, create_model

from fourfold.config.section import Section

MOST_LAYERS = 100_000
Layers = Annotated[int, Gt(0), Le(MOST_LAYERS)]
"""Bounded, since the program makes a list of them: no run file exhausts the memory."""
Size = Annotated[int, Gt(0)]
Count = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
Weight = Annotated[float, Ge(0)]


class RopeScaling(Section):
    """Llama 3's scaling of the low rotary frequencies (Llama 3.1 model card, `rope_type = "llama3"`)."""

    factor: Positive
    """Divisor of the low frequencies."""
    low_freq_factor: Positive
    """Wavelengths above `original_max_position` / `low_freq_factor` are scaled in full."""
    high_freq_factor: Positive
    """Wavelengths below `original_max_position` / `high_freq_factor` keep their frequency. At least `low_freq_factor`."""
    original_max_position: Size
    """Positions of the model before scaling [tokens]."""


class YarnScaling(Section):
    """YaRN (Peng et al. 2023). Cosines and sines are multiplied by `attention_factor`; if it is left out, with m(x) = 0.1 x
    ln(factor) + 1, by m(`mscale`) / m(`mscale_all_dim`) if both are stated and positive, else by m(1). The scores of MLA are
    multiplied by m(`mscale_all_dim`) squared if it is stated and positive (DeepSeek-V2, section 3.1.4)."""

    factor: Annotated[float, Ge(1)]
    """How many times longer the context becomes."""
    original_max_position: Size
    """Positions of the model before scaling [tokens]."""
    beta_fast: Positive = 32.0
    """Rotations over the original context above which a frequency stays. At least `beta_slow`."""
    beta_slow: Positive = 1.0
    """Rotations over the original context below which a frequency is divided by `factor`."""
    truncate: bool = True
    """Whether the pairs between which frequencies are blended are rounded to whole ones, outwards (not in gpt-oss)."""
    mscale: Weight | None = None
    """Weight of the magnitude correction of cosines and sines."""
    mscale_all_dim: Weight | None = None
    """Weight of the magnitude correction of all elements."""
    attention_factor: Positive | None = None
    """Factor of cosines and sines (OLMo-3). Left out: it follows from the weights."""


Factors = Annotated[tuple[Positive, ...], Field(strict=False)]


class LongRopeScaling(Section):
    """LongRoPE (Ding et al. 2024), as Phi-3 has it: each frequency is divided by a factor of its own, and cosines and sines are
    multiplied by `attention_factor`, whatever the sequence's length."""

    short_factor: Factors
    """Divisors where sequences have up to `original_max_position` tokens: one for each pair of rotated elements."""
    long_factor: Factors
    """Divisors where `batch.sequence_length` is more."""
    original_max_position: Annotated[int, Gt(1)]
    """Positions of the model before scaling [tokens]."""
    factor: Positive
    """How many times longer the context becomes."""
    attention_factor: Positive | None = None
    """Factor of cosines and sines. Left out: sqrt(1 + ln(`factor`) / ln(`original_max_position`)), and 1 where `factor` is less
    than 1."""


class QueryTemperature(Section):
    """Queries at position p of their document, from 0, are multiplied by 1 + `scale` x ln(1 + floor((p + 1) / `floor`)) (Nakanishi
    2025, in the form of Llama 4)."""

    scale: Positive = 0.1
    """Weight of the logarithm."""
    floor: Size = 8192
    """Tokens after which the factor grows."""


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """The keys that a layer may have of its own: see `exceptions`."""

    mixer: Literal["attention", "gated_delta", "kimi_delta", "short_convolution"] = "attention"
    """`attention` (the default), `gated_delta`: the recurrence of Gated DeltaNet (Qwen3-Next), `kimi_delta`: that of Kimi Delta
    Attention, in which each channel of a key decays by itself (Kimi-Linear), or `short_convolution`: gated, over
    `convolution_kernel` tokens (LFM2)."""
    sliding_window: Count | None = None
    """Tokens that attention looks back, the query's own among them. 0: no window."""
    attention_chunk: Count | None = None
    """Tokens of the parts that a document is cut into, within which attention looks back (Llama 4). 0: documents are whole."""
    positions: Literal["rope", "learned", "none"] = "rope"
    """`rope`: queries and keys are rotated (the default); `learned`: a table of `max_position` rows is added to the embedding
    (GPT-2); `none`: nothing tells where a token stands but the causal mask (NoPE)."""
    rope_theta: Positive = 10000.0
    """Base of the rotary frequencies. Default: 10000."""
    rope_scaling: RopeScaling | None = None
    """Llama 3's scaling of rotary frequencies; not together with another scaling."""
    yarn_scaling: YarnScaling | None = None
    """YaRN's scaling of rotary frequencies; not together with another scaling."""
    linear_scaling: Positive = 1.0
    """Divisor of all rotary frequencies (Chen et al. 2023). Default: 1."""
    longrope_scaling: LongRopeScaling | None = None
    """LongRoPE's scaling of rotary frequencies (Phi-3, Phi-4); not together with another scaling."""
    norm_placement: Literal["pre", "post", "sandwich"] = "pre"
    """Where a layer's norms stand: `pre`, before mixer and feed-forward (the default); `post`, after them, before their output is
    added (OLMo-2); `sandwich`, both (Gemma-2)."""
    qk_norm: bool = False
    """Whether queries and keys are normed (Qwen3). Default: false."""
    query_temperature: QueryTemperature | None = None
    """Factor of queries that grows with their position (Llama 4, where they are not rotated)."""


class _Places(Section):
    """Layers that differ from the others. State `layers` or `every`, and what they have instead."""

    layers: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """Numbers of the layers, from 0."""
    every: Annotated[int, Gt(1)] | None = None
    """The last of each so many layers: 6 means the sixth, the twelfth, and so on."""


def stated_as(config: type) -> dict[str, Any]:
    """The keys of a record as a section's fields, each of which may be left out."""
    return {key: (kind | None, None) for key, kind in get_type_hints(config, include_extras=True).items()}


if TYPE_CHECKING:

    class LayerException(_Places):
        """Keys of `LayerConfig` beside those of `_Places`."""

        def __init__(self, **keys: Any) -> None: ...
        def __getattr__(self, key: str) -> Any: ...

else:
    LayerException = create_model("LayerException", __base__=_Places, __doc__=_Places.__doc__, **stated_as(LayerConfig))
    LayerException.described_by = LayerConfig


@dataclass(frozen=True)
class ModelConfig(LayerConfig):
    """A decoder: dense or with mixtures of experts, with grouped-query or multi-head latent attention. Layers are alike but for
    what `exceptions` say.

    Sizes are in elements; `head_dim` times `num_heads` need not equal `hidden_size`. `num_experts` 0: dense.
    `key_value_rank` None: grouped-query attention; else latent (DeepSeek-V2, section 2.1), where a head's query and key have
    `nope_head_dim` + `rope_head_dim` elements, its value `value_head_dim`, and `head_dim` is the former sum. None: that part is not
    there."""

    num_layers: Layers
    """Decoder blocks."""
    hidden_size: Size
    """Width of the hidden states [elements]."""
    num_heads: Size
    """Query heads."""
    num_kv_heads: Size
    """Key and value heads; divides `num_heads`. Left out: `num_heads`."""
    head_dim: Size
    """Width of one head [elements]. Left out: `hidden_size` / `num_heads`."""
    ffn_size: Size
    """Inner width of the dense feed-forward [elements]."""
    vocab_size: Size
    """Rows of the embedding. Left out: the tokenizer's entries, padded up to `vocab_multiple`."""
    family: str = "llama"
    """Hugging Face architecture to export as. Left out: the one that the dimensions describe."""
    block: str | None = None
    """Your own block in place of the built-in ones: `"python:MODULE:NAME"` of an `OwnBlock`. Commands that only look at a run
    import it with `--trust` alone."""
    tie_embeddings: bool = False
    """Whether embedding and unembedding share one matrix. Default: false."""
    scaled_embedding: bool = False
    """Whether the embedding is multiplied by the root of `hidden_size` (Gemma). Default: false."""
    logit_softcap: Positive | None = None
    """Cap c of the logits z of the next token, which become c tanh(z / c) (Gemma-2). Left out: they are not capped."""
    logits_z_loss: Weight = 0.0
    """Weight of the z-loss of the next token's logits: the mean over the targets of logsumexp(logits) squared (PaLM, 2022,
    section 5). Default: 0."""
    exceptions: Annotated[tuple[LayerException, ...], Field(strict=False)] = ()
    """Layers that differ from the others, and in what: tables with `layers` or `every`, and the keys of those layers."""
    max_position: Size = 131072
    """Longest sequence [tokens]. Default: 131072."""
    init_std: Positive = 0.02
    """Standard deviation of random initial weights. Default: 0.02."""
    mup_base_hidden_size: Size | None = None
    """muP (Yang et al. 2022): `init_std` and `optimizer.lr` are those of a model of this width, and every parameter gets its own by
    `hidden_size`, so that they hold for all widths. Needs AdamW and untied embeddings. Left out: the standard parametrization."""
    mup_base_head_dim: Size | None = None
    """muP: `head_dim` of that model, where heads widen too. Left out: `head_dim`; width is a matter of more heads."""

    norm: Literal["rms", "layer"] = "rms"
    """`rms` (the default), or `layer` with mean and bias (GPT-2)."""
    norm_eps: Positive = 1e-5
    """Epsilon of the norms. Default: 1e-5."""
    zero_centered_norm: bool = False
    """Whether a norm's weight w stands for the factor 1 + w (Gemma). Default: false."""

    rotary_fraction: Annotated[float, Gt(0), Le(1)] = 1.0
    """Part of a head's elements that are rotated, the first ones (GLM-4.5). Default: 1."""
    dynamic_scaling: Positive = 1.0
    """Factor of the NTK-aware scaling that grows with a sequence beyond `max_position`. It changes nothing in training, whose
    sequences are not longer. Default: 1."""
    rope_interleave: bool = False
    """Whether rotary pairs are neighbours (DeepSeek) instead of half a head apart. Default: false."""
    qkv_bias: bool = False
    """Whether the query, key and value projections have biases. Default: false."""
    attention_output_bias: bool | None = None
    """Whether attention's output projection has a bias. Left out: as `linear_bias`."""
    qk_norm_over: Literal["head", "all"] = "head"
    """Elements that `qk_norm` norms together: those of each `head` (the default), or of `all` heads of a token (OLMo-2)."""
    qk_norm_weight: bool = True
    """Whether the norms of queries and keys have weights. Without, they stand behind the rotation (Llama 4). Default: true."""
    attention_scale: Positive | None = None
    """Factor of the scores of attention. Left out: 1 / sqrt(`head_dim`)."""
    attention_output_gate: bool = False
    """Whether attention's output is multiplied by the sigmoid of a gate as wide as the queries (Qwen3-Next). Default: false."""
    attention_sinks: bool = False
    """Whether every head has a logit that takes a share of the attention and gives nothing (gpt-oss). Default: false."""
    attention_softcap: Positive | None = None
    """Cap c of the scores s of attention, which become c tanh(s / c) (Gemma-2). Left out: they are not capped."""
    query_rank: Count | None = None
    """Width of the compressed queries of multi-head latent attention (MLA). 0: queries are not compressed."""
    key_value_rank: Count | None = None
    """Width of the compressed keys and values of MLA (DeepSeek-V2, section 2.1). 0: grouped-query attention."""
    rope_head_dim: Count = 0
    """MLA: elements of a head's query and key that are rotated."""
    nope_head_dim: Count = 0
    """MLA: elements of a head's query and key that are not rotated."""
    value_head_dim: Count = 0
    """MLA: elements of a head's value."""

    delta_key_heads: Count = 0
    """Gated and Kimi delta rule: heads of queries and keys."""
    delta_value_heads: Count = 0
    """Gated delta rule: heads of values, a multiple of `delta_key_heads`. Kimi delta rule: as many as of keys. 0: no layer has
    either."""
    delta_key_dim: Count = 0
    """Gated and Kimi delta rule: elements of a head's query and key."""
    delta_value_dim: Count = 0
    """Gated delta rule: elements of a head's value. Kimi delta rule: as many as of its key."""
    delta_projection: Literal["heads", "separate"] = "heads"
    """Gated delta rule: whether what is projected for a key head lies together (`heads`; Qwen3-Next; the default), or all queries,
    all keys, all values and so on `separate` (Qwen3.5)."""
    delta_negative_eigenvalues: bool = False
    """Gated and Kimi delta rule: whether a token writes with a strength of up to 2, not 1, so that the state's transition may have
    negative eigenvalues (Grazzi et al. 2025; OLMo-Hybrid). Default: false."""
    delta_norm_eps: Positive | None = None
    """Gated and Kimi delta rule: epsilon of the norm of the rule's output. Left out: `norm_eps`."""
    delta_step_bias: Literal["ones", "log_uniform"] = "ones"
    """Gated delta rule: initial biases of its steps: `ones` (Qwen3-Next; the default), or `log_uniform`: steps are at first spread
    evenly in the logarithm from 0.001 to 0.1 (OLMo-Hybrid; the Kimi delta rule always)."""
    convolution_kernel: Size = 4
    """Tokens that a convolution of `mixer` sees, the token's own among them. Default: 4."""

    activation: Literal["silu", "gelu", "gelu_exact", "clamped_swiglu"] = "silu"
    """Activation of the feed-forward: `silu` (the default), `gelu` in its tanh form (GPT-2), `gelu_exact`, or `clamped_swiglu`:
    gate x sigmoid(`swiglu_alpha` x gate) x (up + 1), both clamped (gpt-oss)."""
    swiglu_limit: Positive = 7.0
    """Limit of gate, from above, and of up, on both sides, in `clamped_swiglu`. Default: 7."""
    swiglu_alpha: Positive = 1.702
    """Factor of gate in the sigmoid of `clamped_swiglu`. Default: 1.702."""
    gated: bool = True
    """Whether the feed-forward is down(activation(gate(x)) * up(x)), else down(activation(up(x))). Default: true."""
    linear_bias: bool = False
    """Whether attention's output and the feed-forward have biases. Default: false."""
    num_experts: Count = 0
    """Routed experts of a mixture-of-experts block. 0: a dense model."""
    top_k: Count = 0
    """Experts that each token is routed to."""
    moe_ffn_size: Count = 0
    """Inner width of one expert [elements]. Left out: `ffn_size`."""
    num_shared_experts: Count = 0
    """Experts that every token passes, as one feed-forward of `num_shared_experts` x `moe_ffn_size`."""
    shared_expert_gate: bool = False
    """Whether the shared experts' output is multiplied by the sigmoid of a number of each token (Qwen3-Next). Default: false."""
    first_dense_layers: Count = 0
    """Leading blocks with a dense feed-forward of `ffn_size`."""
    moe_period: Size = 1
    """Every how many-th block has experts, counted from the first: 2 means the second, the fourth, and so on. Default: 1."""
    router: Literal["softmax", "sigmoid"] = "softmax"
    """Scores of the router: `softmax` (Mixtral, Qwen3-MoE; the default) or `sigmoid` (DeepSeek-V3)."""
    router_bias: bool = False
    """Whether the router's logits have biases (gpt-oss). Default: false."""
    expert_bias: bool = False
    """Whether the routed experts' projections have biases (gpt-oss). Default: false."""
    expert_scaling: Literal["output", "input"] = "output"
    """Side of the experts on which a token's routing weights multiply: `output` (the default) or `input` (Llama 4)."""
    normalize_top_k: bool = True
    """Whether a token's chosen scores are divided by their sum. Default: true."""
    routed_scaling: Positive = 1.0
    """Factor on the routed experts' output. Default: 1."""
    num_expert_groups: Size = 1
    """Groups of experts in group-limited routing (DeepSeek-V3). Default: 1."""
    top_groups: Size = 1
    """Groups that a token may choose its experts from. Default: 1."""
    balance_loss: Weight = 0.0
    """Weight of the sequence-wise load-balancing loss (DeepSeek-V3, equations 17 to 20). Default: 0."""
    z_loss: Weight = 0.0
    """Weight of the router z-loss (Zoph et al. 2022, equation 5). Default: 0."""
    balance_bias_speed: Weight = 0.0
    """Step of the auxiliary-loss-free balancing bias (Wang et al. 2024). Default: 0, the bias stays."""
    capacity_factor: Weight | None = None
    """An expert takes at most `capacity_factor` x `top_k` x tokens / `num_experts` tokens of a rank's microbatch. 0: dropless."""

    mtp_layers: Annotated[int, Ge(0), Le(100)] = 0
    """Multi-token prediction modules after the last block (DeepSeek-V3, section 2.2). Default: 0."""
    mtp_loss: Weight = 0.0
    """Weight of the mean loss of the multi-token prediction modules. Default: 0.3 where there are any."""

    @property
    def is_mla(self) -> bool:
        """Multi-head latent attention."""
        return self.key_value_rank is not None

    @property
    def rotated_width(self) -> int:
        """The elements of a head that are rotated where positions are rotary, as transformers counts them."""
        return self.rope_head_dim if self.is_mla else int(self.head_dim * self.rotary_fraction)

    def is_moe(self, layer: int) -> bool:
        """Whether a block's feed-forward is a mixture of experts."""
        return self.num_experts > 0 and layer >= self.first_dense_layers and (layer + 1) % self.moe_period == 0

    @property
    def has_dense_blocks(self) -> bool:
        """Whether some block has a feed-forward of `ffn_size`."""
        return self.num_experts == 0 or self.first_dense_layers > 0 or self.moe_period > 1

    def of_layer(self, layer: int) -> "ModelConfig":
        """The model whose layers are all like this one. MTP modules, which follow the layers, are no exceptions."""
        return _of_layers(self)[layer] if layer < self.num_layers else _alike(self, ())

    @property
    def layer_configs(self) -> "tuple[ModelConfig, ...]":
        """`of_layer` of each layer, and the model without exceptions, whose layers its MTP modules have, if there are any."""
        return tuple(dict.fromkeys((*_of_layers(self), *((_alike(self, ()),) if self.mtp_layers else ()))))


LAYER_KEYS = tuple(each.name for each in fields(LayerConfig))
OFF = 0
"""The value that a run file states for a part that is not there."""
WITH_OFF = tuple(each.name for each in fields(LayerConfig) if each.type == Count | None)
"""Keys of layers that `OFF` means None in."""


def placed(exception: LayerException, num_layers: int) -> tuple[int, ...]:
    """The layers that it is about."""
    if exception.every is not None:
        return tuple(range(exception.every - 1, num_layers, exception.every))
    return exception.layers or ()


def differences(exception: LayerException) -> dict[str, Any]:
    """The values that its layers have instead, by key."""
    found = ((key, getattr(exception, key)) for key in LAYER_KEYS)
    return {key: value for key, value in found if value is not None}


def exceptions_of(layers: Sequence[Mapping[str, Any]]) -> tuple[LayerException, ...]:
    """The one way to write what each layer has instead of what is common to all: equal layers together, by the first of them."""
    together: dict[tuple[tuple[str, Any], ...], list[int]] = {}
    for layer, own in enumerate(layers):
        if own:
            together.setdefault(tuple(sorted(own.items())), []).append(layer)
    return tuple(LayerException(**_places(found, len(layers)), **dict(own)) for own, found in together.items())


def _places(found: Sequence[int], num_layers: int) -> dict[str, Any]:
    period = found[0] + 1
    if period > 1 and len(found) > 1 and list(found) == list(range(found[0], num_layers, period)):
        return {"every": period}
    return {"layers": tuple(found)}


def exceptions_within(model: ModelConfig, num_layers: int) -> tuple[LayerException, ...]:
    """A model's exceptions in another of another depth: layers that there are not are left out."""
    kept = []
    for each in model.exceptions:
        if each.layers is not None:
            each = each.model_copy(update={"layers": tuple(n for n in each.layers if n < num_layers)})
        if placed(each, num_layers):
            kept.append(each)
    return tuple(kept)


def written_once(model: ModelConfig) -> tuple[LayerException, ...]:
    """A model's exceptions by `exceptions_of`, without what is common to all."""
    own: list[dict[str, Any]] = [{} for _ in range(model.num_layers)]
    for exception in model.exceptions:
        for layer in placed(exception, model.num_layers):
            own[layer].update(differences(exception))
    common = {key: getattr(model, key) for key in LAYER_KEYS}
    common.update({key: OFF for key in WITH_OFF if common[key] is None})
    return exceptions_of([{key: value for key, value in each.items() if value != common[key]} for each in own])


@lru_cache(maxsize=64)
def _of_layers(model: ModelConfig) -> tuple[ModelConfig, ...]:
    own: list[dict[str, Any]] = [{} for _ in range(model.num_layers)]
    for exception in model.exceptions:
        for layer in placed(exception, model.num_layers):
            own[layer].update(differences(exception))
    return tuple(_alike(model, tuple(sorted(each.items()))) for each in own)


@lru_cache(maxsize=256)
def _alike(model: ModelConfig, own: tuple[tuple[str, Any], ...]) -> ModelConfig:
    if not own and not model.exceptions:
        return model
    changes: dict[str, Any] = {key: None if key in WITH_OFF and value == OFF else value for key, value in own}
    return replace(model, exceptions=(), **changes)
