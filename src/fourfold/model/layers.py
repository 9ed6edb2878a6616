"""The layers of a model, from the keys of its run file."""

from functools import lru_cache

from fourfold.config import ModelConfig
from fourfold.model.experts.router import Routing
from fourfold.model.kinds.attention import GroupedAttention
from fourfold.model.kinds.feed_forward import GatedFeedForward, PlainFeedForward
from fourfold.model.kinds.gated_delta import GatedDelta, SeparateGatedDelta
from fourfold.model.kinds.kimi_delta import KimiDelta
from fourfold.model.kinds.kind import Mixer
from fourfold.model.kinds.mla import MLA
from fourfold.model.kinds.query_key_norm import QueryKeyNorm
from fourfold.model.kinds.routed import RoutedFeedForward
from fourfold.model.kinds.short_convolution import ShortConvolution
from fourfold.model.layer import FeedForward, Layer
from fourfold.model.norm import Norm
from fourfold.model.rope import Positional, Rope, Temperature
from fourfold.model.swiglu import ClampedSwiGLU, Gate


@lru_cache(maxsize=64)
def layers_of(model: ModelConfig) -> tuple[Layer | None, ...]:
    """The layers in order, and behind them those of the MTP modules. Equal ones are one object. None: a person's own block."""
    number = model.num_layers + model.mtp_layers
    if model.block is not None:
        return (None,) * number
    made: dict[Layer, Layer] = {}
    own = ((layer, model.of_layer(layer)) for layer in range(number))
    layers = (Layer(_mixer(of), _feed_forward(of, layer), final_norm(of), of.norm_placement) for layer, of in own)
    return tuple(made.setdefault(layer, layer) for layer in layers)


@lru_cache(maxsize=64)
def mixers_of(model: ModelConfig) -> tuple[Mixer, ...]:
    """The mixers of its layers, each once; none of a person's own block."""
    return tuple(dict.fromkeys(layer.mixer for layer in layers_of(model) if layer is not None))


def reads_in_order(model: ModelConfig) -> bool:
    """Whether some layer reads tokens in order, not by attention: ranks have them in zig-zag, and segments their places in
    documents."""
    return not all(mixer.attends for mixer in mixers_of(model))


def ropes_of(model: ModelConfig) -> tuple[Positional, ...]:
    """The rotary embeddings of its layers, and the temperatures of queries, each once."""
    if model.block is not None:
        return (_rope(model) or Rope(0),)
    return tuple(dict.fromkeys(each for mixer in mixers_of(model) for each in mixer.positional))


def final_norm(model: ModelConfig) -> Norm:
    """The norm before the head, and of every layer."""
    return Norm(model.norm, model.norm_eps, model.zero_centered_norm)


def windows_of(model: ModelConfig, sequence_length: int) -> set[int]:
    """The sliding windows of its layers, of those that are narrower than a sequence."""
    found = (mixer.window for mixer in mixers_of(model))
    return {window for window in found if window is not None and window < sequence_length}


def reads_positions(model: ModelConfig, document_mask: bool) -> bool:
    """Whether segments read where each token stands in its document, beside rotary tables: as rows of a table, or to forget what
    was before it."""
    return model.positions == "learned" or (document_mask and reads_in_order(model))


def _head_norm(model: ModelConfig) -> Norm:
    return Norm("rms", model.norm_eps, model.zero_centered_norm)


def _query_key_norm(model: ModelConfig) -> QueryKeyNorm:
    return QueryKeyNorm(_head_norm(model), model.qk_norm_over, model.qk_norm_weight)


def _rope(model: ModelConfig) -> Rope | None:
    """The rotary embedding of its heads, None where they are not rotated."""
    if model.positions != "rope":
        return None
    scaling = model.yarn_scaling or model.rope_scaling or model.longrope_scaling
    return Rope(model.rotated_width, model.rope_theta, scaling, model.rope_interleave, model.linear_scaling)


def _mixer(model: ModelConfig) -> Mixer:
    strongest = 2.0 if model.delta_negative_eigenvalues else 1.0
    if model.mixer == "gated_delta":
        kind = GatedDelta if model.delta_projection == "heads" else SeparateGatedDelta
        return kind(
            num_key_heads=model.delta_key_heads,
            num_value_heads=model.delta_value_heads,
            key_head_dim=model.delta_key_dim,
            value_head_dim=model.delta_value_dim,
            kernel=model.convolution_kernel,
            norm_eps=model.delta_norm_eps or model.norm_eps,
            strongest=strongest,
            step_bias=model.delta_step_bias,
        )
    if model.mixer == "kimi_delta":
        norm_eps = model.delta_norm_eps or model.norm_eps
        return KimiDelta(model.delta_key_heads, model.delta_key_dim, model.convolution_kernel, norm_eps, strongest)
    if model.mixer == "short_convolution":
        return ShortConvolution(model.hidden_size, model.convolution_kernel)
    if model.key_value_rank is not None:
        return MLA(
            num_heads=model.num_heads,
            key_value_rank=model.key_value_rank,
            rope_head_dim=model.rope_head_dim,
            nope_head_dim=model.nope_head_dim,
            value_head_dim=model.value_head_dim,
            query_rank=model.query_rank,
            rope=_rope(model),
            window=model.sliding_window,
            chunk=model.attention_chunk,
        )
    return GroupedAttention(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        qkv_bias=model.qkv_bias,
        output_bias=model.linear_bias if model.attention_output_bias is None else model.attention_output_bias,
        qk_norm=_query_key_norm(model) if model.qk_norm else None,
        rope=_rope(model),
        temperature=None if (found := model.query_temperature) is None else Temperature(found.scale, found.floor),
        scale=model.attention_scale,
        output_gate=model.attention_output_gate,
        sinks=model.attention_sinks,
        softcap=model.attention_softcap,
        window=model.sliding_window,
        chunk=model.attention_chunk,
    )


def _feed_forward(model: ModelConfig, layer: int) -> FeedForward:
    if model.is_moe(layer):
        routing = Routing(
            num_experts=model.num_experts,
            top_k=model.top_k,
            router=model.router,
            normalize_top_k=model.normalize_top_k,
            routed_scaling=model.routed_scaling,
            num_expert_groups=model.num_expert_groups,
            top_groups=model.top_groups,
            balance_loss=model.balance_loss,
            z_loss=model.z_loss,
            capacity_factor=model.capacity_factor,
        )
        return RoutedFeedForward(
            model.moe_ffn_size,
            routing,
            model.num_shared_experts,
            _gate(model),
            model.expert_bias,
            model.router_bias,
            model.shared_expert_gate,
            model.expert_scaling,
        )
    if model.gated:
        return GatedFeedForward(model.ffn_size, activation=_gate(model))
    assert model.activation != "clamped_swiglu"
    return PlainFeedForward(model.ffn_size, model.activation, model.linear_bias)


def _gate(model: ModelConfig) -> Gate:
    if model.activation == "clamped_swiglu":
        return ClampedSwiGLU(model.swiglu_alpha, model.swiglu_limit)
    return model.activation
