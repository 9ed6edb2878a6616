"""From rows of a global batch to the microbatches that segments read."""

import numpy as np
import torch

from fourfold.data import Batch
from fourfold.data.batches import IGNORED
from fourfold.layout import Layout
from fourfold.model.rope import rope_tables
from fourfold.model.segments import Microbatch
from fourfold.model.weights import torch_dtype
from fourfold.program.buffers import Lowering


class RowFeed:
    """One rank's share of a global batch as the executor's step data. `batch` holds the rank's rows alone, in row order; of
    their columns the rank reads those at `positions`, which are None where it has the whole sequence."""

    def __init__(
        self,
        batch: Batch,
        microbatch_sequences: int,
        tables: tuple[torch.Tensor, torch.Tensor],
        positions: np.ndarray | None = None,
    ) -> None:
        self._batch = batch
        self._size = microbatch_sequences
        self._cos, self._sin = tables
        self._learned = self._cos.shape[-1] == 0
        self._columns = positions
        self.num_targets = int((self._own(batch.targets) != IGNORED).sum())

    def _own(self, array: np.ndarray) -> np.ndarray:
        return array if self._columns is None else np.ascontiguousarray(array[:, self._columns])

    def load(self, microbatch: int) -> Microbatch:
        """tokens, targets [microbatch_sequences, own positions] on the device, with the rotary angles of their positions, or the
        positions themselves where they are learned (tables of no width)."""
        part = self._batch.select(slice(microbatch * self._size, (microbatch + 1) * self._size))
        device = self._cos.device
        cos, sin = self._cos, self._sin
        if part.document_lengths is not None:
            positions = torch.from_numpy(self._own(part.positions)).to(device)
            cos, sin = cos[positions], sin[positions]
        elif self._columns is not None:
            columns = torch.from_numpy(self._columns).to(device)
            cos, sin = cos[columns], sin[columns]
        return Microbatch(
            tokens=torch.from_numpy(self._own(part.tokens)).to(device),
            targets=torch.from_numpy(self._own(part.targets)).to(device),
            cos=cos.unsqueeze(-2),
            sin=sin.unsqueeze(-2),
            document_lengths=part.document_lengths,
            positions=torch.from_numpy(self._own(part.positions)).to(device) if self._learned else None,
        )


def own_positions(layout: Layout, rank: int) -> np.ndarray | None:
    """Positions of a sequence that the rank has; None: all."""
    return np.array(layout.positions(rank)) if layout.cp > 1 else None


def feed_tables(facts: Lowering, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin for every position of a sequence, in the compute format."""
    return rope_tables(facts.model, facts.layout.sequence_length, torch_dtype(facts.compute), device)


def rank_rows(layout: Layout, rank: int) -> list[int]:
    """Rows of the global batch that this rank reads in one step, microbatch by microbatch."""
    return [row for m in range(layout.num_microbatches) for row in layout.rows(rank, m)]
