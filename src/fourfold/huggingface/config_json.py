"""Hugging Face `config.json`, read into this package's names and written back."""

import json
from pathlib import Path
from typing import Any

from fourfold.config.errors import UserError
from fourfold.config.model_config import ModelConfig
from fourfold.config.whole_file import bounded
from fourfold.huggingface.families import FAMILIES, SAME_AS, nearest_family
from fourfold.huggingface.family import Family
from fourfold.huggingface.key import require
from fourfold.huggingface.other_keys import require_decoder, require_no_dropout
from fourfold.huggingface.rope import read_rope, write_rope


def read_config(folder: Path, without_dropout: bool = False) -> dict[str, Any]:
    """The dimensions in `folder/config.json`, by this package's names. `without_dropout`: dropout that it states is left out.
    Raises `UserError` for what cannot be run right."""
    return parse_config(load_config(folder), str(folder / "config.json"), without_dropout)


def load_config(folder: Path) -> dict[str, Any]:
    """The object in `folder/config.json`. Raises `UserError`."""
    path = folder / "config.json"
    try:
        raw = json.loads(bounded(path))
    except FileNotFoundError:
        raise UserError(f"model.hf: {path} does not exist; name a folder that holds a config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"model.hf: {path} is not readable JSON: {error}") from None
    if not isinstance(raw, dict):
        raise UserError(f"model.hf: {path} holds no JSON object")
    return raw


def end_of_text(raw: dict[str, Any]) -> int | None:
    """The id of the end-of-text token, the first where several end a text; None where the folder states none."""
    stated = raw.get("eos_token_id")
    first = stated[0] if isinstance(stated, list) and stated else stated
    return first if isinstance(first, int) and not isinstance(first, bool) and first >= 0 else None


def parse_config(raw: dict[str, Any], source: str = "config.json", without_dropout: bool = False) -> dict[str, Any]:
    """The dimensions in a parsed `config.json`. `source`: its name in messages. Raises `UserError` as `read_config`."""
    family = stated_family(raw, source)
    require_decoder(raw, source)
    for key, allowed in family.states.items():
        require(raw, key, allowed, source, family.name)
    for key in family.lacks:
        if raw.get(key):
            raise UserError(
                f"{source}: {key} = {json.dumps(raw[key])} is not supported for {family.name}; allowed: false"
            )
    if not without_dropout:
        require_no_dropout(raw, family, source)
    values: dict[str, Any] = {"family": family.name, **family.implied}
    read = {key.ours: key.read(raw, source) for key in family.keys}
    values.update({ours: value for ours, value in read.items() if value is not None})
    values["tie_embeddings"] = bool(raw.get("tie_word_embeddings", family.implied.get("tie_embeddings", False)))
    if family.rope_types:
        read_rope(raw, values, family.rope_types, source)
    family.read(raw, values, source)
    return values


def stated_family(raw: dict[str, Any], source: str = "config.json") -> Family:
    """The family of a parsed `config.json`. Raises `UserError` where it is none of ours."""
    stated = raw.get("model_type")
    name = SAME_AS.get(stated, stated) if isinstance(stated, str) else stated
    if not isinstance(name, str) or name not in FAMILIES:
        raise UserError(
            f"{source}: model_type = {name!r} is not supported; allowed: {', '.join(FAMILIES)}; others can be planned "
            "(fourfold plan --model)"
        )
    return FAMILIES[name]


def to_config(model: ModelConfig, dtype: str = "float32", eos: int | None = None) -> dict[str, Any]:
    """The object of a `config.json` that transformers 4 and 5 both load. Raises `UserError` where no family has the model."""
    if model.family not in FAMILIES:
        near, lacks = nearest_family(model)
        raise UserError(
            f"no Hugging Face family has this model, so it cannot be written as one; the nearest is {near}, which cannot have "
            + ", ".join(f"model.{key} = {value!r}" for key, value in lacks.items())
        )
    family = FAMILIES[model.family]
    raw: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.name,
        "tie_word_embeddings": model.tie_embeddings,
        "torch_dtype": dtype,
        "dtype": dtype,
        "use_cache": True,
        **{key: allowed[0] for key, allowed in family.states.items()},
        **{name: value for key in family.keys for name, value in key.write(getattr(model, key.ours)).items()},
        **dict.fromkeys(family.dropouts, 0.0),
        **family.constants,
        **(write_rope(model) if family.rope_types else {}),
        **family.write(model),
    }
    if eos is not None:
        raw["eos_token_id"] = eos
        raw["bos_token_id"] = eos
    return raw
