"""The same few steps twice: with transformers and torch.optim in one process, and with this runtime on any number of ranks."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from fourfold.config import parse_run, resolve_model
from fourfold.config.huggingface import to_config
from fourfold.layout import resolve_layout
from fourfold.model.rope import rope_tables
from fourfold.model.segments import Microbatch
from fourfold.model.weights import torch_dtype
from fourfold.program import lower_step, memory_peak
from fourfold.program.buffers import Lowering
from fourfold.program.liveness import ledger
from fourfold.runtime.collectives import Links, make_groups
from fourfold.runtime.executor import Executor
from fourfold.runtime.initialize import fill_range, global_runs, initialize_shard, shard_pieces
from fourfold.runtime.parallel import groups_of
from fourfold.runtime.tracker import MemoryTracker
from fourfold.runtime.units import build_units, share_parameters

DIMENSIONS = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 56, "vocab_size": 99}
STEPS = 3
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


class RankData:
    """The rows and positions of one rank as the executor's step data."""

    def __init__(self, batch: GlobalBatch, facts: Lowering, rank: int) -> None:
        self._batch, self._layout, self._rank = batch, facts.layout, rank
        self._masked = facts.document_mask
        dtype = torch_dtype(facts.compute)
        self._tables = rope_tables(facts.model, facts.layout.sequence_length, dtype, torch.device("cpu"))
        self._positions = torch.tensor(self._layout.positions(rank))
        rows = [r for m in range(self._layout.num_microbatches) for r in self._layout.rows(rank, m)]
        self.num_targets = int((batch.targets[rows][:, self._positions] != -100).sum())

    def load(self, microbatch: int) -> Microbatch:
        rows = list(self._layout.rows(self._rank, microbatch))
        cos, sin = self._tables
        lengths = None
        if self._masked:
            lengths = [self._batch.document_lengths[r] for r in rows]
            positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
            cos, sin = cos[positions[:, self._positions]], sin[positions[:, self._positions]]
        elif self._layout.cp > 1:
            cos, sin = cos[self._positions], sin[self._positions]
        return Microbatch(
            self._batch.tokens[rows][:, self._positions].contiguous(),
            self._batch.targets[rows][:, self._positions].contiguous(),
            cos.unsqueeze(-2),
            sin.unsqueeze(-2),
            lengths,
        )


@dataclass
class Record:
    """What is compared: per step loss and gradient norm; gradients of the last step and parameters after it, by name."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]


def reference(table: dict[str, Any]) -> Record:
    """transformers' model and torch.optim.AdamW on the whole batch, nothing of the runtime.

    transformers computes RMSNorm in fp32 whatever the model's format; torch's own RMSNorm takes its place.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.llama import modeling_llama
    from transformers.models.qwen2 import modeling_qwen2
    from transformers.models.qwen3 import modeling_qwen3

    modeling_llama.LlamaRMSNorm = torch.nn.RMSNorm
    modeling_qwen2.Qwen2RMSNorm = torch.nn.RMSNorm
    modeling_qwen3.Qwen3RMSNorm = torch.nn.RMSNorm
    config = parse_run(table)
    model_config = resolve_model(config.model)
    facts = Lowering.of(config, model_config, resolve_layout(config, model_config))
    dtype = torch_dtype(facts.compute)
    raw = to_config(model_config)
    hf_config = AutoConfig.for_model(
        raw.pop("model_type"), **{k: v for k, v in raw.items() if k not in ("torch_dtype", "dtype")}
    )
    model = AutoModelForCausalLM.from_config(hf_config, attn_implementation="sdpa").to(dtype)
    parameters = dict(model.named_parameters())
    decayed, plain = [], []
    for segment in facts.segments:
        for spec in segment.parameters:
            flat = torch.empty(spec.numel, dtype=dtype)
            fill_range(spec, 0, spec.numel, config.run.seed, flat)
            parameters[spec.name].data.copy_(flat.view(spec.shape))
            (decayed if spec.weight_decay else plain).append(parameters[spec.name])
    section = config.optimizer
    groups = [{"params": decayed, "weight_decay": section.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=section.lr, betas=section.betas, eps=section.eps, foreach=False)
    record = Record([], [], {}, {})
    masked = config.data.document_mask
    for step in range(STEPS):
        batch = global_batch(
            step, config.batch.global_sequences, config.batch.sequence_length, model_config.vocab_size, masked
        )
        optimizer.zero_grad()
        total = int((batch.targets != -100).sum())
        loss = torch.zeros((), dtype=dtype)
        for row in range(batch.tokens.shape[0]):
            start = 0
            for length in batch.document_lengths[row]:  # a document alone is attention that never leaves it
                span = slice(start, start + length)
                logits = model(batch.tokens[row : row + 1, span]).logits[0].to(dtype)
                loss = loss + F.cross_entropy(logits, batch.targets[row, span], ignore_index=-100, reduction="sum")
                start += length
        (loss / total).backward()
        record.losses.append(loss.item() / total)
        record.gradients = {name: p.grad.clone() for name, p in parameters.items()}
        limit = section.clip_norm if section.clip_norm is not None else float("inf")
        record.norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), limit).item())
        optimizer.step()
    record.parameters = {name: p.data.clone() for name, p in parameters.items()}
    return record


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
    groups = make_groups(facts.layout, rank, groups_of([program], facts), 60.0, LINKS)
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
    for number in range(STEPS):
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
        losses.append(result.loss)
        norms.append(result.grad_norm)
    return {
        "losses": losses,
        "norms": norms,
        "gradients": gradients,
        "parameters": {name: unit.master.clone().numpy() for name, unit in units.items()},
        "shards": {name: unit.index for name, unit in units.items()},
        "sent": {axes: group.sent_bytes for axes, group in groups.items() if group.sent_bytes},
        "declared": {axes: size * STEPS for axes, size in ledger(program).items() if size},
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
    """The largest relative error of any tensor (norm of the difference over norm), and its name."""
    assert set(actual) == set(expected)
    errors = {}
    for name, tensor in expected.items():
        scale = max(tensor.norm().item(), 1e-30)
        errors[name] = (actual[name] - tensor).norm().item() / scale
    name = max(errors, key=errors.__getitem__)
    return errors[name], name
