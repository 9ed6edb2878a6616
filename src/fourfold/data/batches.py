"""Global batches: the batch of step k is a pure function of (seed, k), and any rank reads only its own rows of it.

Multi-token prediction reads tokens and targets some places on, never beyond their document or their row.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fourfold.config import RunConfig, UserError
from fourfold.data.blend import Blend, Permutation
from fourfold.data.indexed import TokenStream
from fourfold.data.prepared import PreparedData
from fourfold.data.stage_place import SamplePlace, place_of_run
from fourfold.data.weights import MOST_EPOCHS, largest_remainder

IGNORED = -100
"""The target of a position that has none: no loss is taken there."""
NO_TOKEN = 0
"""Stands where there is no token so far on: no valid target depends on it."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of a global batch.

    tokens, targets, positions: int64 [rows, sequence_length]; a target that is to be ignored is -100.
    document_lengths: for each row the lengths of its consecutive documents, which sum to the sequence length; None when
    documents are not kept apart.
    """

    tokens: np.ndarray
    targets: np.ndarray
    positions: np.ndarray
    document_lengths: tuple[tuple[int, ...], ...] | None

    @property
    def valid_tokens(self) -> int:
        """Targets that count in the loss."""
        return int((self.targets != IGNORED).sum())

    def select(self, rows: Sequence[int] | slice) -> "Batch":
        """Some of the rows, in the order given: a microbatch, or a rank's share."""
        picked = list(range(len(self.tokens))[rows]) if isinstance(rows, slice) else list(rows)
        lengths = self.document_lengths
        return Batch(
            self.tokens[picked],
            self.targets[picked],
            self.positions[picked],
            None if lengths is None else tuple(lengths[row] for row in picked),
        )


@dataclass(frozen=True)
class DrawnSample:
    """A row of a global batch. index: within its part, over all epochs. start: its first token in the part's training tokens."""

    part: int
    index: int
    epoch: int
    start: int


@dataclass(frozen=True)
class Reading:
    """The reading of one part over a run. share: of the samples. epochs: how often all of it is read. step_beyond: the first step
    that reads from it more than `MOST_EPOCHS` times; None where the run does not."""

    name: str
    share: float
    epochs: float
    step_beyond: int | None

    def notice(self, steps: int) -> str | None:
        """The line that a run says before it reads a source too often."""
        if self.step_beyond is None:
            return None
        return (
            f"data.corpus {self.name!r}: the run reads it {self.epochs:.2f} times in {steps:,} steps, more than "
            f"{MOST_EPOCHS} epochs "
            f"from step {self.step_beyond:,} on, and repeated data are worth less and less; what works: a larger corpus, a "
            f"smaller weight, or fewer steps"
        )


class GlobalBatches:
    """Cuts the training tokens of each part into windows of `sequence_length` + 1 tokens, `sequence_length` apart, and
    deals them out: each part is shuffled anew every epoch, and the parts are blended by their weights of the step.

    The number of a sample, in the order of steps and of rows in them, is all that chooses a window, so the cursor of a run is its
    step. Opens memory-mapped files and holds no other state.
    """

    def __init__(
        self,
        prepared: PreparedData,
        sequence_length: int,
        global_sequences: int,
        seed: int,
        document_mask: bool,
        place: SamplePlace | None = None,
    ) -> None:
        """`global_sequences`: of every step, and the weights those of `prepared`, unless `place` says which samples a step has, and
        where each part stood before the first of them. Raises `UserError` when a part is shorter than one window."""
        self._sequence_length = sequence_length
        self._seed = seed
        self._document_mask = document_mask
        self._eos = prepared.eos
        self._names = [part.name for part in prepared.parts]
        self._weights = [part.weight for part in prepared.parts]
        self._place = place or SamplePlace.of_equal_steps(global_sequences, [(0, self._weights)])
        self._blend = Blend(self._place.phases)
        streams = [prepared.streams(part) for part in prepared.parts]
        self._train = [train for train, _ in streams]
        self._validation = [validation for _, validation in streams]
        for part, stream in zip(prepared.parts, self._train, strict=True):
            if len(stream) <= sequence_length:
                raise UserError(
                    f"batch.sequence_length = {sequence_length}: data.corpus {part.name!r} has {len(stream)} training "
                    f"tokens, less than one sequence and its last target; the largest that works is {len(stream) - 1}"
                )
        self.windows_per_part = tuple((len(stream) - 1) // sequence_length for stream in self._train)

    @classmethod
    def of_run(cls, prepared: PreparedData, config: RunConfig, place: SamplePlace | None = None) -> "GlobalBatches":
        """The batches of a run, or of the stage whose `config` and `place` these are. Raises `UserError` when a part is shorter
        than one window."""
        batch, mask, seed = config.batch, config.data.document_mask, config.run.seed
        return cls(prepared, batch.sequence_length, batch.global_sequences, seed, mask, place or place_of_run(config))

    def batch(self, step: int, rows: Sequence[int]) -> Batch:
        """The given rows (0 to global_sequences - 1, any subset, any order) of the global batch of a step (from 0)."""
        windows = np.empty((len(rows), self._sequence_length + 1), np.int64)
        for row, sample in enumerate(self.samples(step, rows)):
            windows[row] = self._train[sample.part].read(sample.start, self._sequence_length + 1)
        return _to_batch(windows, self._eos, self._document_mask)

    def samples(self, step: int, rows: Sequence[int]) -> list[DrawnSample]:
        """The samples that these rows of a step's global batch are."""
        size = self._place.size(step)
        if step < 0 or any(not 0 <= row < size for row in rows):
            raise ValueError(f"step {step}, rows {list(rows)}: a step is 0 or more, a row below {size}")
        parts, indices = self._blend.locate(self._place.first(step) + np.array(rows, np.int64))
        indices += np.array(self._place.drawn, np.int64)[parts]
        windows = np.empty_like(indices)
        for part in np.unique(parts):
            chosen = np.flatnonzero(parts == part)
            windows[chosen] = self._windows(int(part), indices[chosen])
        found = zip(parts.tolist(), indices.tolist(), windows.tolist(), strict=True)
        return [
            DrawnSample(part, index, index // self.windows_per_part[part], window * self._sequence_length)
            for part, index, window in found
        ]

    @property
    def begin(self) -> int:
        """The step of sample 0."""
        return self._place.begin

    def readings(self, steps: int) -> list[Reading]:
        """The reading of each part by a run of so many steps, or by its stages up to there."""
        drawn = self._drawn(steps)
        return [
            Reading(name, count / sum(drawn), count / windows, self._step_beyond(part, steps))
            for part, (name, count, windows) in enumerate(zip(self._names, drawn, self.windows_per_part, strict=True))
        ]

    def _step_beyond(self, part: int, steps: int) -> int | None:
        most = MOST_EPOCHS * self.windows_per_part[part]
        begin = self._place.begin
        fits = begin + bisect_right(range(begin, steps + 1), most, key=lambda step: self._drawn(step)[part])
        return max(begin, fits - 1) if fits <= steps else None

    def _drawn(self, step: int) -> list[int]:
        """Windows of each part that were read before a step."""
        own = self._blend.drawn(self._place.first(step))
        return [before + count for before, count in zip(self._place.drawn, own, strict=True)]

    def valid_tokens(self, step: int) -> int:
        """Targets that count in the loss of a full global batch: what every microbatch's loss is divided by."""
        size = self._place.size(step)
        return self.batch(step, range(size)).valid_tokens if self._document_mask else size * self._sequence_length

    def validation(self, num_sequences: int, num_rows: int | None = None) -> Batch:
        """A fixed batch of `num_sequences` sequences from the validation tokens, in their order, parts by weight.

        The batch has `num_rows` rows, at least `num_sequences` (default: as many). Rows beyond the sequences, and rows for which
        a part has too few validation tokens, hold end-of-text with ignored targets: the loss depends neither on the number of
        rows, which a layout rounds up, nor does the number of rows depend on the corpus.
        """
        counts = largest_remainder(self._weights, num_sequences)
        rows = num_sequences if num_rows is None else num_rows
        batch = validation_batch(self._validation, counts, rows, self._sequence_length, self._eos, self._document_mask)
        if num_sequences > 0 and batch.valid_tokens == 0:
            raise UserError(
                f"data.corpus: its {sum(map(len, self._validation))} validation tokens hold no target to predict; keep "
                "more with a smaller data.validation_every (2 keeps half for validation), or name a larger corpus"
            )
        return batch

    def _windows(self, part: int, indices: np.ndarray) -> np.ndarray:
        """Window numbers of the given draws from a part: epoch after epoch, each in its own order."""
        num_windows = self.windows_per_part[part]
        epochs, places = np.divmod(indices, num_windows)
        windows = np.empty_like(places)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            key = self._place.keys[part]
            windows[chosen] = Permutation(num_windows, self._seed, key, int(epoch))(places[chosen])
        return windows


def validation_batch(
    streams: Sequence[TokenStream],
    counts: Sequence[int],
    num_rows: int,
    sequence_length: int,
    eos: int,
    document_mask: bool,
) -> Batch:
    """The first `counts` sequences of each stream, and rows without targets up to `num_rows`."""
    surplus = num_rows - sum(counts)
    rows = [_read_padded(stream, count, sequence_length, eos) for stream, count in zip(streams, counts, strict=True)]
    rows.append((np.full((surplus, sequence_length + 1), eos, np.int64), np.zeros(surplus, np.int64)))
    windows = np.concatenate([windows for windows, _ in rows])
    return _to_batch(windows, eos, document_mask, np.concatenate([targets for _, targets in rows]))


def _read_padded(stream: TokenStream, num_rows: int, sequence_length: int, eos: int) -> tuple[np.ndarray, np.ndarray]:
    """(windows [num_rows, sequence_length + 1], real targets of each row [num_rows])."""
    tokens = stream.read(0, num_rows * sequence_length + 1)
    padded = np.full(num_rows * sequence_length + 1, eos, np.int64)
    padded[: len(tokens)] = tokens
    starts = np.arange(num_rows, dtype=np.int64) * sequence_length
    windows = padded[starts[:, None] + np.arange(sequence_length + 1)]
    return windows, np.clip(len(tokens) - 1 - starts, 0, sequence_length)


def _to_batch(windows: np.ndarray, eos: int, document_mask: bool, num_targets: np.ndarray | None = None) -> Batch:
    """windows: int64 [rows, S + 1]. num_targets: how many leading targets of each row are real, [rows]; None: all."""
    tokens, targets = windows[:, :-1].copy(), windows[:, 1:].copy()
    num_rows, length = tokens.shape
    columns = np.arange(length)
    if num_targets is None:
        num_targets = np.full(num_rows, length)
    targets[columns >= num_targets[:, None]] = IGNORED
    if not document_mask:
        return Batch(tokens, targets, np.broadcast_to(columns, tokens.shape).copy(), None)
    ends = tokens == eos
    targets[ends] = IGNORED
    # A document begins in the first column and after every end-of-text; the filling at a row's end begins none.
    begins = np.ones_like(ends)
    begins[:, 1:] = ends[:, :-1] & (columns[1:] <= num_targets[:, None])
    starts = np.maximum.accumulate(np.where(begins, columns, 0), axis=1)
    lengths = tuple(tuple(np.diff(np.flatnonzero(row), append=length).tolist()) for row in begins)
    return Batch(tokens, targets, columns - starts, lengths)


def look_ahead(batch: Batch, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, targets) `depth` places on, int64 [rows, sequence_length] each; NO_TOKEN and -100 past the document's end."""
    length = batch.tokens.shape[1]
    tokens, targets = np.full_like(batch.tokens, NO_TOKEN), np.full_like(batch.targets, IGNORED)
    if depth >= length:
        return tokens, targets
    same = batch.positions[:, depth:] == batch.positions[:, :-depth] + depth
    tokens[:, :-depth] = np.where(same, batch.tokens[:, depth:], NO_TOKEN)
    targets[:, :-depth] = np.where(same, batch.targets[:, depth:], IGNORED)
    return tokens, targets
