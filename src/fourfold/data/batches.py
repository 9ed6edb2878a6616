"""Global batches: the batch of step k is a pure function of (seed, k), and any rank reads only its own rows of it.

Samples are shuffled by a keyed bijection of 0 .. size - 1 that stores nothing and can be asked at any place. After any number of
samples each part of a blend has had its share, to a sample or two. Multi-token prediction reads tokens and targets some places on,
never beyond their document or their row.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from fourfold.config import RunConfig, UserError
from fourfold.data.indexed import TokenStream
from fourfold.data.prepared import PreparedData

_NUM_ROUNDS = 8
FEWEST_SEEN = 1 << 16
"""Samples of which every part has one at least."""
IGNORED = -100
"""The target of a position that has none: no loss is taken there."""
NO_TOKEN = 0
"""Stands where there is no token so far on: no valid target depends on it."""


class Permutation:
    """A pseudo-random bijection of range(size): a balanced Feistel network over the smallest even number of bits that
    holds `size`, walked along its cycles until the value lies in range (Black & Rogaway 2002, "Ciphers with arbitrary
    finite domains"). The round function is the finalizer of SplitMix64.
    """

    def __init__(self, size: int, *key: int) -> None:
        """size: from 1 to 2**62. key: integers; another key gives another, unrelated shuffle."""
        if not 1 <= size <= 2**62:
            raise ValueError(f"size = {size}: a permutation has from 1 to 2**62 elements")
        self._size = np.uint64(size)
        self._half_bits = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half_bits)) - 1)
        digest = blake2b(repr([int(part) for part in key]).encode(), digest_size=8 * _NUM_ROUNDS).digest()
        self._round_keys = np.frombuffer(digest, "<u8").astype(np.uint64)

    def __call__(self, indices: np.ndarray) -> np.ndarray:
        """The images of `indices`, int64 [n] in and out, each from 0 to size - 1."""
        values = self._encrypt(indices.astype(np.uint64))
        # The domain is less than four times `size`, so a walk takes fewer than four rounds on average.
        while (outside := np.flatnonzero(values >= self._size)).size:
            values[outside] = self._encrypt(values[outside])
        return values.astype(np.int64)

    def _encrypt(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._half_bits, values & self._mask
        for key in self._round_keys:
            left, right = right, left ^ (_mix(right ^ key) & self._mask)
        return (left << self._half_bits) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer: a bijection of 64-bit words in which every input bit moves every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """Divides `total` whole things by `weights` (Hamilton's method): floors, then one each to the largest remainders."""
    shares = [weight / sum(weights) * total for weight in weights]
    # A share that is whole but for rounding counts as whole.
    counts = [int(share + 1e-9 * total) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda part: (counts[part] - shares[part], part))
    for part in by_remainder[: total - sum(counts)]:
        counts[part] += 1
    return counts


@dataclass(frozen=True)
class _Split:
    """Two sides, each a part or a split of its own. `share`: the smaller's, of what both have."""

    share: float
    smaller: "int | _Split"
    larger: "int | _Split"


class Blend:
    """Maps sample n of the run to (part, index within the part): pure functions of n and the weights.

    Parts are joined two by two, the smallest first (Huffman 1952). Among n samples of a pair n times the smaller side's share,
    rounded, are its own. So no error adds up with n, whatever the weights, and samples next to each other have each part's share
    as well.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        """Raises `UserError` for a weight that has none of `FEWEST_SEEN` samples."""
        if 0 in largest_remainder(weights, FEWEST_SEEN):
            total = sum(weights)
            raise UserError(
                f"data.corpus: weight {min(weights):g} is less than 1/{FEWEST_SEEN} of the sum {total:g}, so that its part "
                f"would hardly be seen; a weight that works: {total / 1000:g}"
            )
        heap: list[tuple[float, int, int | _Split]] = [(weight, part, part) for part, weight in enumerate(weights)]
        heapq.heapify(heap)
        for number in range(len(weights), 2 * len(weights) - 1):
            light, _, smaller = heapq.heappop(heap)
            heavy, _, larger = heapq.heappop(heap)
            heapq.heappush(heap, (light + heavy, number, _Split(light / (light + heavy), smaller, larger)))
        self._tree = heap[0][2]

    def locate(self, samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(part, index within the part) of each sample, int64 [n] each."""
        parts, indices = np.empty_like(samples), np.empty_like(samples)
        self._deal(self._tree, np.arange(len(samples)), samples, parts, indices)
        return parts, indices

    def drawn(self, samples: int) -> list[int]:
        """How many of the first `samples` samples are each part's."""
        return [count for _, count in sorted(self._counts(self._tree, samples))]

    def _counts(self, node: int | _Split, number: int) -> list[tuple[int, int]]:
        if isinstance(node, int):
            return [(node, number)]
        light = int(np.floor(number * node.share + 0.5))
        return self._counts(node.smaller, light) + self._counts(node.larger, number - light)

    def _deal(
        self, node: int | _Split, places: np.ndarray, numbers: np.ndarray, parts: np.ndarray, indices: np.ndarray
    ) -> None:
        """Puts parts and indices of a node's samples at `places`. `numbers`: of the samples within the node."""
        if isinstance(node, int):
            parts[places], indices[places] = node, numbers
            return
        before, after = (np.floor(n * node.share + 0.5).astype(np.int64) for n in (numbers, numbers + 1))
        light = after > before
        self._deal(node.smaller, places[light], before[light], parts, indices)
        self._deal(node.larger, places[~light], (numbers - before)[~light], parts, indices)


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
class SamplePlace:
    """Which samples a step has, and where each part of the blend stands. `first`: the number of a step's first sample; `size`: how
    many it has; `drawn`: windows of each part that were read before sample 0; `keys`: the number of each part by which it is
    shuffled."""

    first: Callable[[int], int]
    size: Callable[[int], int]
    drawn: tuple[int, ...]
    keys: tuple[int, ...]

    @staticmethod
    def of_equal_steps(sequences: int, parts: int) -> "SamplePlace":
        """The place of a run whose steps all have as many sequences."""
        return SamplePlace(lambda step: step * sequences, lambda step: sequences, (0,) * parts, tuple(range(parts)))


class GlobalBatches:
    """Cuts the training tokens of each part into windows of `sequence_length` + 1 tokens, `sequence_length` apart, and
    deals them out: each part is shuffled anew every epoch, and the parts are blended by their weights.

    The number of a sample, in the order of steps and of rows in them, is all that chooses a window, so the cursor of a run is its
    step. Opens memory-mapped files and holds no other state."""

    def __init__(
        self,
        prepared: PreparedData,
        sequence_length: int,
        global_sequences: int,
        seed: int,
        document_mask: bool,
        place: "SamplePlace | None" = None,
    ) -> None:
        """`global_sequences`: of every step, unless `place` says which samples a step has, and where each part stood before the
        first of them. Raises `UserError` when a part is shorter than one window."""
        self._sequence_length = sequence_length
        self._place = place or SamplePlace.of_equal_steps(global_sequences, len(prepared.parts))
        self._seed = seed
        self._document_mask = document_mask
        self._eos = prepared.eos
        self._weights = [part.weight for part in prepared.parts]
        self._blend = Blend(self._weights)
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
    def of_run(cls, prepared: PreparedData, config: RunConfig, place: "SamplePlace | None" = None) -> "GlobalBatches":
        """The batches of a run, or of the stage whose `config` and `place` these are. Raises `UserError` when a part is shorter
        than one window."""
        batch, seed, mask = config.batch, config.run.seed, config.data.document_mask
        return cls(prepared, batch.sequence_length, batch.global_sequences, seed, mask, place)

    def batch(self, step: int, rows: Sequence[int]) -> Batch:
        """The given rows (0 to the step's sequences - 1, any subset, any order) of the global batch of a step (from 0)."""
        size = self._place.size(step)
        if step < 0 or any(not 0 <= row < size for row in rows):
            raise ValueError(f"step {step}, rows {list(rows)}: a step is 0 or more, a row below {size}")
        samples = self._place.first(step) + np.array(rows, np.int64)
        parts, indices = self._blend.locate(samples)
        indices += np.array(self._place.drawn, np.int64)[parts]
        windows = np.empty((len(samples), self._sequence_length + 1), np.int64)
        for part in np.unique(parts):
            chosen = np.flatnonzero(parts == part)
            for row, window in zip(chosen, self._windows(int(part), indices[chosen]), strict=True):
                windows[row] = self._train[part].read(int(window) * self._sequence_length, self._sequence_length + 1)
        return _to_batch(windows, self._eos, self._document_mask)

    def first_sample(self, step: int) -> int:
        """The number of a step's first sample among those of its blend and length."""
        return self._place.first(step)

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
        surplus = (num_sequences if num_rows is None else num_rows) - num_sequences
        counts = largest_remainder(self._weights, num_sequences)
        rows = [
            _read_padded(stream, count, self._sequence_length, self._eos)
            for stream, count in zip(self._validation, counts, strict=True)
        ]
        rows.append((np.full((surplus, self._sequence_length + 1), self._eos, np.int64), np.zeros(surplus, np.int64)))
        windows = np.concatenate([windows for windows, _ in rows])
        num_targets = np.concatenate([targets for _, targets in rows])
        batch = _to_batch(windows, self._eos, self._document_mask, num_targets)
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
