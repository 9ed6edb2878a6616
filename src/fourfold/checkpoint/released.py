"""How released weights lie on disk: which tensors of a Hugging Face folder make up each of our parameters.

In memory a block's experts are stacked, gate_up_proj [experts, 2, ffn, hidden] and down_proj [experts, hidden, ffn]. On disk each
expert has tensors of its own (transformers 4, released files, and what transformers 5 writes), or they are stacked too, gate above
up (transformers 5 in memory). GPT-2 keeps its matrices transposed, and queries, keys and values in one.
"""

import re
from collections.abc import Container
from dataclasses import dataclass
from math import prod

from fourfold.model.spec import POSITIONS, ParameterSpec


@dataclass(frozen=True)
class TensorSlice:
    """Elements [start, end) of a parameter laid flat, as tensor `name` of `shape` on disk holds them: from its element `offset` on;
    or, where `columns` is stated, as its columns [columns, columns + rows of the parameter), transposed."""

    name: str
    shape: tuple[int, ...]
    start: int
    end: int
    offset: int = 0
    columns: int | None = None


def forms(spec: ParameterSpec) -> list[list[TensorSlice]]:
    """The forms in which the parameter is accepted on disk."""
    if re.search(r"\.experts\.(gate_up|down)_proj$", spec.name):
        return [_experts(spec, _SEPARATE), _experts(spec, _MIXTRAL), [_stacked(spec)]]
    own = [TensorSlice(spec.name, spec.shape, 0, spec.numel)]
    if spec.name.endswith(".mlp.gate.weight"):
        return [own, [TensorSlice(_mixtral(spec.name), spec.shape, 0, spec.numel)]]
    released = _gpt2(spec)
    return [own] if released is None else [own, released, [_without_prefix(piece) for piece in released]]


def released_form(spec: ParameterSpec, family: str) -> list[TensorSlice]:
    """The form in which a family is released, and written here."""
    accepted = forms(spec)
    if family == "mixtral" and re.search(r"\.mlp\.(experts|gate)\.", spec.name):
        return accepted[1]
    if family == "gpt2":
        released = _gpt2(spec)
        return accepted[0] if released is None else released
    return accepted[0]


def present_form(spec: ParameterSpec, present: Container[str]) -> list[TensorSlice]:
    """Of the accepted forms the one of which most is there."""
    return max(forms(spec), key=lambda form: sum(piece.name in present for piece in form) / len(form))


_SEPARATE = ("mlp.experts", ("gate_proj", "up_proj"), "down_proj")
_MIXTRAL = ("block_sparse_moe.experts", ("w1", "w3"), "w2")


def _experts(spec: ParameterSpec, names: tuple[str, tuple[str, str], str]) -> list[TensorSlice]:
    folder, inputs, output = names
    prefix = spec.name.partition("mlp.experts")[0] + folder
    kinds = inputs if spec.name.endswith("gate_up_proj") else (output,)
    shape = spec.shape[-2:]
    pieces: list[TensorSlice] = []
    for expert in range(spec.shape[0]):
        for kind in kinds:
            start = len(pieces) * prod(shape)
            pieces.append(TensorSlice(f"{prefix}.{expert}.{kind}.weight", shape, start, start + prod(shape)))
    return pieces


def _stacked(spec: ParameterSpec) -> TensorSlice:
    shape = spec.shape if len(spec.shape) == 3 else (spec.shape[0], 2 * spec.shape[2], spec.shape[3])
    return TensorSlice(spec.name, shape, 0, spec.numel)


def _mixtral(name: str) -> str:
    return name.replace(".mlp.", ".block_sparse_moe.")


_GPT2_TABLES = {
    "model.embed_tokens.weight": "transformer.wte.weight",
    POSITIONS: "transformer.wpe.weight",
    "model.norm.weight": "transformer.ln_f.weight",
    "model.norm.bias": "transformer.ln_f.bias",
}
_GPT2_BLOCK = {
    "input_layernorm": ("ln_1", None),
    "post_attention_layernorm": ("ln_2", None),
    "self_attn.q_proj": ("attn.c_attn", 0),
    "self_attn.k_proj": ("attn.c_attn", 1),
    "self_attn.v_proj": ("attn.c_attn", 2),
    "self_attn.o_proj": ("attn.c_proj", None),
    "mlp.up_proj": ("mlp.c_fc", None),
    "mlp.down_proj": ("mlp.c_proj", None),
}


def _gpt2(spec: ParameterSpec) -> list[TensorSlice] | None:
    if spec.name in _GPT2_TABLES:
        return [TensorSlice(_GPT2_TABLES[spec.name], spec.shape, 0, spec.numel)]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", spec.name)
    if match is None or match[2] not in _GPT2_BLOCK:
        return None
    theirs, third = _GPT2_BLOCK[match[2]]
    name = f"transformer.h.{match[1]}.{theirs}.{match[3]}"
    copies = 1 if third is None else 3
    first = (third or 0) * spec.shape[0]
    if len(spec.shape) == 1:
        return [TensorSlice(name, (copies * spec.shape[0],), 0, spec.numel, offset=first)]
    return [TensorSlice(name, (spec.shape[1], copies * spec.shape[0]), 0, spec.numel, columns=first)]


def _without_prefix(piece: TensorSlice) -> TensorSlice:
    """OpenAI's own release of GPT-2 has no `transformer.` before its names."""
    name = piece.name.removeprefix("transformer.")
    return TensorSlice(name, piece.shape, piece.start, piece.end, piece.offset, piece.columns)


def balance_bias(layer: int) -> str:
    """DeepSeek-V3's balancing bias of a block's router, [experts], fp32: its name on disk."""
    return f"model.layers.{layer}.mlp.gate.e_score_correction_bias"


def balance_bias_extra(layer: int) -> str:
    """Its name among the extra tensors of a run's checkpoint."""
    return f"b{layer}.balance_bias"


_NO_PARAMETER = re.compile(
    r".*\.rotary_emb\.inv_freq|.*\.e_score_correction_bias|(transformer\.)?h\.\d+\.attn\.(masked_)?bias"
)
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def is_ignored(name: str, num_layers: int, present: Container[str], wanted: Container[str]) -> bool:
    """Whether a tensor that no parameter needs may be there all the same: a buffer, the unembedding of a model that ties it, a
    module of multi-token prediction."""
    if _NO_PARAMETER.fullmatch(name) or (name == "lm_head.weight" and name not in wanted):
        return True
    match = _LAYER.match(name)
    if match is None or int(match[1]) < num_layers:
        return False
    return f"model.layers.{match[1]}.eh_proj.weight" in present
