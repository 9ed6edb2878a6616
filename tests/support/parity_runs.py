"""The runs that are done twice: tables of small models, their batches, and the rows and positions that one rank sees."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fourfold.model.environment import Microbatch
from fourfold.model.rope_tables import rope_tables
from fourfold.model.torch_operations import torch_dtype
from fourfold.program import StepSpec

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


def run_table(**sections: dict[str, Any]) -> dict[str, Any]:
    """A run table with small defaults, sections overridden. Sequence parallelism is off unless a layout turns it on."""
    base: dict[str, Any] = {
        "model": dict(DIMENSIONS),
        "batch": {"global_sequences": 12, "sequence_length": 20, "steps": STEPS},
        "layout": {"sequence_parallel": False},
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

    def __init__(self, batch: GlobalBatch, spec: StepSpec, rank: int) -> None:
        self._batch, self._layout, self._rank = batch, spec.layout, rank
        self._masked = spec.document_mask
        self._learned = spec.model.positions == "learned"
        dtype = torch_dtype(spec.compute)
        self._tables = rope_tables(spec.model, spec.layout.sequence_length, dtype, torch.device("cpu"))
        self._positions = torch.tensor(self._layout.positions(rank))
        rows = [r for m in range(self._layout.num_microbatches) for r in self._layout.rows(rank, m)]
        self._ahead = [shifted(batch, depth) for depth in range(1, spec.model.mtp_layers + 1)]
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
