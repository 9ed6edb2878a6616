"""Tokens and targets of multi-token prediction: some places on, never beyond their document or their row."""

import numpy as np

from fourfold.data.batches import IGNORED, Batch

NO_TOKEN = 0
"""Stands where there is no token so far on: no valid target depends on it."""


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
