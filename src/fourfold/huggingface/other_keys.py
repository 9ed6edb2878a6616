"""Keys of a Hugging Face `config.json` that state no dimension: dropout, keys that change what any family computes, keys that do
not.

transformers reads them in every family's code (`is_causal` in its masks, `per_layer_config` in its configuration), though few
families list them. A key that is neither here nor in a family's record is not read; `unread_keys` names it.
"""

from collections.abc import Mapping
from typing import Any

from fourfold.config.errors import UserError
from fourfold.huggingface.family import Family
from fourfold.huggingface.key import number, require

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


def require_decoder(raw: Mapping[str, Any], source: str) -> None:
    """Raises `UserError` for a key that makes another model of it in every family."""
    for key, allowed in _EVERY_FAMILY.items():
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
