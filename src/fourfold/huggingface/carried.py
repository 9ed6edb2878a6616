"""A `config.json` for the folder that a run is exported to, with what that of the folder it began from says beside dimensions.

A key whose meaning the run did not change stays as it was, spelling included; where dimensions changed, ours are written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fourfold.config.errors import UserError
from fourfold.config.model_config import ModelConfig
from fourfold.config.model_section import ModelSection
from fourfold.huggingface.config_json import load_config, to_config
from fourfold.huggingface.families import FAMILIES
from fourfold.huggingface.family import SCALINGS
from fourfold.huggingface.resolve import resolve_model

_ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings")
_WINDOW = ("use_sliding_window", "sliding_window", "max_window_layers", "layer_types")
_OURS = ("architectures", "model_type", "dtype", "torch_dtype")
_NOT_CARRIED = ("quantization_config", "transformers_version", "_name_or_path", "auto_map")
"""Keys that are not true of the folder that is written."""
TOKEN_ID = "_token_id"


def carried_config(folder: Path, model: ModelConfig, dtype: str, eos: int | None, same_tokens: bool) -> dict[str, Any]:
    """The object of the config.json that is written. `folder`: where the run's weights came from; `same_tokens`: whether the run
    has its tokenizer: then the ids of bos, eos and pad are its own. `eos`: the id that ended documents in the run. Raises
    `UserError` as `to_config`."""
    written = to_config(model, dtype, None if same_tokens else eos)
    raw = load_config(folder)
    ids = {key: value for key, value in raw.items() if key.endswith(TOKEN_ID)} if same_tokens else {}
    if eos is not None and eos not in _listed(ids.get("eos_token_id")):
        ids["eos_token_id"] = eos
    try:
        before = resolve_model(ModelSection(hf=str(folder), dropout=0))
    except UserError:
        return {**written, **ids}
    if before.family != model.family:
        return {**written, **ids}
    return {**_kept(raw, before, model, written), **ids}


def _kept(raw: Mapping[str, Any], before: ModelConfig, model: ModelConfig, written: dict[str, Any]) -> dict[str, Any]:
    """The two objects as one, without ids of tokens that are not ours."""
    family = FAMILIES[model.family]
    aliases = {alias for key in family.keys for alias in key.aliases}
    kept = {
        key: value
        for key, value in raw.items()
        if key not in {*_NOT_CARRIED, *_OURS, *aliases, *family.dropouts} and not key.endswith(TOKEN_ID)
    }
    for names, ours in (
        (_ROPE, ("rope_theta", "rotary_fraction", *SCALINGS)),
        (_WINDOW, ("sliding_window", "attention_chunk")),
    ):
        if _of_layers(before, ours) != _of_layers(model, ours):
            kept = {key: value for key, value in kept.items() if key not in names}
        elif any(name in raw for name in names):
            written = {key: value for key, value in written.items() if key not in names}
    former = to_config(before)
    changed = {key: value for key, value in written.items() if key not in kept or former.get(key) != value}
    return {**kept, **changed}


def _of_layers(model: ModelConfig, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """The values of some keys in every layer."""
    return [tuple(getattr(model.of_layer(n), key) for key in keys) for n in range(model.num_layers)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
