"""A run of a few steps with transformers and torch.optim, in one process and with nothing of the runtime."""

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fourfold.config import ModelConfig, parse_run
from fourfold.huggingface import resolve_model, to_config
from fourfold.huggingface.families import FAMILIES, family_of
from fourfold.layout import resolve_layout
from fourfold.model.torch_operations import torch_dtype
from fourfold.program import resolve_step
from fourfold.runtime.initialize import fill_range
from tests.support.double import compute_in_double
from tests.support.modules_ahead import ModulesAhead
from tests.support.mup_reference import mup_groups
from tests.support.parity_runs import STEPS, global_batch
from tests.support.reference_names import fused_rows, seen_as_ours, view_of
from tests.support.reference_optimizers import REFERENCES


@dataclass
class Record:
    """The values to compare: loss and gradient norm of each step; gradients of the last step and parameters after it, by name."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]
    biases: dict[str, torch.Tensor]


def reference(table: dict[str, Any]) -> Record:
    """transformers' model and the reference optimizer on the full batch, nothing of the runtime.

    transformers computes norms and routers in fp32 whatever the model's format; torch's own RMSNorm takes the place of its
    norms, and in fp64 the routers' casts are to fp64.
    """
    family = transformers_config(resolve_model(parse_run(table).model))["model_type"]
    with pytest.MonkeyPatch.context() as patch:
        for modeling, name, exact in exact_parts(family):
            patch.setattr(modeling, name, exact)
        return _reference(table)


def exact_parts(family: str) -> Iterator[tuple[Any, str, Any]]:
    """RMS norms of transformers' code of a family, (module, name), and torch's own in their place; and its plain attention, with a
    softmax in fp64. Llama 4 has norms without weights, and its own rotation, too."""
    modeling = modeling_of(family)
    norm = _ZeroCenteredRMSNorm if FAMILIES[family].fixed.get("zero_centered_norm") else _RMSNorm
    for name in [each for each in vars(modeling) if each.endswith("RMSNorm")]:
        yield modeling, name, norm
    if hasattr(modeling, "eager_attention_forward"):
        yield modeling, "eager_attention_forward", in_double(modeling.eager_attention_forward, modeling)
    if family == "llama4_text":
        yield modeling, "Llama4TextL2Norm", _PlainNorm
        yield modeling, "apply_rotary_emb", in_double(modeling.apply_rotary_emb, modeling)
        yield modeling, "torch", _PolarByCosine("torch")


def modeling_of(family: str) -> Any:
    """transformers' code of a family."""
    folder = family.removesuffix("_text")
    return importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")


class _RMSNorm(torch.nn.RMSNorm):
    """torch's own, with transformers' default."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__(dim, eps=eps)


class _PolarByCosine(ModuleType):
    """torch, whose `polar` has the last bit of its own `cos` and `sin`."""

    @staticmethod
    def polar(length: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
        return torch.complex(length * angle.cos(), length * angle.sin())

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class _PlainNorm(torch.nn.Module):
    """Without a weight."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], None, self.eps)


class _ZeroCenteredRMSNorm(_RMSNorm):
    """With a gain of 1 + weight, which is zero at the start."""

    def reset_parameters(self) -> None:
        torch.nn.init.zeros_(self.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.normalized_shape, 1 + self.weight, self.eps)


def _reference(table: dict[str, Any]) -> Record:
    config = parse_run(table)
    model_config = resolve_model(config.model)
    spec = resolve_step(config, model_config, resolve_layout(config, model_config))
    dtype = torch_dtype(spec.compute)
    model = reference_model(_of_rows(model_config, config.batch.sequence_length), dtype)
    for module in model.modules():  # recurrences are computed in fp32 there, whatever their format
        if type(module).__name__.endswith(("GatedDeltaNet", "DeltaAttention")) and dtype == torch.float64:
            module.forward = in_double(module.forward, sys.modules[type(module).__module__])
    ahead = ModulesAhead(model, model_config, dtype)
    parameters = dict(model.named_parameters())
    parts = {part.name: part for segment in spec.segments for part in segment.parameters}
    for name, part in parts.items():
        flat = torch.empty(part.numel, dtype=dtype)
        fill_range(part, 0, part.numel, config.run.seed, flat)
        place = view_of(name, parameters).data
        place.copy_(flat.view(place.shape))
    for name, parameter in parameters.items():  # for an optimizer that takes matrices one by one
        parameter.is_table = name.endswith(("embed_tokens.weight", "lm_head.weight", "wte.weight", "wpe.weight"))
        if (view := seen_as_ours(name, parameters)) is not None:
            parameter.view_as_ours = view
        if name.endswith("kv_b_proj.weight"):
            parameter.head_rows = (model_config.nope_head_dim, model_config.value_head_dim)
        elif name.endswith("q_b_proj.weight"):
            parameter.head_rows = (model_config.head_dim,)
        elif (fused := fused_rows(name, model_config.family, parts)) and parameter.dim() == 2:
            parameter.fused_rows = fused
    undecayed = {name: p.dim() == 1 or name.endswith(("bias", "A_log")) for name, p in parameters.items()}
    decayed = [p for name, p in parameters.items() if not undecayed[name]]
    plain = [p for name, p in parameters.items() if undecayed[name]]
    section = config.optimizer
    groups = [{"params": decayed, "weight_decay": section.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    if model_config.mup_base_hidden_size is not None:
        groups = mup_groups(parameters, model_config, section)
    optimizer = REFERENCES[section.name].make(groups, section)
    record = Record([], [], {}, {}, {})
    masked = config.data.document_mask
    rows, length = config.batch.global_sequences, config.batch.sequence_length
    routing = Routing(model, model_config)
    for step in range(config.batch.steps or STEPS):
        batch = global_batch(step, rows, length, model_config.vocab_size, masked)
        optimizer.zero_grad()
        total = int((batch.targets != -100).sum())
        loss = torch.zeros((), dtype=dtype)
        auxiliary = torch.zeros((), dtype=dtype)
        squares = torch.zeros((), dtype=dtype)
        ahead.begin(batch)
        for row in range(rows):
            start = 0
            for size in batch.document_lengths[row]:  # a document alone is attention that never leaves it
                span = slice(start, start + size)
                logits = model(batch.tokens[row : row + 1, span]).logits[0].to(dtype)
                targets = batch.targets[row, span]
                loss = loss + F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum")
                squares = squares + logits.logsumexp(-1)[targets >= 0].square().sum()
                ahead.add(row, span)
                start += size
            auxiliary = auxiliary + routing.sequence_loss(rows, length)
        z_loss = model_config.logits_z_loss * squares / total
        (loss / total + z_loss + model_config.mtp_loss * ahead.loss + auxiliary).backward()
        record.losses.append(loss.item() / total + torch.as_tensor(ahead.loss).item() + z_loss.item())
        gradients = {name: p.grad for name, p in parameters.items()}
        record.gradients = {name: view_of(name, gradients).clone() for name in parts}
        limit = section.clip_norm if section.clip_norm is not None else float("inf")
        record.norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), limit).item())
        optimizer.step()
        routing.balance()
    record.parameters = {name: view_of(name, parameters).data.clone() for name in parts}
    record.biases = routing.biases()
    return record


def _of_rows(model: ModelConfig, length: int) -> ModelConfig:
    """The model with the frequencies of rows of this length, whatever it is given. transformers is given a document at a time, and
    takes LongRoPE's factors by its length; a run takes them by that of its rows."""
    scaling = model.longrope_scaling
    if scaling is None or length <= scaling.original_max_position:
        return model
    return replace(model, longrope_scaling=scaling.model_copy(update={"short_factor": scaling.long_factor}))


def transformers_config(model: ModelConfig) -> dict[str, Any]:
    """The config.json of a model; without MTP modules, which `ModulesAhead` adds to any family."""
    without = replace(model, mtp_layers=0)
    return to_config(replace(without, family=family_of(without)))


def reference_model(model: ModelConfig, dtype: torch.dtype) -> Any:
    """transformers' model of this shape, not yet filled."""
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = transformers_config(model)
    config = AutoConfig.for_model(
        raw.pop("model_type"), **{k: v for k, v in raw.items() if k not in ("torch_dtype", "dtype")}
    )
    attention = attention_of(model.family)
    theirs = AutoModelForCausalLM.from_config(config, attn_implementation=attention, experts_implementation="eager")
    theirs = theirs.to(dtype)
    for module in theirs.modules():  # a number that was rounded to fp32 when the model was made
        if hasattr(module, "scalar_embed_scale"):
            module.embed_scale = torch.tensor(module.scalar_embed_scale, dtype=dtype)
    return theirs


def attention_of(family: str) -> str:
    """The attention of transformers that computes all that a family's does: torch's caps no scores and has no sinks."""
    return "eager" if family in ("gemma2", "gpt_oss") else "sdpa"


def in_double(forward: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """A function of transformers with its casts to fp32 turned into casts to fp64."""

    def run(*args: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            compute_in_double(patch, module)
            return forward(*args, **options)

    return run


class Routing:
    """The choices of transformers' routers, with the auxiliary losses and the balancing bias by their formulas."""

    def __init__(self, model: Any, config: ModelConfig) -> None:
        self._config = config
        self._gates = {n: m for n, m in model.named_modules() if n.endswith((".mlp.gate", ".router"))}
        self._seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {name: [] for name in self._gates}
        self._counts = {name: torch.zeros(config.num_experts) for name in self._gates}
        for name, gate in self._gates.items():
            if gate.weight.dtype == torch.float64:
                gate.forward = in_double(gate.forward, sys.modules[type(gate).__module__])
            gate.register_forward_hook(lambda m, i, out, name=name: self._seen[name].append(self._choice(out)))

    def _choice(self, out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and experts of what a router gives: these and weights, or all experts' weights and logits (Llama 4)."""
        return (out[0], out[2]) if len(out) == 3 else (out[1], out[1].topk(self._config.top_k).indices)

    def sequence_loss(self, sequences: int, length: int) -> Any:
        """The auxiliary losses of the sequence whose parts were run since the last call."""
        config, loss = self._config, 0.0
        for name, parts in self._seen.items():
            logits, experts = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
            parts.clear()
            counts = torch.bincount(experts.flatten(), minlength=config.num_experts)
            self._counts[name] += counts
            scores = logits.softmax(-1) if config.router == "softmax" else logits.sigmoid()
            share = (scores / scores.sum(-1, keepdim=True)).mean(0)
            frequency = counts.to(logits.dtype) * (config.num_experts / (config.top_k * length))
            loss = loss + config.balance_loss * (frequency * share).sum() / sequences
            loss = loss + config.z_loss * logits.logsumexp(-1).square().sum() / (sequences * length)
        return loss

    def balance(self) -> None:
        for name, gate in self._gates.items():
            counts = self._counts[name]
            if self._config.balance_bias_speed:
                gate.e_score_correction_bias += self._config.balance_bias_speed * torch.sign(counts.mean() - counts)
            counts.zero_()

    def biases(self) -> dict[str, torch.Tensor]:
        last = self._config.num_layers
        layers = {name: int(name.split(".")[2]) for name in self._gates}
        return {
            (
                f"b{layers[name]}" if layers[name] < last else f"mtp{layers[name] - last}"
            ): gate.e_score_correction_bias.clone()
            for name, gate in self._gates.items()
            if hasattr(gate, "e_score_correction_bias")
        }
