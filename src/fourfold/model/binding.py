"""From a segment's parameters by name to the views that its function takes."""

from collections.abc import Mapping

from fourfold.config import ModelConfig
from fourfold.model.spec import POSITIONS, Segment
from fourfold.model.weights import (
    AttentionWeights,
    BlockWeights,
    EmbeddingWeights,
    FeedForwardWeights,
    HeadWeights,
    MLAWeights,
    ModuleWeights,
    OwnWeights,
    PlainFeedForwardWeights,
    RoutedWeights,
    Weight,
    Weights,
    WeightUnit,
)


def bind_weights(segment: Segment, model: ModelConfig, units: Mapping[str, WeightUnit]) -> Weights:
    """The views that the segment's function takes. `units`: by unit name, at least those in `segment.units`."""
    own = units[segment.name]
    if segment.kind == "embedding":
        return _bind_embedding(own, model)
    if segment.kind == "head":
        # All of the embedding's unit is bound, so that on another rank than its own what is not read there is cleared.
        table = _bind_embedding(units["embed"], model).tokens if model.tie_embeddings else own.weight("lm_head.weight")
        last = model.num_layers
        names = [f"model.layers.{last + k}.shared_head.norm.weight" for k in range(model.mtp_layers)]
        bias = _norm_bias(own, model, "model.norm")
        return HeadWeights(own.weight("model.norm.weight"), table, bias, tuple(own.weight(name) for name in names))
    if model.block is not None:
        prefix = f"model.layers.{segment.layer}."
        return OwnWeights({each.name.removeprefix(prefix): own.weight(each.name) for each in segment.parameters})
    block = _bind_block(segment, own, model, units)
    if not segment.depth:
        return block
    prefix = f"model.layers.{segment.layer}."
    return ModuleWeights(
        _bind_embedding(units["embed"], model),
        own.weight(prefix + "enorm.weight"),
        own.weight(prefix + "hnorm.weight"),
        own.weight(prefix + "eh_proj.weight"),
        block,
    )


def _bind_block(segment: Segment, own: WeightUnit, model: ModelConfig, units: Mapping[str, WeightUnit]) -> BlockWeights:
    prefix = f"model.layers.{segment.layer}."
    attention = _bind_mla(own, model, prefix) if model.is_mla else _bind_attention(own, model, prefix)
    if segment.moe:
        return BlockWeights(attention, _bind_routed(own, units[f"{segment.name}.experts"], model, prefix))
    if not model.gated:
        return BlockWeights(attention, _bind_plain_feed_forward(own, model, prefix))
    return BlockWeights(attention, _bind_feed_forward(own, model, prefix, prefix + "mlp."))


def _bind_embedding(own: WeightUnit, model: ModelConfig) -> EmbeddingWeights:
    positions = own.weight(POSITIONS) if model.positions == "learned" else None
    return EmbeddingWeights(own.weight("model.embed_tokens.weight"), positions)


def _norm_bias(own: WeightUnit, model: ModelConfig, name: str) -> Weight | None:
    return own.weight(f"{name}.bias") if model.norm == "layer" else None


def _bind_attention(own: WeightUnit, model: ModelConfig, prefix: str) -> AttentionWeights:
    attention = prefix + "self_attn."
    return AttentionWeights(
        norm=own.weight(prefix + "input_layernorm.weight"),
        qkv=own.weight(attention + "q_proj.weight", attention + "v_proj.weight"),
        qkv_bias=own.weight(attention + "q_proj.bias", attention + "v_proj.bias") if model.qkv_bias else None,
        query_norm=own.weight(attention + "q_norm.weight") if model.qk_norm else None,
        key_norm=own.weight(attention + "k_norm.weight") if model.qk_norm else None,
        output=own.weight(attention + "o_proj.weight"),
        norm_bias=_norm_bias(own, model, prefix + "input_layernorm"),
        output_bias=own.weight(attention + "o_proj.bias") if model.linear_bias else None,
    )


def _bind_mla(own: WeightUnit, model: ModelConfig, prefix: str) -> MLAWeights:
    attention, low_rank = prefix + "self_attn.", model.query_rank is not None
    return MLAWeights(
        norm=own.weight(prefix + "input_layernorm.weight"),
        query_down=own.weight(attention + "q_a_proj.weight") if low_rank else None,
        query_norm=own.weight(attention + "q_a_layernorm.weight") if low_rank else None,
        query_up=own.weight(attention + ("q_b_proj.weight" if low_rank else "q_proj.weight")),
        key_value_down=own.weight(attention + "kv_a_proj_with_mqa.weight"),
        key_value_norm=own.weight(attention + "kv_a_layernorm.weight"),
        key_value_up=own.weight(attention + "kv_b_proj.weight"),
        output=own.weight(attention + "o_proj.weight"),
    )


def _bind_feed_forward(own: WeightUnit, model: ModelConfig, prefix: str, mlp: str) -> FeedForwardWeights:
    return FeedForwardWeights(
        norm=own.weight(prefix + "post_attention_layernorm.weight"),
        gate_up=own.weight(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
        down=own.weight(mlp + "down_proj.weight"),
        norm_bias=_norm_bias(own, model, prefix + "post_attention_layernorm"),
    )


def _bind_plain_feed_forward(own: WeightUnit, model: ModelConfig, prefix: str) -> PlainFeedForwardWeights:
    mlp, biased = prefix + "mlp.", model.linear_bias
    return PlainFeedForwardWeights(
        norm=own.weight(prefix + "post_attention_layernorm.weight"),
        up=own.weight(mlp + "up_proj.weight"),
        down=own.weight(mlp + "down_proj.weight"),
        norm_bias=_norm_bias(own, model, prefix + "post_attention_layernorm"),
        up_bias=own.weight(mlp + "up_proj.bias") if biased else None,
        down_bias=own.weight(mlp + "down_proj.bias") if biased else None,
    )


def _bind_routed(own: WeightUnit, experts: WeightUnit, model: ModelConfig, prefix: str) -> RoutedWeights:
    path = prefix + "mlp.shared_experts."
    shared = _bind_feed_forward(own, model, prefix, path) if model.num_shared_experts else None
    return RoutedWeights(
        norm=own.weight(prefix + "post_attention_layernorm.weight"),
        router=own.weight(prefix + "mlp.gate.weight"),
        gate_up=experts.weight(prefix + "mlp.experts.gate_up_proj"),
        down=experts.weight(prefix + "mlp.experts.down_proj"),
        shared=shared,
    )
