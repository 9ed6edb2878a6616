"""A full model run by its segments' functions alone, one microbatch, without program, runtime or ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourfold.config import ModelConfig
from fourfold.huggingface import to_config
from fourfold.model import torch_operations
from fourfold.model.block import block_backward, block_forward
from fourfold.model.embedding import embedding_backward, embedding_forward
from fourfold.model.environment import Environment, Microbatch, Saved
from fourfold.model.head import head_loss, head_loss_backward
from fourfold.model.layer import Layer
from fourfold.model.layers import ropes_of
from fourfold.model.rope_tables import rope_tables
from fourfold.model.spec import bind_weights, build_segments, segments_of
from fourfold.model.weights import FlatUnit
from tests.support.differentiable import rebuilding
from tests.support.reference_names import view_of


class PlainModel:
    """Random weights of a format in flat buffers; gradients by parameter name after `loss_and_gradients`."""

    def __init__(
        self,
        model: ModelConfig,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        layers: Sequence[Layer] | None = None,
    ) -> None:
        """`layers`: in place of the model's own."""
        self.model, self.dtype, self.env = model, dtype, Environment(torch_operations, model)
        self.segments = build_segments(model) if layers is None else segments_of(model, layers)
        mixers = [segment.layer_kind.mixer for segment in self.segments if segment.layer_kind is not None]
        self.ropes = dict.fromkeys(each for mixer in mixers for each in mixer.positional) or ropes_of(model)
        rng = np.random.default_rng(seed)
        self.units = {}
        for segment in self.segments:
            for unit in segment.own:
                values = torch.from_numpy(rng.normal(0, 0.2, unit.numel)).to(dtype)
                self.units[unit.name] = FlatUnit(unit.parameters, values, torch.zeros(unit.numel, dtype=dtype))
        for segment in self.segments:  # norms near one, everything else near zero
            for unit in segment.own:
                for spec in unit.parameters:
                    if spec.init_std is None:
                        self.units[unit.name].weight(spec.name).data.add_(1.0)
        self.weights: dict[str, Any] = {s.name: bind_weights(s, self.units) for s in self.segments}

    def parameters(self) -> dict[str, Tensor]:
        return self._named("data")

    def gradients(self) -> dict[str, Tensor]:
        return self._named("grad")

    def _named(self, field: str) -> dict[str, Tensor]:
        result = {}
        for segment in self.segments:
            for unit in segment.own:
                for spec in unit.parameters:
                    weight = self.units[unit.name].weight(spec.name)
                    result[spec.name] = getattr(weight, field).view(spec.shape)
        return result

    def zero_gradients(self) -> None:
        for unit in self.units.values():
            unit.gradients.zero_()

    def microbatch(
        self, tokens: Tensor, targets: Tensor, document_lengths: list[list[int]] | None = None, offset: int = 0
    ) -> Microbatch:
        length = tokens.shape[1] + offset
        tables = {rope: rope_tables(rope, length, self.dtype, torch.device("cpu")) for rope in self.ropes}
        positions = torch.arange(offset, length).expand_as(tokens).contiguous()
        if document_lengths is not None:
            positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in document_lengths])
        rows = positions if document_lengths is not None else slice(offset, None)
        rope = {each: (cos[rows].unsqueeze(-2), sin[rows].unsqueeze(-2)) for each, (cos, sin) in tables.items()}
        in_order = any(not s.layer_kind.mixer.attends for s in self.segments if s.layer_kind is not None)
        kept = in_order and document_lengths is not None
        learned = positions if kept or self.model.positions == "learned" else None
        return Microbatch(tokens, targets, rope, document_lengths, learned)

    def hidden(self, batch: Microbatch) -> Tensor:
        """The head's input, [tokens, hidden]."""
        embedding: Any = self.weights["embed"]
        x = embedding_forward(self.env, batch.tokens, embedding, batch.positions)
        for segment in self.segments[1:-1]:
            x = block_forward(segment, self.env, x, self.weights[segment.name], batch, Saved(keeps=False))
        return x

    def loss(self, batch: Microbatch) -> Tensor:
        return head_loss(self.env, self.hidden(batch), batch.targets, self.weights["head"])

    def loss_and_gradients(self, batch: Microbatch, num_targets: int, keep: bool = True) -> Tensor:
        """The sum of the token losses; the gradients of (sum / num_targets) are added to the flat gradients."""
        env, embedding, head = self.env, self.weights["embed"], self.weights["head"]
        x = embedding_forward(env, batch.tokens, embedding, batch.positions)
        behind = []
        for segment in self.segments[1:-1]:
            saved = rebuilding(keep)
            out = block_forward(segment, env, x, self.weights[segment.name], batch, saved)
            behind.append((segment, x, saved))
            x = out
        divisor = torch.tensor(num_targets)
        loss, grad = head_loss_backward(env, x, batch.targets, head, divisor)
        for segment, x, saved in reversed(behind):
            grad = block_backward(segment, env, grad, x, self.weights[segment.name], batch, saved)
        embedding_backward(env, batch.tokens, grad, embedding, batch.positions)
        return loss


def random_tokens(model: ModelConfig, rows: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """tokens and targets [rows, length]; a third of the targets carries no loss."""
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(rng.integers(0, model.vocab_size, (rows, length)))
    targets = torch.from_numpy(rng.integers(0, model.vocab_size, (rows, length)))
    targets[torch.from_numpy(rng.random((rows, length)) < 0.33)] = -100
    targets[0, 0] = 1
    return tokens, targets


def transformers_model(model: ModelConfig, parameters: dict[str, Tensor], attention: str = "sdpa") -> Any:
    """transformers' own model with these weights, in their format, its norms not rounded to fp32 on the way."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.llama import modeling_llama
    from transformers.models.mistral import modeling_mistral
    from transformers.models.qwen2 import modeling_qwen2
    from transformers.models.qwen3 import modeling_qwen3

    modeling_llama.LlamaRMSNorm = torch.nn.RMSNorm
    modeling_mistral.MistralRMSNorm = torch.nn.RMSNorm
    modeling_qwen2.Qwen2RMSNorm = torch.nn.RMSNorm
    modeling_qwen3.Qwen3RMSNorm = torch.nn.RMSNorm
    raw = to_config(model)
    config = AutoConfig.for_model(raw.pop("model_type"), **{k: v for k, v in raw.items() if "dtype" not in k})
    built = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    built = built.to(next(iter(parameters.values())).dtype)
    theirs = dict(built.named_parameters())
    assert sum(p.numel() for p in theirs.values()) == sum(p.numel() for p in parameters.values())
    for name, value in parameters.items():
        view_of(name, theirs).data.copy_(value)
    return built
