"""Llama 4, the decoder (Meta 2025): most layers attend within chunks, and those without rotation to everything, with queries that
grow with their position; experts whose inputs are scaled by a sigmoid router, and a shared one."""

from collections.abc import Mapping
from typing import Any

from fourfold.config.errors import UserError, shortened
from fourfold.config.model_config import OFF, ModelConfig, QueryTemperature, exceptions_of
from fourfold.huggingface.family import FALSE, SILU, Family, Rename, Stacked, TensorNames
from fourfold.huggingface.key import Key, decoder_keys, number, require
from fourfold.huggingface.layer_types import CHUNKED, stated_kinds
from fourfold.huggingface.rope import FULL

_CHUNK, _FLOOR, _SCALE, _INTERVAL = 8192, 8192, 0.1, 4
"""Values that transformers takes where keys are left out."""


def _read(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    layers = values.get("num_layers", 0)
    for key in ("use_qk_norm", "attn_temperature_tuning"):
        require(raw, key, (True, False, *((4,) if "tuning" in key else ())), source)  # a release has 4
    rotated = _rotated(raw, layers, source)
    stated = stated_kinds(raw, layers, source, (FULL, CHUNKED))
    kinds = (stated or [CHUNKED if turns else FULL for turns in rotated])[:layers]
    values["qk_norm"] = raw.get("use_qk_norm", True)
    elsewhere: dict[str, Any] = {"positions": "none", **({"qk_norm": False} if values["qk_norm"] else {})}
    if raw.get("attn_temperature_tuning", True):
        scale = number(raw.get("attn_scale", _SCALE), "attn_scale", source, float)
        floor = number(raw.get("floor_scale", _FLOOR), "floor_scale", source, int)
        elsewhere["query_temperature"] = QueryTemperature(scale=scale, floor=floor)
    if CHUNKED in kinds:
        values["attention_chunk"] = number(raw.get("attention_chunk_size", _CHUNK), "attention_chunk_size", source, int)
    full = {"attention_chunk": OFF} if CHUNKED in kinds else {}
    values["exceptions"] = exceptions_of(
        [
            {**({} if turns else elsewhere), **(full if kind == FULL else {})}
            for turns, kind in zip(rotated, kinds, strict=True)
        ]
    )
    _read_experts(raw, values, layers, source)


def _rotated(raw: Mapping[str, Any], layers: int, source: str) -> list[bool]:
    """Whether each layer has rotary positions."""
    stated = raw.get("no_rope_layers")
    if not stated:
        interval = number(raw.get("no_rope_layer_interval", _INTERVAL), "no_rope_layer_interval", source, int)
        return [(layer + 1) % interval != 0 for layer in range(layers)]
    if not isinstance(stated, list) or len(stated) < layers or any(each not in (0, 1) for each in stated):
        raise UserError(
            f"{source}: no_rope_layers = {shortened(stated)} is not supported; allowed: a list of {layers} numbers, 1 for a layer "
            "with rotary positions and 0 for one without, or []"
        )
    return [bool(each) for each in stated[:layers]]


def _read_experts(raw: Mapping[str, Any], values: dict[str, Any], layers: int, source: str) -> None:
    """The period of layers with experts, and how many first ones have none."""
    stated = raw.get("moe_layers")
    if stated is None:
        return
    for period in range(1, layers + 1):
        for dense in (0, *stated[:1]) if isinstance(stated, list) else ():
            if stated == [n for n in range(layers) if n >= dense and (n + 1) % period == 0]:
                values["moe_period"], values["first_dense_layers"] = period, dense
                return
    raise UserError(
        f"{source}: moe_layers = {shortened(stated)} is not supported: experts must be in each so many-th layer, perhaps from some "
        "layer on; allowed: for example null, [1, 3, 5]"
    )


def _write(model: ModelConfig) -> dict[str, Any]:
    layers = [model.of_layer(layer) for layer in range(model.num_layers)]
    temperature = next((each.query_temperature for each in layers if each.query_temperature), None)
    tuned = temperature or QueryTemperature(scale=_SCALE, floor=_FLOOR)
    return {
        "no_rope_layers": [int(each.positions == "rope") for each in layers],
        "layer_types": [CHUNKED if each.attention_chunk else FULL for each in layers],
        "attention_chunk_size": next((each.attention_chunk for each in layers if each.attention_chunk), _CHUNK),
        "use_qk_norm": any(each.qk_norm for each in layers),
        "attn_temperature_tuning": temperature is not None,
        "attn_scale": tuned.scale,
        "floor_scale": tuned.floor,
        "moe_layers": [layer for layer in range(model.num_layers) if model.is_moe(layer)],
    }


def _departs(model: ModelConfig) -> dict[str, Any]:
    """Values that the keys cannot say: of layers with several chunks, norms of some rotated ones, several temperatures."""
    layers = [model.of_layer(layer) for layer in range(model.num_layers)]
    found: dict[str, Any] = {}
    rotated = [each for each in layers if each.positions == "rope"]
    others = [each for each in layers if each.positions != "rope"]
    if len({each.attention_chunk for each in layers if each.attention_chunk}) > 1:
        found["attention_chunk"] = model.attention_chunk
    if any(each.qk_norm for each in others) or len({each.qk_norm for each in rotated}) > 1:
        found["qk_norm"] = model.qk_norm
    if any(each.query_temperature for each in rotated) or len({each.query_temperature for each in others}) > 1:
        found["query_temperature"] = model.query_temperature
    if model.positions == "learned":
        found["positions"] = model.positions
    return found


LLAMA4 = Family(
    name="llama4_text",
    architecture="Llama4ForCausalLM",
    keys=(
        *decoder_keys(
            "ffn_size", num_kv_heads=8, head_dim=128, norm_eps=1e-5, rope_theta=500000.0, max_position=131072
        ),
        Key("ffn_size", "intermediate_size_mlp", default=16384),
        Key("moe_ffn_size", "intermediate_size", default=8192),
        Key("num_experts", "num_local_experts", default=16),
        Key("top_k", "num_experts_per_tok", default=1),
        Key("moe_period", "interleave_moe_layer_step", default=1),
    ),
    states={"hidden_act": SILU, "attention_bias": FALSE, "router_jitter_noise": (0.0,)},
    lacks=("mlp_bias",),
    constants={"output_router_logits": False},
    read=_read,
    reads=(
        *(
            "layer_types",
            "no_rope_layers",
            "no_rope_layer_interval",
            "attention_chunk_size",
            "use_qk_norm",
            "moe_layers",
        ),
        *("attn_temperature_tuning", "attn_scale", "floor_scale", "router_aux_loss_coef", "for_llm_compressor"),
    ),
    write=_write,
    fixed={
        "router": "sigmoid",
        "normalize_top_k": False,
        "expert_scaling": "input",
        "num_shared_experts": 1,
        "rope_interleave": True,
        "qk_norm_weight": False,
    },
    may=("attention_chunk", "positions", "qk_norm", "query_temperature", "first_dense_layers"),
    by_layer=("attention_chunk", "positions", "qk_norm", "query_temperature"),
    needs=("num_experts",),
    departs=_departs,
    tensors=TensorNames(
        modules=(
            Rename("feed_forward.router", ("mlp.gate",)),
            *(Rename(f"feed_forward.{name}", (f"mlp.{name}",)) for name in ("gate_proj", "up_proj", "down_proj")),
            *(
                Rename(f"feed_forward.shared_expert.{name}", (f"mlp.shared_experts.{name}",))
                for name in ("gate_proj", "up_proj", "down_proj")
            ),
        ),
        stacked=Stacked("feed_forward.experts"),
    ),
)
