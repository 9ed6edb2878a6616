"""Tensors of a Hugging Face folder that no parameter takes: each is a known copy, compared by content, or it is named.

Known are: the unembedding of a model that ties it, rotary frequencies, GPT-2's causal masks, an MTP module's own embedding and
unembedding (DeepSeek-V3 shares both), balancing biases, and scales of fp8 matrices. MTP modules beyond those of the model are left
out and named.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from fourfold.checkpoint.quantized import SCALE
from fourfold.config import ModelConfig
from fourfold.huggingface.tensors import balance_biases, module_of, num_modules
from fourfold.model.layers import ropes_of
from fourfold.model.rope import Rope
from fourfold.model.rope_tables import rope_frequencies

_PIECE = 1 << 24
_FREQUENCIES = re.compile(r".*\.rotary_emb\.inv_freq")
_MASK = re.compile(r"(transformer\.)?h\.\d+\.attn\.bias")
_MASKED_VALUE = re.compile(r"(transformer\.)?h\.\d+\.attn\.masked_bias")
_OF_MODULE = re.compile(r"model\.layers\.(\d+)\.(embed_tokens|shared_head\.head)\.weight")
_COPIED = {"embed_tokens": "model.embed_tokens.weight", "shared_head.head": "lm_head.weight"}
_LEAST_MASK = -1000.0


@dataclass
class Spare:
    """Names by what was found: `unexpected`, `different`: names of copies that are none, with what they should equal; `left_out`:
    tensors of MTP modules that the model has not."""

    unexpected: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reader:
    """How tensors are read: by name on disk, elements [start, end) of one, its shape; and of a parameter."""

    shape: Callable[[str], tuple[int, ...]]
    read: Callable[[str, int, int], Tensor]
    parameter: Callable[[str, int, int], Tensor]
    parameter_shapes: dict[str, tuple[int, ...]]


def examine(
    spare: Iterable[str], present: Iterable[str], model: ModelConfig, scaled: set[str], reader: Reader
) -> Spare:
    """Sorts the tensors that no parameter takes. `present`: all names; `scaled`: the matrices that are read with their scale."""
    found, present = Spare(), set(present)
    modules = num_modules(present, model.num_layers)
    for name in spare:
        module = module_of(name, model.num_layers)
        if module is not None and model.mtp_layers <= module < modules:
            found.left_out.append(name)
        elif name.endswith(SCALE) and name.removesuffix(SCALE) in scaled:
            continue
        elif is_bias_of(name, model):
            if reader.shape(name) != (model.num_experts,):
                found.different.append(f"{name} {list(reader.shape(name))} instead of [{model.num_experts}]")
        elif (wanted := _copy_of(name, model, reader)) is None:
            found.unexpected.append(name)
        elif not wanted[1]:
            found.different.append(f"{name}, which differs from {wanted[0]}")
    return found


def is_known(name: str, model: ModelConfig) -> bool:
    """Whether the tensor is of a kind that may be there though no parameter takes it, whatever its content."""
    known = (_FREQUENCIES, _MASK, _MASKED_VALUE, _OF_MODULE)
    is_scale, is_head = name.endswith(SCALE), name == "lm_head.weight" and model.tie_embeddings
    return is_scale or is_head or is_bias_of(name, model) or any(kind.fullmatch(name) for kind in known)


def is_bias_of(name: str, model: ModelConfig) -> bool:
    """Whether the tensor is the balancing bias of one of the model's routers, which begin with it."""
    layers = range(model.num_layers + model.mtp_layers)
    return model.router == "sigmoid" and any(name in balance_biases(layer) for layer in layers if model.is_moe(layer))


def _copy_of(name: str, model: ModelConfig, reader: Reader) -> tuple[str, bool] | None:
    """The original that a tensor should be a copy of, and whether it is one; None for a tensor that is unknown."""
    if name == "lm_head.weight" and model.tie_embeddings:
        return _COPIED["embed_tokens"], _equal(name, _COPIED["embed_tokens"], reader)
    if match := _OF_MODULE.fullmatch(name):
        original = _COPIED[match[2]]
        original = original if original in reader.parameter_shapes else _COPIED["embed_tokens"]
        within = model.num_layers <= int(match[1]) < model.num_layers + model.mtp_layers
        return (original, _equal(name, original, reader)) if within else None
    if _FREQUENCIES.fullmatch(name) and model.positions == "rope":
        return "the frequencies that rope_theta and rope_scaling give", _is_frequencies(name, model, reader)
    if _MASK.fullmatch(name) and model.positions == "learned":
        return "a causal mask", _is_mask(name, reader)
    if _MASKED_VALUE.fullmatch(name) and model.positions == "learned":
        return f"a value below {_LEAST_MASK:.0f}", bool((_all(name, reader) < _LEAST_MASK).all())
    return None


def _equal(name: str, parameter: str, reader: Reader) -> bool:
    """Whether a tensor is a parameter, element by element."""
    shape = reader.parameter_shapes[parameter]
    if reader.shape(name) != shape:
        return False
    size = prod(shape)
    pieces = ((start, min(start + _PIECE, size)) for start in range(0, size, _PIECE))
    return all(torch.equal(reader.read(name, *piece), reader.parameter(parameter, *piece)) for piece in pieces)


def _is_frequencies(name: str, model: ModelConfig, reader: Reader) -> bool:
    """Whether they are the model's, up to the rounding of their format. Folders of long ago hold those before scaling."""
    found = _all(name, reader)
    tolerance = 1e-5 if found.dtype in (torch.float32, torch.float64) else 1e-2
    return any(
        found.shape == wanted.shape and torch.allclose(found.float(), wanted, rtol=tolerance, atol=0)
        for rope in ropes_of(model)
        if isinstance(rope, Rope)
        for wanted in (rope_frequencies(rope, scaled=scaled) for scaled in (True, False))
    )


def _is_mask(name: str, reader: Reader) -> bool:
    shape = reader.shape(name)
    if len(shape) < 2 or shape[-1] != shape[-2] or prod(shape[:-2]) != 1:
        return False
    found = _all(name, reader).view(shape[-2:])
    return bool(torch.equal(found.float(), torch.ones(shape[-2:]).tril()))


def _all(name: str, reader: Reader) -> Tensor:
    return reader.read(name, 0, prod(reader.shape(name)))
