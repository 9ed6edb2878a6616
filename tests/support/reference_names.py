"""transformers' tensors by our parameters' names: views of them, so that writing one writes the other."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fourfold.huggingface.families import FAMILIES
from fourfold.huggingface.family import TensorNames

View = Callable[[torch.Tensor], torch.Tensor]

_TABLES = {
    "model.embed_tokens.weight": "transformer.wte.weight",
    "model.embed_positions.weight": "transformer.wpe.weight",
    "model.norm.weight": "transformer.ln_f.weight",
    "model.norm.bias": "transformer.ln_f.bias",
}
_PARTS = {
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.c_proj",
    "mlp.up_proj": "mlp.c_fc",
    "mlp.down_proj": "mlp.c_proj",
}
_FUSED = {"self_attn.q_proj": 0, "self_attn.k_proj": 1, "self_attn.v_proj": 2}

_ROWS = {
    **{part: ("self_attn.qkv_proj", place) for part, place in _FUSED.items()},
    "mlp.gate_proj": ("mlp.gate_up_proj", 0),
}
_ROWS["mlp.up_proj"] = ("mlp.gate_up_proj", 1)


def view_of(name: str, theirs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Our parameter `name` in a model's tensors by their own names. GPT-2's matrices are [in, out], and q, k, v one of them."""
    key = next((each for each in _names(name) if each in theirs), "")
    if key:
        view = seen_as_ours(key, theirs)
        return theirs[key] if view is None else view(theirs[key])
    if (place := re.search(r"self_attn\.([qkv])_conv1d", name)) is not None:
        return theirs[name.replace(place[0], "self_attn.conv1d")].chunk(3)["qkv".index(place[1])]
    if re.search(r"\.linear_attn\.(conv|in_proj)_[qkv]\.", name):
        return _convolution(name, theirs)
    if name in _TABLES and _TABLES[name] in theirs:
        return theirs[_TABLES[name]]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
    layer, part, kind = match.groups() if match is not None else ("", "", "")
    if part in _ROWS and f"model.layers.{layer}.{_ROWS[part][0]}.weight" in theirs:
        fused, place = _ROWS[part]
        full = theirs[f"model.layers.{layer}.{fused}.weight"]
        return full.split(_rows_of(f"model.layers.{layer}.{fused}.weight", theirs))[place]
    renamed = _renamed(name, theirs)
    if renamed is not None:
        return renamed
    prefix = f"transformer.h.{layer}."
    if part in _FUSED:
        full = theirs[f"{prefix}attn.c_attn.{kind}"]
        own = full.chunk(3, dim=-1)[_FUSED[part]]
    else:
        own = theirs[f"{prefix}{_PARTS[part]}.{kind}"]
    return own.t() if own.dim() == 2 else own


def _renamed(name: str, theirs: Mapping[str, torch.Tensor]) -> torch.Tensor | None:
    """By the records of families that rename modules, or fuse some of one size; None where none of them does."""
    for names in (family.tensors for family in FAMILIES.values()):
        for ours, other in names.outside:
            if ours == name and other in theirs:
                return theirs[other]
        for rename in names.modules if names.block == TensorNames().block else ():
            for place, module in enumerate(rename.ours):
                key = name.replace(f".{module}.", f".{rename.theirs}.")
                if f".{module}." in name and key in theirs:
                    return theirs[key].chunk(len(rename.ours))[place]
    return None


def _convolution(name: str, theirs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The channels of q, k or v of a convolution over all of them, or of a projection to all of them."""
    module, _, part = name.removesuffix(".weight").rpartition("_")
    prefix, _, kind = module.rpartition(".")
    full = theirs[f"{prefix}.conv1d.weight" if kind == "conv" else f"{prefix}.in_proj_qkv.weight"]
    output = next(each for each in (f"{prefix}.out_proj.weight", f"{prefix}.o_proj.weight") if each in theirs)
    values = theirs[output].shape[1]
    keys = (full.shape[0] - values) // 2
    return full.split((keys, keys, values))["qkv".index(part)]


def _names(name: str) -> tuple[str, ...]:
    """A parameter's name as it is here, in gpt-oss, in Llama 4, in Kimi-Linear, and in OLMo-Hybrid."""
    forget = re.sub(r"self_attn\.(f_|A_log|dt_bias)", r"self_attn.forget_gate.\1", name)
    router = name.replace("mlp.gate.", "mlp.router.")
    fed = router.replace(".mlp.", ".feed_forward.").replace("shared_experts", "shared_expert")
    projected = re.sub(r"linear_attn\.in_proj_(.)", r"linear_attn.\1_proj", name).replace(".z_proj.", ".g_proj.")
    hybrid = projected.replace("linear_attn.out_proj", "linear_attn.o_proj").replace(
        "linear_attn.norm", "linear_attn.o_norm"
    )
    return name, router, fed, forget, hybrid


def seen_as_ours(key: str, theirs: Mapping[str, torch.Tensor]) -> View | None:
    """The view of a tensor that is a parameter of ours, for experts whose matrices are [in, out], as [experts, 2, ffn, hidden] and
    [experts, hidden, ffn]: with biases an up follows each gate, as in gpt-oss. None for others."""
    biased = key.removesuffix("_bias") + "_bias" in theirs
    if ".experts." not in key or not (biased or ".feed_forward." in key) or key.endswith("down_proj_bias"):
        return None
    if key.endswith("down_proj"):
        return lambda tensor: tensor.mT
    if key.endswith("_bias"):
        return lambda tensor: tensor.unflatten(-1, (-1, 2)).mT
    if biased:
        return lambda tensor: tensor.unflatten(-1, (-1, 2)).permute(0, 3, 2, 1)
    return lambda tensor: tensor.unflatten(-1, (2, -1)).permute(0, 2, 3, 1)


def _rows_of(name: str, theirs: Mapping[str, torch.Tensor]) -> list[int]:
    """The rows of each matrix that one of Phi-3's tensors holds, one below another."""
    rows = theirs[name].shape[0]
    if name.endswith("gate_up_proj.weight"):
        return [rows // 2] * 2
    queries = theirs[name.replace("qkv_proj", "o_proj")].shape[1]
    return [queries, *[(rows - queries) // 2] * 2]


def fused_rows(name: str, family: str, ours: Mapping[str, Any]) -> list[int]:
    """The rows of each of our matrices that one of the family's tensors holds, one below another; none where it holds one. `ours`:
    parameters with their shapes, by name."""
    for rename in FAMILIES[family].tensors.modules if family in FAMILIES else ():
        prefix, found, kind = name.rpartition(f".{rename.theirs}.")
        if found and len(rename.ours) > 1 and not rename.transposed:
            return [ours[f"{prefix}.{module}.{kind}"].shape[0] for module in rename.ours]
    return []
