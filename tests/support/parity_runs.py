"""The runs that are done twice: tables of small models, their batches, and the rows and positions that one rank sees."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fourfold.model.context.placement import Placement, balanced, zigzag
from fourfold.model.environment import Microbatch
from fourfold.model.layers import reads_in_order, reads_positions, ropes_of, windows_of
from fourfold.model.rope_tables import rope_tables
from fourfold.model.torch_operations import torch_dtype
from fourfold.program import StepSpec
from fourfold.runtime.device import to_device
from fourfold.train.feed import RotaryTables

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
        if length > 1:
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


CPU = torch.device("cpu")


class RankData:
    """The rows and positions of one rank as the executor's step data: every tensor of a microbatch lies on its device."""

    def __init__(self, batch: GlobalBatch, spec: StepSpec, rank: int, device: torch.device = CPU) -> None:
        self._device = device
        self._batch, self._layout, self._rank = batch, spec.layout, rank
        self._masked = spec.document_mask
        windows = windows_of(spec.model, spec.layout.sequence_length)
        self._in_zigzag = spec.model.block is not None or reads_in_order(spec.model) or bool(windows)
        self._together = 1 if spec.recipe is None else spec.recipe.multiple
        self._learned = reads_positions(spec.model, spec.document_mask)
        dtype = torch_dtype(spec.compute)
        length = spec.layout.sequence_length
        ropes = {rope: rope_tables(rope, length, dtype, device) for rope in ropes_of(spec.model)}
        self._tables = RotaryTables(device, ropes)
        self._ahead = [shifted(batch, depth) for depth in range(1, spec.model.mtp_layers + 1)]
        every = [batch.targets, *(targets for _, targets in self._ahead)]
        own = [self._positions(m) for m in range(self._layout.num_microbatches)]
        self.num_targets = tuple(
            sum(int((self._own(targets, m, own[m]) != -100).sum()) for m in range(len(own))) for targets in every
        )

    def _rows(self, microbatch: int) -> list[int]:
        return list(self._layout.rows(self._rank, microbatch))

    def _placement(self, microbatch: int) -> Placement | None:
        """Where documents are kept apart, the one that makes attention even; None: zig-zag, which a person's own block, recurrences
        and windows need."""
        if not self._masked or self._layout.cp_ring == 1 or self._in_zigzag:
            return None
        return balanced(
            [self._batch.document_lengths[row] for row in self._rows(microbatch)], self._layout.cp_ring, self._together
        )

    def _positions(self, microbatch: int) -> torch.Tensor:
        """[rows, own positions]."""
        share, length = self._layout.context_share(self._rank), self._layout.sequence_length
        placement = self._placement(microbatch) or zigzag(self._layout.cp_ring)
        return torch.tensor([share.positions(placement, i, length) for i, _ in enumerate(self._rows(microbatch))])

    def _own(self, full: torch.Tensor, microbatch: int, positions: torch.Tensor) -> torch.Tensor:
        return full[self._rows(microbatch)].gather(1, positions)

    def load(self, microbatch: int) -> Microbatch:
        rows, own = self._rows(microbatch), self._positions(microbatch)
        lengths, learned, places = None, None, None
        if self._learned:
            learned = own
        if self._masked:
            lengths = [self._batch.document_lengths[r] for r in rows]
            positions = torch.stack([torch.cat([torch.arange(n) for n in row]) for row in lengths])
            if self._learned:
                learned = positions.gather(1, own)
            places = positions.gather(1, own)
        elif self._layout.cp > 1:
            places = own[0]
        return Microbatch(
            self._there(self._own(self._batch.tokens, microbatch, own)),
            self._there(self._own(self._batch.targets, microbatch, own)),
            self._tables.at(None if places is None else self._there(places)),
            lengths,
            None if learned is None else self._there(learned),
            *self._look_ahead(microbatch, own),
            self._placement(microbatch),
        )

    def _look_ahead(self, microbatch: int, own: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        if not self._ahead:
            return None, None
        kinds = zip(*self._ahead, strict=True)
        tokens, targets = (self._there(torch.stack([self._own(a, microbatch, own) for a in kind])) for kind in kinds)
        return tokens, targets

    def _there(self, tensor: torch.Tensor) -> torch.Tensor:
        return to_device(tensor, self._device)
