"""From rows of a global batch to the microbatches that segments read."""

import numpy as np
import torch

from fourfold.data.ahead import look_ahead
from fourfold.data.batches import IGNORED, Batch
from fourfold.layout import Layout
from fourfold.model.context.placement import ContextShare, Placement, balanced, zigzag
from fourfold.model.environment import Microbatch
from fourfold.model.rope_tables import rope_tables
from fourfold.model.torch_operations import torch_dtype
from fourfold.program.spec import StepSpec
from fourfold.runtime.device import to_device

EVERY = slice(None)


class RowFeed:
    """One rank's share of a global batch as the executor's step data. `batch` holds the rank's rows alone, in row order; of
    their columns the rank reads those of `share`, which is None where it has the full sequence: where documents are kept apart,
    those that make attention even among the ring's ranks, in chunks of a multiple of `together` tokens; else, or where that is
    None, those of zig-zag. `mtp_layers`: MTP modules, whose
    tokens and targets are found in full rows, so that no rank needs another's."""

    def __init__(
        self,
        batch: Batch,
        microbatch_sequences: int,
        tables: tuple[torch.Tensor, torch.Tensor],
        share: ContextShare | None = None,
        mtp_layers: int = 0,
        together: int | None = 1,
    ) -> None:
        self._batch = batch
        self._size = microbatch_sequences
        self._cos, self._sin = tables
        self._learned = self._cos.shape[-1] == 0
        self._placements = _placements(batch, microbatch_sequences, share, together)
        self._columns = None if share is None else self._own_columns(share)
        self._ahead = [look_ahead(batch, depth) for depth in range(1, mtp_layers + 1)]
        every = [batch.targets, *(targets for _, targets in self._ahead)]
        self.num_targets = tuple(int((self._own(targets) != IGNORED).sum()) for targets in every)

    def _own_columns(self, share: ContextShare) -> np.ndarray:
        """[rows, own positions]."""
        rows, length = self._batch.tokens.shape
        if not self._placements:
            return np.tile(share.positions(zigzag(share.ring), 0, length), (rows, 1))
        size = self._size
        return np.array([share.positions(self._placements[row // size], row % size, length) for row in range(rows)])

    def _own(self, array: np.ndarray, rows: slice = EVERY) -> np.ndarray:
        """[rows, sequence_length] -> [rows, own positions]."""
        return array[rows] if self._columns is None else np.take_along_axis(array[rows], self._columns[rows], axis=1)

    def _on_device(self, array: np.ndarray) -> torch.Tensor:
        return to_device(torch.from_numpy(array), self._cos.device)

    def load(self, microbatch: int) -> Microbatch:
        """tokens, targets [microbatch_sequences, own positions] on the device, with the rotary angles of their positions, or the
        positions themselves where they are learned (tables of no width)."""
        rows = slice(microbatch * self._size, (microbatch + 1) * self._size)
        batch, lengths = self._batch, self._batch.document_lengths
        cos, sin = self._cos, self._sin
        if lengths is not None:
            positions = self._on_device(self._own(batch.positions, rows))
            cos, sin = cos[positions], sin[positions]
        elif self._columns is not None:
            columns = self._on_device(self._columns[0])
            cos, sin = cos[columns], sin[columns]
        tokens_ahead, targets_ahead = self._ahead_of(rows)
        return Microbatch(
            tokens=self._on_device(self._own(batch.tokens, rows)),
            targets=self._on_device(self._own(batch.targets, rows)),
            cos=cos.unsqueeze(-2),
            sin=sin.unsqueeze(-2),
            document_lengths=None if lengths is None else lengths[rows],
            positions=self._on_device(self._own(batch.positions, rows)) if self._learned else None,
            ahead_tokens=tokens_ahead,
            ahead_targets=targets_ahead,
            placement=self._placements[microbatch] if self._placements else None,
        )

    def _ahead_of(self, rows: slice) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
        """Tokens and targets of every MTP module, [D, microbatch_sequences, own positions] each."""
        if not self._ahead:
            return None, None
        tokens, targets = (
            self._on_device(np.stack([self._own(array, rows) for array in kind]))
            for kind in zip(*self._ahead, strict=True)
        )
        return tokens, targets


def _placements(batch: Batch, size: int, share: ContextShare | None, together: int | None) -> list[Placement]:
    """One a microbatch; none where all rows are placed in zig-zag."""
    lengths = batch.document_lengths
    if lengths is None or share is None or share.ring == 1 or together is None:
        return []
    return [balanced(lengths[first : first + size], share.ring, together) for first in range(0, len(lengths), size)]


def rank_feed(spec: StepSpec, batch: Batch, rank: int, tables: tuple[torch.Tensor, torch.Tensor]) -> RowFeed:
    """The feed of a rank of the layout. A person's own block reads rows in zig-zag; tokens that are rounded together stay so."""
    layout, model = spec.layout, spec.model
    share = layout.context_share(rank) if layout.cp > 1 else None
    together = None if model.block is not None else spec.recipe.multiple if spec.recipe is not None else 1
    return RowFeed(batch, layout.microbatch_sequences, tables, share, model.mtp_layers, together)


def feed_tables(spec: StepSpec, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin for every position of a sequence, in the compute format."""
    return rope_tables(spec.model, spec.layout.sequence_length, torch_dtype(spec.compute), device)


def rank_rows(layout: Layout, rank: int) -> list[int]:
    """Rows of the global batch that this rank reads in one step, microbatch by microbatch."""
    return [row for m in range(layout.num_microbatches) for row in layout.rows(rank, m)]
