"""Hugging Face `config.json`, read into this package's names and written back.

Some keys state no dimension: dropout, keys that change what any family computes, keys that do not.
transformers reads them in every family's code (`is_causal` in its masks, `per_layer_config` in its configuration), though few
families list them. A key that is neither here nor in a family's record is not read; `unread_keys` names it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fourfold.config.errors import UserError, shortened
from fourfold.config.model_config import ModelConfig
from fourfold.config.whole_file import bounded
from fourfold.huggingface.families import FAMILIES, SAME_AS, nearest_family
from fourfold.huggingface.family import Family
from fourfold.huggingface.key import number, require
from fourfold.huggingface.rope import read_rope, write_rope

_EVERY_FAMILY: dict[str, tuple[Any, ...]] = {
    "is_causal": (True, None),
    "is_encoder_decoder": (False, None),
    "add_cross_attention": (False, None),
    "per_layer_config": (None, {}),
    "partial_rotary_factor": (1.0, None),
    "text_config": (None,),
    "vision_config": (None,),
    "audio_config": (None,),
}
"""Keys with the values that leave the model the decoder that its other keys describe."""
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")
_NO_NUMBERS = {
    "architectures", "model_type", "auto_map", "transformers_version", "torch_dtype", "dtype", "use_cache", "return_dict",
    "return_dict_in_generate", "name_or_path", "pretraining_tp", "is_decoder", "chunk_size_feed_forward", "problem_type",
    "id2label", "label2id", "num_labels", "classifier_dropout", "ep_size", "seq_aux", "generation_config", "bad_words_ids",
    "tokenizer_class", "task_specific_params", "attn_implementation", "gradient_checkpointing", "quantization_config",
    "cross_attention_hidden_size", "original_max_position_embeddings", "n_ctx", "reorder_and_upcast_attn", "tie_word_embeddings",
    "output_router_logits", "qk_head_dim", "unsloth_version", "unsloth_fixed",
}  # fmt: skip
"""Keys that change nothing of what a supported family computes in training."""
_NO_NUMBERS_BEGIN = ("_", "output_", "summary_")
_NO_NUMBERS_END = ("_token_id", "_token_ids", "_token_index")
_SHOWN = 12


def require_decoder(raw: Mapping[str, Any], family: Family, source: str) -> None:
    """Raises `UserError` for a key that makes another model of it in every family that does not read it."""
    for key, allowed in _EVERY_FAMILY.items():
        if key in {each.theirs for each in family.keys}:
            continue
        require({key: raw[key]} if key in raw else {}, key, allowed, source)


def require_no_dropout(raw: Mapping[str, Any], family: Family, source: str) -> None:
    """Raises `UserError` where config.json states dropout, or leaves out a key for which transformers takes some."""
    for key, usual in family.dropouts.items():
        value = raw.get(key, usual)
        if value is not None and number(value, key, source, float, zero=True):
            left_out = "" if key in raw else f" (left out, and transformers takes {usual})"
            raise UserError(
                f"{source}: {key} = {value}{left_out}: there is no dropout here, as in pretraining of today's models; to train "
                "this model without it: model.dropout = 0 in the run file, or fourfold import --without-dropout"
            )


def unread_keys(raw: Mapping[str, Any], family: Family) -> list[str]:
    """Keys with a value that neither the family's record nor this file knows, as they may be shown."""
    known = {name for key in family.keys for name in (key.theirs, *key.aliases, key.switch)}
    known |= {*family.states, *family.lacks, *family.constants, *family.dropouts, *family.reads, *_EVERY_FAMILY, *_ROPE}
    found = [
        key
        for key, value in raw.items()
        if key not in known | _NO_NUMBERS
        and value not in (None, False, 0, "", [], {})
        and not key.startswith(_NO_NUMBERS_BEGIN)
        and not key.endswith(_NO_NUMBERS_END)
    ]
    return [key if key.isidentifier() else ascii(key)[:40] for key in found]


def unread_line(keys: list[str]) -> str:
    """The sentence on keys that are not read."""
    more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
    return f"{', '.join(keys[:_SHOWN])}{more}"


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
    require_decoder(raw, family, source)
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
    if family.rope_types and not family.ropes:
        read_rope(raw, values, family.rope_types, source)
    family.read(raw, values, source)
    return values


def stated_family(raw: dict[str, Any], source: str = "config.json") -> Family:
    """The family of a parsed `config.json`. Raises `UserError` where it is none of ours."""
    stated = raw.get("model_type")
    name = SAME_AS.get(stated, stated) if isinstance(stated, str) else stated
    inside = text_family(raw)
    if inside is not None and name != inside.name:
        raise UserError(
            f"{source}: model_type = {shortened(stated)} is a model of text and pictures; its decoder, text_config, is a "
            f"{inside.name}, which is read from a folder of its own: transformers' {inside.architecture}.from_pretrained(FOLDER)"
            ".save_pretrained(NEW) makes one; fourfold plan --model takes this one as it is"
        )
    if not isinstance(name, str) or name not in FAMILIES:
        raise UserError(
            f"{source}: model_type = {name!r} is not supported; allowed: {', '.join(FAMILIES)}; others can be planned "
            "(fourfold plan --model)"
        )
    return FAMILIES[name]


def text_family(raw: Mapping[str, Any]) -> Family | None:
    """The family of the decoder that a model of text and pictures describes in `text_config`; None where there is none."""
    inside = raw.get("text_config")
    stated = inside.get("model_type") if isinstance(inside, dict) else None
    return FAMILIES.get(stated) if isinstance(stated, str) else None


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
        **(write_rope(model) if family.rope_types and not family.ropes else {}),
        **family.write(model),
    }
    if eos is not None:
        raw["eos_token_id"] = eos
        raw["bos_token_id"] = eos
    return raw
