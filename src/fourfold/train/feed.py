"""From rows of a global batch to the microbatches that segments read: first in the host's memory, which a thread may do beside the
step before, then on the device."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch

from fourfold.data.batches import IGNORED, Batch, look_ahead
from fourfold.layout import Layout
from fourfold.model.context.placement import ContextShare, Placement, balanced, zigzag
from fourfold.model.environment import Microbatch
from fourfold.model.layers import reads_in_order, reads_positions, ropes_of, windows_of
from fourfold.model.rope import Positional
from fourfold.model.rope_tables import rope_tables
from fourfold.model.torch_operations import torch_dtype
from fourfold.program.spec import StepSpec
from fourfold.runtime.device import host_tensor, to_device

EVERY = slice(None)


@dataclass(frozen=True)
class HostMicrobatch:
    """The inputs of one microbatch in the host's memory, which is pinned for CUDA. [microbatch_sequences, own
    positions] each, [D, ...] of the D MTP modules; positions: where something is chosen by them, else None."""

    tokens: torch.Tensor
    targets: torch.Tensor
    positions: torch.Tensor | None
    ahead_tokens: torch.Tensor | None = None
    ahead_targets: torch.Tensor | None = None


@dataclass(frozen=True)
class RotaryTables:
    """cos and sin [sequence_length, width / 2] of every rotary embedding of a model, on a device. Iterates over all of them."""

    device: torch.device
    by_rope: Mapping[Positional, tuple[torch.Tensor, torch.Tensor]]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return chain.from_iterable(self.by_rope.values())

    def at(self, positions: torch.Tensor | None) -> dict[Positional, tuple[torch.Tensor, torch.Tensor]]:
        """Tables of some positions [...] -> [..., 1, width / 2]; None: of all in order."""
        return {
            rope: tuple((table if positions is None else table[positions]).unsqueeze(-2) for table in tables)  # type: ignore[misc]
            for rope, tables in self.by_rope.items()
        }


class RowFeed:
    """One rank's share of a global batch as the executor's step data. `batch` holds the rank's rows alone, in row order; of
    their columns the rank reads those of `share`, which is None where it has the full sequence: where documents are kept apart,
    those that make attention even among the ring's ranks, in chunks of a multiple of `together` tokens; else, or where that is
    None, those of zig-zag. `mtp_layers`: MTP modules, whose
    tokens and targets are found in full rows, so that no rank needs another's. `positions`: whether segments read them, not
    rotary tables at them alone."""

    def __init__(
        self,
        batch: Batch,
        microbatch_sequences: int,
        tables: RotaryTables,
        share: ContextShare | None = None,
        mtp_layers: int = 0,
        together: int | None = 1,
        positions: bool = False,
    ) -> None:
        self._batch = batch
        self._size = microbatch_sequences
        self._tables, self._reads_positions = tables, positions
        self._placements = _placements(batch, microbatch_sequences, share, together)
        self._columns = None if share is None else self._own_columns(share)
        self._ahead = [look_ahead(batch, depth) for depth in range(1, mtp_layers + 1)]
        every = [batch.targets, *(targets for _, targets in self._ahead)]
        self.num_targets = tuple(int((self._own(targets) != IGNORED).sum()) for targets in every)
        self._prepared: dict[int, HostMicrobatch] = {}

    def prepare(self) -> "RowFeed":
        """Makes every microbatch in the host's memory, so that `load` copies alone; this feed."""
        for microbatch in range(len(self._batch.tokens) // self._size):
            self._prepared[microbatch] = self._in_host_memory(microbatch)
        return self

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

    def _in_host_memory(self, microbatch: int) -> HostMicrobatch:
        rows = slice(microbatch * self._size, (microbatch + 1) * self._size)
        batch = self._batch
        reads_positions = batch.document_lengths is not None or self._reads_positions
        ahead: list[torch.Tensor] = []
        if self._ahead:
            kinds = zip(*self._ahead, strict=True)
            ahead = [self._host(np.stack([self._own(array, rows) for array in kind])) for kind in kinds]
        return HostMicrobatch(
            self._host(self._own(batch.tokens, rows)),
            self._host(self._own(batch.targets, rows)),
            self._host(self._own(batch.positions, rows)) if reads_positions else None,
            *ahead,
        )

    def _host(self, array: np.ndarray) -> torch.Tensor:
        return host_tensor(array, self._tables.device)

    def _on_device(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else to_device(tensor, self._tables.device)

    def load(self, microbatch: int) -> Microbatch:
        """tokens, targets [microbatch_sequences, own positions] on the device, with the rotary angles of their positions, and the
        positions themselves where segments read them."""
        host = self._prepared.get(microbatch) or self._in_host_memory(microbatch)
        lengths, device = self._batch.document_lengths, self._tables.device
        chosen = positions = self._on_device(host.positions)
        if lengths is None:
            chosen = None if self._columns is None else to_device(self._host(self._columns[0]), device)
        return Microbatch(
            tokens=to_device(host.tokens, device),
            targets=to_device(host.targets, device),
            rope=self._tables.at(chosen),
            document_lengths=None
            if lengths is None
            else lengths[microbatch * self._size : (microbatch + 1) * self._size],
            positions=positions if self._reads_positions else None,
            ahead_tokens=self._on_device(host.ahead_tokens),
            ahead_targets=self._on_device(host.ahead_targets),
            placement=self._placements[microbatch] if self._placements else None,
        )


def _placements(batch: Batch, size: int, share: ContextShare | None, together: int | None) -> list[Placement]:
    """One a microbatch; none where all rows are placed in zig-zag."""
    lengths = batch.document_lengths
    if lengths is None or share is None or share.ring == 1 or together is None:
        return []
    return [balanced(lengths[first : first + size], share.ring, together) for first in range(0, len(lengths), size)]


def rank_feed(spec: StepSpec, batch: Batch, rank: int, tables: RotaryTables) -> RowFeed:
    """The feed of a rank of the layout. A person's own block reads rows in zig-zag, and so do windows; tokens that are rounded
    together stay so."""
    layout, model = spec.layout, spec.model
    share = layout.context_share(rank) if layout.cp > 1 else None
    in_zigzag = model.block is not None or reads_in_order(model) or windows_of(model, layout.sequence_length)
    together = None if in_zigzag else spec.recipe.multiple if spec.recipe is not None else 1
    positions = reads_positions(model, batch.document_lengths is not None)
    return RowFeed(batch, layout.microbatch_sequences, tables, share, model.mtp_layers, together, positions)


def feed_tables(spec: StepSpec, device: torch.device) -> RotaryTables:
    """cos and sin for every position of a sequence, in the compute format."""
    length, dtype = spec.layout.sequence_length, torch_dtype(spec.compute)
    return RotaryTables(device, {rope: rope_tables(rope, length, dtype, device) for rope in ropes_of(spec.model)})


def rank_rows(layout: Layout, rank: int) -> list[int]:
    """Rows of the global batch that this rank reads in one step, microbatch by microbatch."""
    return [row for m in range(layout.num_microbatches) for row in layout.rows(rank, m)]
