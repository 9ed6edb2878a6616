"""Batches are pure functions of (seed, step): the same for any split over ranks, any restart, any order of asking."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.config.schema import CorpusPart
from fourfold.data.batches import IGNORED, Batch, GlobalBatches, _to_batch
from fourfold.data.indexed import write_indexed
from fourfold.data.prepared import PreparedData

Prepare = Callable[..., PreparedData]
S, G = 32, 12


@pytest.fixture
def blended(text_folder: Path, prepared_with: Prepare) -> PreparedData:
    return prepared_with(
        corpus=[
            CorpusPart(path=str(text_folder / "odd"), weight=2),
            CorpusPart(path=str(text_folder / "even"), weight=1),
        ]
    )


def same(first: Batch, second: Batch) -> bool:
    arrays = ("tokens", "targets", "positions")
    return first.document_lengths == second.document_lengths and all(
        np.array_equal(getattr(first, name), getattr(second, name)) for name in arrays
    )


@pytest.mark.parametrize("document_mask", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 12])
def test_any_split_over_ranks_gives_the_same_samples(
    blended: PreparedData, num_ranks: int, document_mask: bool
) -> None:
    full = GlobalBatches(blended, S, G, 5, document_mask)
    for step in (0, 1, 7, 10_000):
        expected = full.batch(step, range(G))
        for rank in range(num_ranks):
            rows = range(rank, G, num_ranks)
            mine = GlobalBatches(blended, S, G, 5, document_mask).batch(step, rows)
            assert same(mine, expected.select(rows))
        assert full.valid_tokens(step) == expected.valid_tokens


def test_a_restart_continues_where_the_run_would_have_been(blended: PreparedData) -> None:
    first = GlobalBatches(blended, S, G, 5, True)
    run = [first.batch(step, range(G)) for step in range(20)]
    again = GlobalBatches(blended, S, G, 5, True)
    assert all(same(again.batch(step, range(G)), run[step]) for step in (19, 13, 14))


def test_batch_sizes_cut_one_sequence_of_samples(blended: PreparedData) -> None:
    small, large = GlobalBatches(blended, S, 4, 5, False), GlobalBatches(blended, S, 12, 5, False)
    joined = np.concatenate([small.batch(step, range(4)).tokens for step in range(6)])
    assert np.array_equal(joined, np.concatenate([large.batch(step, range(12)).tokens for step in range(2)]))


def test_seeds_give_other_orders(blended: PreparedData) -> None:
    first, second = (GlobalBatches(blended, S, G, seed, False).batch(0, range(G)) for seed in (1, 2))
    assert not same(first, second)


def windows_of(prepared: PreparedData, part: int = 0) -> list[bytes]:
    train, _ = prepared.streams(prepared.parts[part])
    return [train.read(i * S, S + 1).tobytes() for i in range((len(train) - 1) // S)]


def drawn(batches: GlobalBatches, start: int, stop: int) -> list[bytes]:
    """Samples `start` to `stop` as bytes of their windows; a global batch is one sample here."""
    samples = [batches.batch(step, [0]) for step in range(start, stop)]
    return [np.concatenate([sample.tokens[0], sample.targets[0, -1:]]).tobytes() for sample in samples]


def test_every_epoch_holds_every_window_once_in_a_new_order(text_folder: Path, prepared_with: Prepare) -> None:
    prepared = prepared_with(corpus=str(text_folder / "odd"))
    windows = windows_of(prepared)
    batches = GlobalBatches(prepared, S, 1, 3, False)
    assert batches.windows_per_part == (len(windows),)
    epochs = [drawn(batches, epoch * len(windows), (epoch + 1) * len(windows)) for epoch in range(3)]
    assert all(Counter(epoch) == Counter(windows) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != windows


def test_parts_are_drawn_in_proportion_and_uncut(blended: PreparedData) -> None:
    batches = GlobalBatches(blended, S, 1, 3, False)
    of_part = [Counter(windows_of(blended, part)) for part in (0, 1)]
    count = 3 * batches.windows_per_part[1]
    samples = drawn(batches, 0, count)
    first = [sample for sample in samples if sample in of_part[0]]
    second = [sample for sample in samples if sample not in of_part[0]]
    assert (len(first), len(second)) == (2 * count // 3, count // 3)
    assert Counter(second) == of_part[1]
    for block in range(0, count, 3):
        assert sum(sample in of_part[0] for sample in samples[block : block + 3]) == 2


def test_without_a_mask_every_target_is_the_next_token(blended: PreparedData) -> None:
    batch = GlobalBatches(blended, S, G, 0, False).batch(3, range(G))
    assert np.array_equal(batch.targets[:, :-1], batch.tokens[:, 1:])
    assert np.array_equal(batch.positions, np.tile(np.arange(S), (G, 1)))
    assert batch.document_lengths is None
    assert batch.valid_tokens == G * S
    assert {batch.tokens.dtype, batch.targets.dtype, batch.positions.dtype} == {np.dtype(np.int64)}


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=9, max_size=9), min_size=1, max_size=4))
def test_with_a_mask_documents_do_not_mix(rows: list[list[int]]) -> None:
    """The laws, position by position, with 3 as end-of-text."""
    batch = _to_batch(np.array(rows, np.int64), 3, True)
    assert batch.document_lengths is not None
    for row, window in enumerate(rows):
        position = 0
        lengths = [0]
        for column in range(8):
            assert batch.tokens[row, column] == window[column]
            assert batch.positions[row, column] == position
            at_end = window[column] == 3
            assert batch.targets[row, column] == (IGNORED if at_end else window[column + 1])
            lengths[-1] += 1
            position = 0 if at_end else position + 1
            if at_end:
                lengths.append(0)
        assert batch.document_lengths[row] == tuple(length for length in lengths if length)
        assert sum(batch.document_lengths[row]) == 8
    assert batch.valid_tokens == sum(token != 3 for window in rows for token in window[:8])


def test_select_takes_rows_and_slices(blended: PreparedData) -> None:
    batch = GlobalBatches(blended, S, G, 0, True).batch(0, range(G))
    assert same(batch.select(slice(2, 5)), batch.select([2, 3, 4]))
    assert same(batch.select([4, 1]).select([1]), batch.select([1]))
    assert batch.select([]).tokens.shape == (0, S)
    assert sum(batch.select([row]).valid_tokens for row in range(G)) == batch.valid_tokens


def test_validation_is_fixed_in_order_and_of_the_size_asked_for(text_folder: Path, prepared_with: Prepare) -> None:
    prepared = prepared_with(corpus=str(text_folder))
    _, stream = prepared.streams(prepared.parts[0])
    tokens = stream.read(0, len(stream))
    full = (len(tokens) - 1) // S
    batches = GlobalBatches(prepared, S, G, 0, False)
    assert same(batches.validation(full), GlobalBatches(prepared, S, 3, 99, False).validation(full))
    assert np.array_equal(batches.validation(full).tokens.reshape(-1), tokens[: full * S])
    assert np.array_equal(batches.validation(full).targets.reshape(-1), tokens[1 : full * S + 1])
    for document_mask in (False, True):
        long = GlobalBatches(prepared, S, G, 0, document_mask).validation(full + 4)
        ends = 0 if not document_mask else int((tokens[:-1] == prepared.eos).sum())
        assert long.tokens.shape == (full + 4, S)
        assert long.valid_tokens == len(tokens) - 1 - ends
        assert np.all(long.targets[full + 1 :] == IGNORED)
        if long.document_lengths is not None:
            assert all(sum(lengths) == S for lengths in long.document_lengths)
            assert long.document_lengths[-1] == (S,)


@pytest.mark.parametrize("document_mask", [False, True])
def test_rows_beyond_the_sequences_count_in_no_loss(
    blended: PreparedData, prepared_with: Prepare, text_folder: Path, document_mask: bool
) -> None:
    for prepared in (blended, prepared_with(corpus=str(text_folder))):
        batches = GlobalBatches(prepared, S, G, 0, document_mask)
        exact, padded = batches.validation(5), batches.validation(5, 8)
        assert same(padded.select(slice(5)), exact)
        assert padded.tokens.shape == (8, S)
        assert np.all(padded.targets[5:] == IGNORED)
        assert padded.valid_tokens == exact.valid_tokens


def test_validation_of_a_blend_follows_the_weights(blended: PreparedData) -> None:
    batch = GlobalBatches(blended, S, G, 0, False).validation(6)
    first, second = (blended.streams(part)[1] for part in blended.parts)
    assert np.array_equal(batch.tokens[:4].reshape(-1), first.read(0, 4 * S))
    assert np.array_equal(batch.tokens[4:].reshape(-1), second.read(0, 2 * S))


def test_validation_tokens_never_reach_a_training_batch(tmp_path: Path, prepared_with: Prepare) -> None:
    """In a Megatron pair, where both sets lie in one file: every document has an id of its own."""
    with write_indexed(tmp_path / "pair", 257) as writer:
        for document in range(200):
            writer.append(np.full(5 + document % 11, document))
    prepared = prepared_with(corpus=str(tmp_path / "pair"))
    batches = GlobalBatches(prepared, 8, 16, 0, False)
    steps = batches.windows_per_part[0] // 16 + 1
    seen = {int(t) for step in range(steps) for t in np.unique(batches.batch(step, range(16)).tokens)}
    validation = batches.validation(32)
    assert not seen & set(np.unique(validation.tokens[validation.targets != IGNORED]).tolist())
    assert len(seen) + prepared.parts[0].validation_documents >= 199


def test_a_sequence_longer_than_the_corpus_names_the_largest(tmp_path: Path, prepared_with: Prepare) -> None:
    (tmp_path / "a.txt").write_text("x" * 100)
    prepared = prepared_with(corpus=str(tmp_path / "a.txt"), validation_every=10)
    largest = prepared.train_tokens - 1
    with pytest.raises(
        UserError, match=rf"batch\.sequence_length = {largest + 1}: .*the largest that works is {largest}"
    ):
        GlobalBatches(prepared, largest + 1, G, 0, False)
    assert GlobalBatches(prepared, largest, G, 0, False).batch(0, range(G)).valid_tokens == G * largest


def test_rows_and_steps_that_do_not_exist_are_refused(blended: PreparedData) -> None:
    batches = GlobalBatches(blended, S, G, 0, False)
    for step, rows in ((-1, [0]), (0, [G]), (0, [-1])):
        with pytest.raises(ValueError, match="a row below 12"):
            batches.batch(step, rows)
    assert batches.batch(0, []).tokens.shape == (0, S)
