"""From rows of a global batch to the microbatches that segments read."""

import numpy as np
import torch

from fourfold.data.ahead import look_ahead
from fourfold.data.batches import IGNORED, Batch
from fourfold.layout import Layout
from fourfold.model.environment import Microbatch
from fourfold.model.rope_tables import rope_tables
from fourfold.model.torch_operations import torch_dtype
from fourfold.program.spec import StepSpec
from fourfold.runtime.device import to_device


class RowFeed:
    """One rank's share of a global batch as the executor's step data. `batch` holds the rank's rows alone, in row order; of
    their columns the rank reads those at `positions`, which are None where it has the full sequence. `mtp_layers`: MTP modules,
    whose tokens and targets are found in full rows, so that no rank needs another's."""

    def __init__(
        self,
        batch: Batch,
        microbatch_sequences: int,
        tables: tuple[torch.Tensor, torch.Tensor],
        positions: np.ndarray | None = None,
        mtp_layers: int = 0,
    ) -> None:
        self._batch = batch
        self._size = microbatch_sequences
        self._cos, self._sin = tables
        self._learned = self._cos.shape[-1] == 0
        self._columns = positions
        self._ahead = [look_ahead(batch, depth) for depth in range(1, mtp_layers + 1)]
        every = [batch.targets, *(targets for _, targets in self._ahead)]
        self.num_targets = tuple(int((self._own(targets) != IGNORED).sum()) for targets in every)

    def _own(self, array: np.ndarray) -> np.ndarray:
        return array if self._columns is None else np.ascontiguousarray(array[:, self._columns])

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return to_device(torch.from_numpy(array), self._cos.device)

    def load(self, microbatch: int) -> Microbatch:
        """tokens, targets [microbatch_sequences, own positions] on the device, with the rotary angles of their positions, or the
        positions themselves where they are learned (tables of no width)."""
        rows = slice(microbatch * self._size, (microbatch + 1) * self._size)
        part = self._batch.select(rows)
        cos, sin = self._cos, self._sin
        if part.document_lengths is not None:
            positions = self._on_device(self._own(part.positions))
            cos, sin = cos[positions], sin[positions]
        elif self._columns is not None:
            columns = self._on_device(self._columns)
            cos, sin = cos[columns], sin[columns]
        tokens_ahead, targets_ahead = self._ahead_of(rows)
        return Microbatch(
            tokens=self._on_device(self._own(part.tokens)),
            targets=self._on_device(self._own(part.targets)),
            cos=cos.unsqueeze(-2),
            sin=sin.unsqueeze(-2),
            document_lengths=part.document_lengths,
            positions=self._on_device(self._own(part.positions)) if self._learned else None,
            ahead_tokens=tokens_ahead,
            ahead_targets=targets_ahead,
        )

    def _ahead_of(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """Tokens and targets of every MTP module, [D, microbatch_sequences, own positions] each."""
        if not self._ahead:
            return None, None
        tokens, targets = (
            self._on_device(np.stack([self._own(array[rows]) for array in kind]))
            for kind in zip(*self._ahead, strict=True)
        )
        return tokens, targets


def own_positions(layout: Layout, rank: int) -> np.ndarray | None:
    """Positions of a sequence that the rank has; None: all."""
    return np.array(layout.positions(rank)) if layout.cp > 1 else None


def feed_tables(spec: StepSpec, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin for every position of a sequence, in the compute format."""
    return rope_tables(spec.model, spec.layout.sequence_length, torch_dtype(spec.compute), device)


def rank_rows(layout: Layout, rank: int) -> list[int]:
    """Rows of the global batch that this rank reads in one step, microbatch by microbatch."""
    return [row for m in range(layout.num_microbatches) for row in layout.rows(rank, m)]
