"""The model of `examples/own_block` a second time: nn.Modules of plain PyTorch, trained in one process with torch.optim."""

import functools
import json
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.config import ModelConfig, parse_run
from fourfold.huggingface import resolve_model
from fourfold.model.spec import build_segments
from fourfold.model.torch_operations import torch_dtype
from fourfold.runtime.initialize import fill_range
from tests.support.parity_check import check_bytes, check_values
from tests.support.parity_ranks import prepare_rank, run_rank
from tests.support.parity_reference import Record
from tests.support.parity_runs import STEPS, global_batch, run_table
from tests.support.ranks import run_on_ranks

BLOCK = "python:examples.own_block.parallel_block:BLOCK"
THEIRS = {
    "model.embed_tokens.weight": "embedding.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "head.weight",
}


class ParallelBlock(nn.Module):
    """Attention and SwiGLU side by side behind one norm, scaled channel by channel."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = model.num_heads, model.num_kv_heads, model.head_dim
        self.sizes = [self.heads * self.width, *[self.kv_heads * self.width] * 2, *[model.ffn_size] * 2]
        hidden = model.hidden_size
        self.norm = nn.RMSNorm(hidden, eps=model.norm_eps)
        self.input = nn.Linear(hidden, sum(self.sizes), bias=False)
        self.output = nn.Linear(self.sizes[0] + model.ffn_size, hidden, bias=False)
        self.scale = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        q, k, v, gate, up = self.input(self.norm(x)).split(self.sizes, dim=-1)
        queries = self._turned(q.view(len(x), self.heads, self.width), turns)
        keys = self._turned(k.view(len(x), self.kv_heads, self.width), turns).repeat_interleave(
            self.heads // self.kv_heads, dim=1
        )
        values = v.view(len(x), self.kv_heads, self.width).repeat_interleave(self.heads // self.kv_heads, dim=1)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / self.width**0.5
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", weights, values).flatten(1)
        return x + self.scale * self.output(torch.cat([attended, gate * torch.sigmoid(gate) * up], dim=-1))

    def _turned(self, x: Tensor, turns: Tensor) -> Tensor:
        pairs = torch.complex(*x.chunk(2, dim=-1))
        turned = pairs * turns.unsqueeze(1)
        return torch.cat([turned.real, turned.imag], dim=-1)


class PlainParallel(nn.Module):
    """Embedding, blocks, norm, head: tokens [seq] of one document -> logits [seq, vocab]."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.model = model
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size)
        self.blocks = nn.ModuleList(ParallelBlock(model) for _ in range(model.num_layers))
        self.norm = nn.RMSNorm(model.hidden_size, eps=model.norm_eps)
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        width = self.model.head_dim
        speeds = 1.0 / self.model.rope_theta ** (torch.arange(0, width, 2).float() / width)
        angles = torch.outer(torch.arange(len(tokens)).float(), speeds)
        turns = torch.complex(*(table.to(self.head.weight.dtype) for table in (angles.cos(), angles.sin())))
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, turns)
        return self.head(self.norm(x))

    def ours(self) -> dict[str, Tensor]:
        """Parameters by fourfold's names."""
        named = dict(self.named_parameters())
        segments = build_segments(self.model)
        names = [each.name for segment in segments for each in segment.parameters]
        return {name: named[THEIRS.get(name, name.replace("model.layers.", "blocks."))] for name in names}


@functools.cache
def _record(key: str) -> Record:
    table = json.loads(key)
    config = parse_run(table)
    model = resolve_model(config.model)
    dtype, section = torch_dtype(config.precision.compute), config.optimizer
    plain = PlainParallel(model).to(dtype)
    ours = plain.ours()
    for part in (part for segment in build_segments(model) for part in segment.parameters):
        flat = torch.empty(part.numel, dtype=dtype)
        fill_range(part, 0, part.numel, config.run.seed, flat)
        ours[part.name].data.copy_(flat.view(part.shape))
    groups = [
        {"params": [p for p in ours.values() if p.dim() > 1], "weight_decay": section.weight_decay},
        {"params": [p for p in ours.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=section.lr, betas=section.betas, eps=section.eps)  # type: ignore[attr-defined]
    record = Record([], [], {}, {}, {})
    rows, length = config.batch.global_sequences, config.batch.sequence_length
    for step in range(config.batch.steps or STEPS):
        batch = global_batch(step, rows, length, model.vocab_size, config.data.document_mask)
        loss = torch.zeros((), dtype=dtype)
        for row, lengths in enumerate(batch.document_lengths):
            spans = zip(batch.tokens[row].split(lengths), batch.targets[row].split(lengths), strict=True)
            for tokens, targets in spans:
                loss = loss + F.cross_entropy(plain(tokens), targets, ignore_index=-100, reduction="sum")
        loss = loss / (batch.targets != -100).sum()
        optimizer.zero_grad()
        loss.backward()
        record.losses.append(loss.item())
        record.gradients = {name: p.grad.clone() for name, p in ours.items() if p.grad is not None}
        record.norms.append(nn.utils.clip_grad_norm_(plain.parameters(), section.clip_norm or float("inf")).item())
        optimizer.step()
    record.parameters = {name: p.data.clone() for name, p in ours.items()}
    return record


def check_own(ranks: int, tolerance: float = 1e-9, **sections: dict[str, Any]) -> None:
    """Raises AssertionError where a run of the example's block differs from plain PyTorch, or its traffic from what is declared."""
    sections = {"batch": {"sequence_length": 16, "steps": 2}, **sections}
    table = run_table(**{**sections, "model": {"block": BLOCK, "num_layers": 4, **sections.get("model", {})}})
    prepare_rank(0, table, ranks)
    results = run_on_ranks(ranks, run_rank, table=table, ranks=ranks)
    check_bytes(table, results)
    expected = _record(json.dumps({**table, "layout": {}}, sort_keys=True))
    check_values(table, results, tolerance, expected)
