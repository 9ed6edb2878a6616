"""Which documents are for validation: a rule on each document's own content, so that order and place do not matter."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

Rule = Literal["hash", "last", "tail"]


@dataclass(frozen=True)
class Split:
    """Divides documents into a training and a validation set.

    rule "hash": for validation where SHA-256 of the document, as an integer, is a multiple of `every`.
    rule "last": the "hash" rule left one of the sets empty; for validation where the SHA-256 is `threshold` or above.
    rule "tail": there is one document only (or copies of one); the last 1/`every` of its length is for validation.
    Equal documents always fall on the same side.
    """

    rule: Rule
    every: int
    threshold: str = ""

    def is_validation(self, document: bytes) -> bool:
        """Whether a document is for validation as a whole. Not for the rule "tail"."""
        digest = sha256(document).hexdigest()
        return digest >= self.threshold if self.rule == "last" else int(digest, 16) % self.every == 0

    def divide(self, text: str) -> tuple[str, str]:
        """(training text, validation text): one of them is empty, except under "tail"."""
        if self.rule == "tail":
            cut = self.cut(len(text))
            return text[:cut], text[cut:]
        return ("", text) if self.is_validation(text.encode("utf-8")) else (text, "")

    def cut(self, length: int) -> int:
        """Under "tail": where the validation tail of something of this length begins."""
        return length - max(1, length // self.every)


class SplitSurvey:
    """Sees every document once, then knows the `Split` that leaves neither set empty."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._sides: set[bool] = set()
        self._digests: set[str] = set()

    def add(self, document: bytes) -> bool:
        """Counts a document in; returns whether the "hash" rule holds it out."""
        digest = sha256(document).hexdigest()
        validation = int(digest, 16) % self._every == 0
        self._sides.add(validation)
        # Digests matter for the fallbacks alone: they need not be kept once both sides have a document.
        if len(self._sides) < 2:
            self._digests.add(digest)
        return validation

    def finish(self) -> Split:
        """The split to use, given at least one document."""
        if len(self._sides) == 2:
            return Split("hash", self._every)
        if len(self._digests) < 2:
            return Split("tail", self._every)
        num_validation = max(1, len(self._digests) // self._every)
        return Split("last", self._every, threshold=sorted(self._digests)[-num_validation])
