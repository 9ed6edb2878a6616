"""Weights as views of flat buffers: what a segment's function reads, and where its gradients are added."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.model.spec import Segment


class Weight:
    """A view of a unit's flat parameters and the matching view of its flat gradients.

    The views stay valid while the storage below them is freed and refilled. A gradient is added to what is there, except
    the first into a new buffer, whose content means nothing (`fresh`): that one is assigned, so nobody clears the buffer.
    """

    __slots__ = ("data", "fresh", "grad")

    def __init__(self, data: Tensor, grad: Tensor) -> None:
        self.data = data
        self.grad = grad
        self.fresh = False

    def add_product(self, grad_output: Tensor, inputs: Tensor) -> None:
        """grad += grad_output^T @ inputs. Shapes: [tokens, out], [tokens, in] -> [out, in]."""
        if self.grad.dtype != inputs.dtype:
            self.add(grad_output.t() @ inputs)
        elif self.fresh:
            torch.mm(grad_output.t(), inputs, out=self.grad)
            self.fresh = False
        else:
            self.grad.addmm_(grad_output.t(), inputs)

    def add(self, grad: Tensor) -> None:
        if self.fresh:
            self.grad.copy_(grad)
            self.fresh = False
        else:
            self.grad.add_(grad)

    def clear_if_fresh(self) -> None:
        """Zeros where nothing was added yet: before adding to some rows alone, or where no gradient came."""
        if self.fresh:
            self.grad.zero_()
            self.fresh = False


class Shaped(Protocol):
    """A parameter, or one rank's part of it."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def numel(self) -> int: ...


class FlatUnit:
    """One unit's flat parameters and gradients with a named view for each run of consecutive parameters."""

    def __init__(self, contents: Sequence[Shaped], parameters: Tensor, gradients: Tensor) -> None:
        self.parameters = parameters
        self.gradients = gradients
        self.numel = sum(spec.numel for spec in contents)
        self._ranges: dict[str, tuple[int, int, Shaped]] = {}
        self._weights: dict[tuple[str, str | None], Weight] = {}
        offset = 0
        for spec in contents:
            self._ranges[spec.name] = (offset, offset + spec.numel, spec)
            offset += spec.numel

    def weight(self, first: str, last: str | None = None) -> Weight:
        """The parameter `first`, or the consecutive run `first`..`last` stacked along dim 0 (q, k, v as one matrix). The same
        object every time, so that segments which share a parameter add to it as one."""
        weight = self._weights.get((first, last))
        if weight is None:
            start, end, spec = self._ranges[first]
            if last is not None:
                end = self._ranges[last][1]
            shape = (-1, *spec.shape[1:])
            weight = Weight(self.parameters[start:end].view(shape), self.gradients[start:end].view(shape))
            self._weights[first, last] = weight
        return weight

    def begin_gradients(self) -> None:
        """The gradient buffer is new: its padding is cleared, the rest is assigned by the first gradients."""
        self.gradients[self.numel :].zero_()
        for weight in self._weights.values():
            weight.fresh = True

    def settle_gradients(self) -> None:
        """Clears what got no gradient."""
        for weight in self._weights.values():
            weight.clear_if_fresh()


@dataclass(frozen=True)
class BlockWeights:
    """A block's weights: qkv [(heads + 2 kv_heads) head_dim, hidden], gate_up [2 ffn, hidden]."""

    attention_norm: Weight
    qkv: Weight
    qkv_bias: Weight | None
    query_norm: Weight | None
    key_norm: Weight | None
    output: Weight
    ffn_norm: Weight
    gate_up: Weight
    down: Weight


@dataclass(frozen=True)
class HeadWeights:
    """Final norm [hidden] and unembedding [vocab, hidden], which is the embedding itself where they are tied."""

    norm: Weight
    unembedding: Weight


Weights = Weight | BlockWeights | HeadWeights


def bind_weights(segment: Segment, model: ModelConfig, units: dict[str, FlatUnit]) -> Weights:
    """The views that the segment's function takes. `units`: by unit name, at least those in `segment.units`."""
    own = units[segment.name]
    if segment.kind == "embedding":
        return own.weight("model.embed_tokens.weight")
    if segment.kind == "head":
        tied = model.tie_embeddings
        table = units["embed"].weight("model.embed_tokens.weight") if tied else own.weight("lm_head.weight")
        return HeadWeights(own.weight("model.norm.weight"), table)
    prefix = f"model.layers.{segment.layer}."
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return BlockWeights(
        attention_norm=own.weight(prefix + "input_layernorm.weight"),
        qkv=own.weight(attention + "q_proj.weight", attention + "v_proj.weight"),
        qkv_bias=own.weight(attention + "q_proj.bias", attention + "v_proj.bias") if model.qkv_bias else None,
        query_norm=own.weight(attention + "q_norm.weight") if model.qk_norm else None,
        key_norm=own.weight(attention + "k_norm.weight") if model.qk_norm else None,
        output=own.weight(attention + "o_proj.weight"),
        ffn_norm=own.weight(prefix + "post_attention_layernorm.weight"),
        gate_up=own.weight(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
        down=own.weight(mlp + "down_proj.weight"),
    )


def torch_dtype(name: str) -> torch.dtype:
    """The torch format of a `fp64`, `fp32` or `bf16` of the run file."""
    return {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}[name]
