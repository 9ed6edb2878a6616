"""Advice for weights that do not fit a model: a change that makes them fit, by what is missing and what is there."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fourfold.config import ModelConfig, ModelSection, UserError
from fourfold.config.errors import shortened
from fourfold.huggingface import FAMILIES, resolve_model
from fourfold.huggingface.tensors import module_of, num_modules

_BLOCK = re.compile(r"(?:model\.layers|(?:transformer\.)?h)\.(\d+)\.")


def advice(
    folder: Path,
    model: ModelConfig | None,
    present: Collection[str],
    missing: Sequence[str],
    unexpected: Sequence[str],
    unreadable: Sequence[str],
    quantization: Mapping[str, Any],
) -> str:
    """One sentence with a cure. `model`: the model that is built, None where it is not known; `present`: names of all tensors."""
    if unreadable or quantization:
        method = quantization.get("quant_method")
        stated = (
            f"config.json has quantization_config with quant_method = {shortened(method)}"
            if quantization
            else "they are quantized"
        )
        return (
            f"{stated}; read are fp64, fp32, bf16, fp16, and float8_e4m3 with NAME_scale_inv for each block: name a folder in "
            "bf16, for example the copy that transformers' "
            "AutoModelForCausalLM.from_pretrained(FOLDER).dequantize().save_pretrained(NEW) makes"
        )
    if list(missing) == ["lm_head.weight"]:
        return "these weights tie the embeddings: model.tie_embeddings = true"
    if model is not None and (fix := _layers(model, present, missing, unexpected)):
        return fix
    if model is not None and _describes(folder, model):
        family = FAMILIES.get(model.family)
        return (
            f"the config.json beside them describes this model (model_type = {family.name if family else model.family!r}), so one "
            "of both is not what it was saved with: correct config.json, or download or export the folder again"
        )
    return f'build the model from the same folder: model.hf = "{folder}"'


def _layers(
    model: ModelConfig, present: Collection[str], missing: Sequence[str], unexpected: Sequence[str]
) -> str | None:
    """The cure where whole blocks or MTP modules are missing, or are too many."""
    modules = num_modules(present, model.num_layers)
    if missing and not unexpected and all(module_of(name, model.num_layers) is not None for name in missing):
        return (
            f"the folder has the tensors of {modules} MTP modules and the model has {model.mtp_layers} (num_nextn_predict_layers): "
            f"state model.mtp_layers = {modules}"
        )
    blocks = 1 + max((int(match[1]) for name in present if (match := _BLOCK.match(name))), default=-1) - modules
    where = [int(match[1]) for name in (*missing, *unexpected) if (match := _BLOCK.match(name))]
    if len(where) == len(missing) + len(unexpected) and where and min(where) >= min(blocks, model.num_layers) > 0:
        key = FAMILIES[model.family].their_name("num_layers") if model.family in FAMILIES else "num_hidden_layers"
        return (
            f"the folder has the tensors of {blocks} blocks and the model has {model.num_layers}: state model.num_layers = "
            f"{blocks}, or correct {key} in config.json"
        )
    return None


def _describes(folder: Path, model: ModelConfig) -> bool:
    try:
        own = resolve_model(ModelSection(hf=str(folder), mtp_layers=model.mtp_layers, dropout=0))
    except UserError:
        return False
    return own.family == model.family and all(
        getattr(own, key) == getattr(model, key) for key in ("num_layers", "hidden_size", "vocab_size", "ffn_size")
    )
