"""What masks leave of causal attention's work."""

from math import exp


def masked_share(sequence_length: int, mean_tokens: float) -> float:
    """Of the pairs of a causal window, those within one document, where lengths of documents are spread as if each token ended one
    with the same chance (geometric, of that mean m).

    Two tokens d apart are of one document with the chance exp(-d / m); over a window of s tokens, as integrals,
    sum (s - d) exp(-d / m) / sum (s - d) = 2 x (1 - x (1 - exp(-1 / x))) with x = m / s.
    """
    x = mean_tokens / sequence_length
    if x > 1e4:  # the next term of the series: the difference of two large numbers would be lost
        return 1 - 1 / (3 * x)
    return min(1.0, 2 * x * (1 - x * (1 - exp(-1 / x))))


def windowed_share(sequence_length: int, window: int) -> float:
    """Of the pairs of causal attention, those at most `window` tokens apart: 1 - (1 - w / s)^2, as integrals."""
    return 1 - (1 - min(1.0, window / sequence_length)) ** 2
