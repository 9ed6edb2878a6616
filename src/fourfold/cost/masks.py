"""Shares of causal attention's work that masks leave."""

from dataclasses import dataclass
from math import exp


def masked_share(sequence_length: int, mean_tokens: float) -> float:
    """Share of the pairs of a causal window that lie within one document, where lengths of documents are spread as if each token
    ended one with the same chance (geometric, of that mean m).

    Two tokens d apart are of one document with the chance exp(-d / m); over a window of s tokens, as integrals,
    sum (s - d) exp(-d / m) / sum (s - d) = 2 x (1 - x (1 - exp(-1 / x))) with x = m / s.
    """
    x = mean_tokens / sequence_length
    if x > 1e4:  # the next term of the series: the difference of two large numbers would be lost
        return 1 - 1 / (3 * x)
    return min(1.0, 2 * x * (1 - x * (1 - exp(-1 / x))))


@dataclass(frozen=True)
class Windows:
    """Attention to the last `tokens` alone, in the part `layers` of a model's layers."""

    tokens: int
    layers: float = 1.0

    def share(self, sequence_length: int) -> float:
        """Share of the pairs of causal attention that windows leave: 1 - (1 - w / s)^2 in a layer that has them, as integrals."""
        hidden = (1 - min(1.0, self.tokens / sequence_length)) ** 2
        return 1 - self.layers * hidden


def share_left(sequence_length: int, document_tokens: float | None, windows: Windows | None = None) -> float:
    """Share of causal attention's work that documents of that mean length (None: one) and windows leave: the less of both."""
    documents = 1.0 if document_tokens is None else masked_share(sequence_length, document_tokens)
    return min(documents, 1.0 if windows is None else windows.share(sequence_length))
