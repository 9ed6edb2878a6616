"""OLMo-2: norms after attention and feed-forward, and of queries and keys over all heads (OLMo team 2024, section 3.2). OLMo-3:
with windows in three layers of four; the others may have YaRN (OLMo team 2025)."""

from collections.abc import Mapping
from typing import Any

from fourfold.config.errors import UserError, shortened
from fourfold.config.model_config import ModelConfig
from fourfold.huggingface.family import FALSE, SILU, Family
from fourfold.huggingface.key import decoder_keys
from fourfold.huggingface.layer_types import (
    FULL,
    SLIDING,
    layer_types,
    of_kinds,
    read_period,
    stated_kinds,
    two_kinds,
    window_of,
)
from fourfold.huggingface.rope import ROPE_KEYS, read_ropes, write_ropes

_PERIOD, _WINDOW, _BASE = 4, 4096, 5e5
_ROPES = {FULL: ("rope_theta", _BASE), SLIDING: ("", _BASE)}
_FIXED = {"norm_placement": "post", "qk_norm": True, "qk_norm_over": "all"}


def _read(raw: Mapping[str, Any], values: dict[str, Any], source: str) -> None:
    ropes = read_ropes(raw, _ROPES, OLMO3.rope_types, source)
    kinds = stated_kinds(raw, values.get("num_layers", 0), source) or [SLIDING]
    if (
        raw.get("rope_theta") not in (None, _BASE)
        and SLIDING in kinds
        and not (raw.get("rope_parameters") or {}).get(SLIDING)
    ):
        tables = {kind: {"rope_type": "default", "rope_theta": raw["rope_theta"]} for kind in _ROPES}
        raise UserError(
            f"{source}: rope_theta = {shortened(raw['rope_theta'])}: transformers 5 takes it for layers of full attention alone, "
            f"version 4 for all; state both instead: rope_parameters = {tables}"
        )
    read_period(raw, values, source, _PERIOD, ropes)


def _write(model: ModelConfig) -> dict[str, Any]:
    return {
        "layer_types": layer_types(model),
        "sliding_window": window_of(model) or _WINDOW,
        **write_ropes(of_kinds(model), _ROPES),
    }


OLMO2 = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    keys=decoder_keys(max_position=2048, norm_eps=1e-5),
    states={"hidden_act": SILU, "attention_bias": FALSE},
    lacks=("mlp_bias",),
    # transformers' own pad_token_id names a token of a small vocabulary, whose row of the embedding would get no gradient
    constants={"pad_token_id": None},
    fixed=_FIXED,
)
OLMO3 = Family(
    name="olmo3",
    architecture="Olmo3ForCausalLM",
    keys=decoder_keys("rope_theta", max_position=2048, norm_eps=1e-5),
    states=OLMO2.states,
    lacks=OLMO2.lacks,
    constants=OLMO2.constants,
    read=_read,
    reads=("layer_types", "sliding_window"),
    write=_write,
    fixed=_FIXED,
    may=("sliding_window", "rope_theta"),
    by_layer=("sliding_window", *ROPE_KEYS),
    ropes=_ROPES,
    rope_types=("default", "llama3", "yarn", "linear"),  # of each kind of layer
    departs=two_kinds,
)
