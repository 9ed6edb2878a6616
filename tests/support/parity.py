"""The same few steps twice: with transformers and torch.optim in one process, and with this runtime on any number of ranks."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fourfold.config import ModelConfig, parse_run, resolve_model
from fourfold.config.huggingface import to_config
from fourfold.layout import resolve_layout
from fourfold.model.rope import rope_tables
from fourfold.model.segments import Microbatch
from fourfold.model.weights import torch_dtype
from fourfold.program import lower_step, memory_peak
from fourfold.program.facts import Lowering
from fourfold.program.liveness import ledger
from fourfold.runtime.collectives import Links, make_groups
from fourfold.runtime.executor import Executor
from fourfold.runtime.initialize import fill_range, global_runs, initialize_shard, shard_pieces
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.tracker import MemoryTracker
from fourfold.runtime.units import build_units, share_parameters
from tests.support.double import compute_in_double
from tests.support.modules_ahead import ModulesAhead
from tests.support.reference_names import view_of

DIMENSIONS = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 56, "vocab_size": 99}
STEPS = 3
MIXTRAL = {
    "family": "mixtral",
    "num_experts": 4,
    "top_k": 2,
    "moe_ffn_size": 24,
    "balance_loss": 0.3,
    "z_loss": 0.1,
}
QWEN3_MOE = {
    "family": "qwen3_moe",
    "num_experts": 8,
    "top_k": 3,
    "moe_ffn_size": 16,
    "normalize_top_k": False,
    "qk_norm": True,
}
DEEPSEEK_V3 = {
    "family": "deepseek_v3",
    "num_layers": 3,
    "num_kv_heads": 4,
    "num_experts": 8,
    "top_k": 3,
    "moe_ffn_size": 16,
    "num_shared_experts": 1,
    "first_dense_layers": 1,
    "router": "sigmoid",
    "routed_scaling": 2.5,
    "num_expert_groups": 4,
    "top_groups": 2,
    "query_rank": 12,
    "key_value_rank": 8,
    "rope_head_dim": 4,
    "nope_head_dim": 6,
    "value_head_dim": 8,
    "rope_interleave": True,
    "balance_bias_speed": 0.01,
    "balance_loss": 0.1,
}
MIXTURES = {"mixtral": MIXTRAL, "qwen3_moe": QWEN3_MOE, "deepseek_v3": DEEPSEEK_V3}
LINKS: Links = {}
"""Process groups of a warm worker, kept from case to case."""


def run_table(**sections: dict[str, Any]) -> dict[str, Any]:
    """A run table with small defaults, sections overridden."""
    base: dict[str, Any] = {
        "model": dict(DIMENSIONS),
        "batch": {"global_sequences": 12, "sequence_length": 20, "steps": STEPS},
        "layout": {},
        "precision": {"compute": "fp64"},
        "optimizer": {"lr": 1e-2, "schedule": "constant", "clip_norm": 0.5, "weight_decay": 0.1},
        "run": {"seed": 7},
    }
    for name, values in sections.items():
        base[name] = {**base.get(name, {}), **values}
    return base


@dataclass(frozen=True)
class GlobalBatch:
    """tokens, targets [rows, seq]; document_lengths per row."""

    tokens: torch.Tensor
    targets: torch.Tensor
    document_lengths: list[list[int]]


def global_batch(step: int, rows: int, length: int, vocab: int, masked: bool) -> GlobalBatch:
    """Very uneven numbers of valid targets in different rows, and rows cut into documents of uneven length."""
    rng = np.random.default_rng(1000 + step)
    tokens = torch.from_numpy(rng.integers(0, vocab, (rows, length)))
    targets = torch.from_numpy(rng.integers(0, vocab, (rows, length)))
    documents = []
    for row in range(rows):
        targets[row, rng.integers(1, length) :] = -100
        cuts = sorted({int(c) for c in rng.integers(1, length, 3)}) if masked else []
        documents.append([b - a for a, b in zip([0, *cuts], [*cuts, length], strict=True)])
    targets[0, :] = -100
    targets[0, 0] = 5
    return GlobalBatch(tokens, targets, documents)


def shifted(batch: GlobalBatch, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets `depth` places on; 0 and -100 past the end of a document."""
    tokens, targets = torch.zeros_like(batch.tokens), torch.full_like(batch.targets, -100)
    for row, lengths in enumerate(batch.document_lengths):
        start = 0
        for size in lengths:
            if size > depth:
                tokens[row, start : start + size - depth] = batch.tokens[row, start + depth : start + size]
                targets[row, start : start + size - depth] = batch.targets[row, start + depth : start + size]
            start += size
    return tokens, targets


class RankData:
    """The rows and positions of one rank as the executor's step data."""

    def __init__(self, batch: GlobalBatch, facts: Lowering, rank: int) -> None:
        self._batch, self._layout, self._rank = batch, facts.layout, rank
        self._masked = facts.document_mask
        self._learned = facts.model.positions == "learned"
        dtype = torch_dtype(facts.compute)
        self._tables = rope_tables(facts.model, facts.layout.sequence_length, dtype, torch.device("cpu"))
        self._positions = torch.tensor(self._layout.positions(rank))
        rows = [r for m in range(self._layout.num_microbatches) for r in self._layout.rows(rank, m)]
        self._ahead = [shifted(batch, depth) for depth in range(1, facts.model.mtp_layers + 1)]
        every = [batch.targets, *(targets for _, targets in self._ahead)]
        self.num_targets = tuple(int((targets[rows][:, self._positions] != -100).sum()) for targets in every)

    def load(self, microbatch: int) -> Microbatch:
        rows = list(self._layout.rows(self._rank, microbatch))
        cos, sin = self._tables
        lengths, learned = None, None
        if self._learned:
            learned = self._positions.expand(len(rows), -1).contiguous()
        if self._masked:
            lengths = [self._batch.document_lengths[r] for r in rows]
            positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
            if self._learned:
                learned = positions[:, self._positions].contiguous()
            cos, sin = cos[positions[:, self._positions]], sin[positions[:, self._positions]]
        elif self._layout.cp > 1:
            cos, sin = cos[self._positions], sin[self._positions]
        return Microbatch(
            self._batch.tokens[rows][:, self._positions].contiguous(),
            self._batch.targets[rows][:, self._positions].contiguous(),
            cos.unsqueeze(-2),
            sin.unsqueeze(-2),
            lengths,
            learned,
            *self._look_ahead(rows),
        )

    def _look_ahead(self, rows: list[int]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if not self._ahead:
            return None, None
        kinds = zip(*self._ahead, strict=True)
        tokens, targets = (torch.stack([a[rows][:, self._positions] for a in kind]) for kind in kinds)
        return tokens, targets


@dataclass
class Record:
    """What is compared: per step loss and gradient norm; gradients of the last step and parameters after it, by name."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]
    biases: dict[str, torch.Tensor]


def reference(table: dict[str, Any]) -> Record:
    """transformers' model and torch.optim.AdamW on the whole batch, nothing of the runtime.

    transformers computes norms and routers in fp32 whatever the model's format; torch's own RMSNorm takes the place of its
    norms, and in fp64 the routers' casts are to fp64.
    """
    from transformers.models.deepseek_v3 import modeling_deepseek_v3
    from transformers.models.llama import modeling_llama
    from transformers.models.mistral import modeling_mistral
    from transformers.models.mixtral import modeling_mixtral
    from transformers.models.qwen2 import modeling_qwen2
    from transformers.models.qwen3 import modeling_qwen3
    from transformers.models.qwen3_moe import modeling_qwen3_moe

    modules = (
        modeling_llama,
        modeling_mistral,
        modeling_qwen2,
        modeling_qwen3,
        modeling_mixtral,
        modeling_qwen3_moe,
        modeling_deepseek_v3,
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            for name in [n for n in vars(module) if n.endswith("RMSNorm")]:
                patch.setattr(module, name, _RMSNorm)
        return _reference(table)


class _RMSNorm(torch.nn.RMSNorm):
    """torch's own, with transformers' default."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__(size, eps=eps)


def _reference(table: dict[str, Any]) -> Record:
    config = parse_run(table)
    model_config = resolve_model(config.model)
    facts = Lowering.of(config, model_config, resolve_layout(config, model_config))
    dtype = torch_dtype(facts.compute)
    model = reference_model(model_config, dtype)
    ahead = ModulesAhead(model, model_config, dtype)
    parameters = dict(model.named_parameters())
    specs = {spec.name: spec for segment in facts.segments for spec in segment.parameters}
    for name, spec in specs.items():
        flat = torch.empty(spec.numel, dtype=dtype)
        fill_range(spec, 0, spec.numel, config.run.seed, flat)
        place = view_of(name, parameters).data
        place.copy_(flat.view(place.shape))
    decayed = [p for p in parameters.values() if p.dim() > 1]
    plain = [p for p in parameters.values() if p.dim() == 1]
    section = config.optimizer
    groups = [{"params": decayed, "weight_decay": section.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=section.lr, betas=section.betas, eps=section.eps, foreach=False)
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
        ahead.begin(batch)
        for row in range(rows):
            start = 0
            for size in batch.document_lengths[row]:  # a document alone is attention that never leaves it
                span = slice(start, start + size)
                logits = model(batch.tokens[row : row + 1, span]).logits[0].to(dtype)
                loss = loss + F.cross_entropy(logits, batch.targets[row, span], ignore_index=-100, reduction="sum")
                ahead.add(row, span)
                start += size
            auxiliary = auxiliary + routing.sequence_loss(rows, length)
        (loss / total + model_config.mtp_loss * ahead.loss + auxiliary).backward()
        record.losses.append(loss.item() / total + torch.as_tensor(ahead.loss).item())
        gradients = {name: p.grad for name, p in parameters.items()}
        record.gradients = {name: view_of(name, gradients).clone() for name in specs}
        limit = section.clip_norm if section.clip_norm is not None else float("inf")
        record.norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), limit).item())
        optimizer.step()
        routing.balance()
    record.parameters = {name: view_of(name, parameters).data.clone() for name in specs}
    record.biases = routing.biases()
    return record


def reference_model(model: ModelConfig, dtype: torch.dtype) -> Any:
    """transformers' model of this shape, not yet filled."""
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = to_config(model)
    config = AutoConfig.for_model(
        raw.pop("model_type"), **{k: v for k, v in raw.items() if k not in ("torch_dtype", "dtype")}
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", experts_implementation="eager").to(
        dtype
    )


def in_double(forward: Callable[..., Any], module: Any) -> Callable[..., Any]:
    """A function of transformers with its casts to fp32 turned into casts to fp64."""

    def run(*args: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            compute_in_double(patch, module)
            return forward(*args)

    return run


class Routing:
    """What transformers' routers chose, with the auxiliary losses and the balancing bias by their formulas."""

    def __init__(self, model: Any, config: ModelConfig) -> None:
        self._config = config
        self._gates = {n: m for n, m in model.named_modules() if n.endswith(".mlp.gate")}
        self._seen: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {name: [] for name in self._gates}
        self._counts = {name: torch.zeros(config.num_experts) for name in self._gates}
        for name, gate in self._gates.items():
            if gate.weight.dtype == torch.float64:
                gate.forward = in_double(gate.forward, sys.modules[type(gate).__module__])
            gate.register_forward_hook(lambda m, i, out, name=name: self._seen[name].append((out[0], out[2])))

    def sequence_loss(self, sequences: int, length: int) -> Any:
        """Of the sequence whose parts were run since the last call."""
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
            if self._config.router == "sigmoid"
        }


def prepare_rank(rank: int, table: dict[str, Any], ranks: int) -> tuple[Any, Lowering]:
    """The run and its facts as this rank sees them."""
    config = parse_run(table)
    model = resolve_model(config.model)
    layout = resolve_layout(config, model, ranks)
    facts = Lowering.of(config, model, layout)
    return config, facts.at(facts.layout.coordinates(rank)["pp"])


def run_rank(rank: int, table: dict[str, Any], ranks: int, track_memory: bool = False) -> dict[str, Any]:
    """One rank's part of the same steps on the runtime; gradients and parameters as shards of its part."""
    config, facts = prepare_rank(rank, table, ranks)
    program = lower_step(facts)
    groups = make_groups(facts.layout, rank, groups_of(facts), 60.0, LINKS)
    device = torch.device("cpu")
    coordinates = facts.layout.coordinates(rank)
    units = build_units(
        facts,
        rank,
        config.optimizer,
        device,
        lambda flat, i, out: initialize_shard(flat, i, config.run.seed, coordinates, out),
    )
    share_parameters(facts, units, groups)
    for group in groups.values():
        group.sent_bytes = 0
    executor = Executor(facts, units, groups, config.optimizer, device, rank)
    gradients: dict[str, Any] = {}

    def observe(counter: int, step: Any) -> None:
        if step.op.value == "C":
            for name, unit in units.items():
                gradients[name] = unit.grad_shard.clone().numpy()

    losses, norms, peak = [], [], 0
    for number in range(config.batch.steps or STEPS):
        batch = global_batch(
            number,
            config.batch.global_sequences,
            config.batch.sequence_length,
            facts.model.vocab_size,
            facts.document_mask,
        )
        data = RankData(batch, facts, rank)
        if track_memory:
            peak = measure_step(executor, program, data, config.optimizer.lr, units)
            continue
        result = executor.run(program, data, config.optimizer.lr, observe)
        losses.append(result.loss + (result.mtp_loss or 0.0))
        norms.append(result.grad_norm)
    return {
        "losses": losses,
        "norms": norms,
        "gradients": gradients,
        "parameters": {name: unit.master.clone().numpy() for name, unit in units.items()},
        "biases": {name: bias.clone().numpy() for name, bias in executor.routers.biases.items()},
        "shards": {name: unit.index for name, unit in units.items()},
        "sent": {axes: group.sent_bytes for axes, group in groups.items() if group.sent_bytes},
        "declared": {axes: size * (config.batch.steps or STEPS) for axes, size in ledger(program).items() if size},
        "peak": peak,
        "predicted_peak": memory_peak(program).bytes,
        "peak_at": program.instructions[memory_peak(program).index].short,
    }


def measure_step(executor: Executor, program: Any, data: RankData, lr: float, units: Any) -> int:
    """Peak live tensor bytes of one step, everything that outlives it included."""
    tracker = MemoryTracker()
    for unit in units.values():
        for tensor in (unit.params, unit.grad, unit.grad_shard, unit.reduce):
            tracker.watch(tensor, resizable=True)
        for tensor in (unit.shard, unit.master, unit.optimizer.exp_avg, unit.optimizer.exp_avg_sq):
            tracker.watch(tensor)
    for table in data._tables:
        tracker.watch(table)
    with tracker:
        executor.run(program, data, lr)
    return tracker.peak_bytes


def assemble(table: dict[str, Any], results: list[dict[str, Any]], key: str, ranks: int) -> dict[str, torch.Tensor]:
    """Full tensors by name from the shards of every rank. Where several ranks have an element, they must agree on it."""
    full: dict[str, torch.Tensor] = {}
    for rank, result in enumerate(results):
        _, facts = prepare_rank(rank, table, ranks)
        coordinates = facts.layout.coordinates(rank)
        for unit, values in result[key].items():
            held = torch.from_numpy(values)
            for local, start, end, part in shard_pieces(facts.flats[unit], result["shards"][unit], held):
                empty = torch.full((local.spec.numel,), float("nan"), dtype=part.dtype)
                whole = full.setdefault(local.name, empty)
                for first, last, low, high in global_runs(local, coordinates, start, end):
                    known = ~whole[first:last].isnan()
                    same = whole[first:last][known] == part[low:high][known]
                    assert same.all(), f"ranks differ in {key} of {local.name} (rank {rank})"
                    whole[first:last] = part[low:high]
    _, facts = prepare_rank(0, table, ranks)
    shapes = {spec.name: spec.shape for segment in facts.segments for spec in segment.parameters}
    for name, whole in full.items():
        assert not whole.isnan().any(), f"nobody has all of {key} of {name}"
    return {name: whole.view(shapes[name]) for name, whole in full.items()}


def worst(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> tuple[float, str]:
    """The largest relative error of any tensor (norm of the difference over norm), and its name. What is next to nothing beside
    the largest (the gradient of GPT-2's key biases is rounding alone) is held to a millionth of that."""
    assert set(actual) == set(expected)
    errors = {}
    least = 1e-6 * max(tensor.norm().item() for tensor in expected.values())
    for name, tensor in expected.items():
        scale = max(tensor.norm().item(), least)
        errors[name] = (actual[name].view(tensor.shape) - tensor).norm().item() / scale
    name = max(errors, key=errors.__getitem__)
    return errors[name], name
