"""Multi-token prediction reads k tokens on, within the document, and nothing at its end."""

import numpy as np
import pytest

from fourfold.data.batches import IGNORED, NO_TOKEN, Batch, look_ahead

TOKENS = np.array([[5, 6, 7, 0, 8, 9, 0, 3]])


def _batch(lengths: tuple[tuple[int, ...], ...] | None) -> Batch:
    """Tokens and targets of a row that is cut after every end-of-text (0), as data are."""
    targets = np.append(TOKENS[:, 1:], [[4]], axis=1)
    if lengths is None:
        return Batch(TOKENS, targets, np.arange(8)[None], None)
    targets[TOKENS == 0] = IGNORED
    positions = np.concatenate([np.arange(n) for n in lengths[0]])[None]
    return Batch(TOKENS, targets, positions, lengths)


def test_a_row_without_documents() -> None:
    tokens, targets = look_ahead(_batch(None), 2)
    assert tokens.tolist() == [[7, 0, 8, 9, 0, 3, NO_TOKEN, NO_TOKEN]]
    assert targets.tolist() == [[0, 8, 9, 0, 3, 4, IGNORED, IGNORED]]


def test_documents_do_not_leak() -> None:
    tokens, targets = look_ahead(_batch(((4, 3, 1),)), 1)
    assert tokens.tolist() == [[6, 7, 0, NO_TOKEN, 9, 0, NO_TOKEN, NO_TOKEN]]
    assert targets.tolist() == [[7, 0, IGNORED, IGNORED, 0, IGNORED, IGNORED, IGNORED]]


@pytest.mark.parametrize("depth", [8, 9])
def test_nothing_is_so_far_on(depth: int) -> None:
    tokens, targets = look_ahead(_batch(None), depth)
    assert (tokens == NO_TOKEN).all()
    assert (targets == IGNORED).all()


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_target_is_the_token_one_further_on(depth: int) -> None:
    batch = _batch(((4, 3, 1),))
    _, targets = look_ahead(batch, depth)
    further, _ = look_ahead(batch, depth + 1)
    valid = targets != IGNORED
    assert (targets[valid] == further[valid]).all()
    assert valid.any() == (depth < 3)
