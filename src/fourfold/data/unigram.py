"""The loss of the simplest model, which knows how often each token occurs and nothing else: the bar to get under."""

from collections.abc import Sequence

import numpy as np


def unigram_entropies(
    train_counts: Sequence[np.ndarray], validation_counts: Sequence[np.ndarray], weights: Sequence[float]
) -> tuple[float, float]:
    """(validation cross-entropy, training entropy) in nats per token, for parts blended by `weights` (which sum to 1).

    train_counts, validation_counts: occurrences of each token id in each part, int64 [vocab_size] each.
    With c the counts of a part of N training tokens and V ids, its smoothed distribution is q(t) = (c(t) + 1) / (N + V)
    (Laplace), that of the blend is q = sum of w q, and the cross-entropy is -sum p(t) ln q(t), p the validation shares.
    The training entropy is that of the unsmoothed training shares.
    """
    smoothed = _blend([(counts + 1) / (counts.sum() + len(counts)) for counts in train_counts], weights)
    train = _blend([_shares(counts) for counts in train_counts], weights)
    validation = _blend([_shares(counts) for counts in validation_counts], weights)
    present = train[train > 0]
    return float(-(validation * np.log(smoothed)).sum()), float(-(present * np.log(present)).sum())


def _shares(counts: np.ndarray) -> np.ndarray:
    return counts / max(int(counts.sum()), 1)


def _blend(distributions: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    return np.sum([weight * values for weight, values in zip(weights, distributions, strict=True)], axis=0)
