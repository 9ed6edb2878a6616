"""Whether a step fits, in a word that follows its probability: the same in lines, documents, tables and on the page."""

from math import floor
from typing import Any, Literal, NamedTuple

from fourfold.cost.prices import Prices
from fourfold.evidence.out_of_memory import out_of_memory
from fourfold.plan.outlook import NEAR_LIMIT
from fourfold.plan.planner import Plan
from fourfold.plan.pricing import Priced
from fourfold.plan.request import LIKELY
from fourfold.simulate.summary import MEMORY_SHARE, StepSummary

Word = Literal["sure", "likely", "perhaps", "unlikely", "no"]
LEAST: tuple[tuple[float, Word], ...] = (
    (1 - NEAR_LIMIT, "sure"),
    (1 - LIKELY, "likely"),
    (0.5, "perhaps"),
    (0.1, "unlikely"),
)
"""The probability from which on a word is said, of steps that fit in no fewer cases; below all of them it is `no`. A search puts
first a layout that is likely to fit, and names the best that surely does."""
PHRASES: dict[Word, str] = {
    "sure": "surely fits",
    "likely": "likely fits",
    "perhaps": "may fit",
    "unlikely": "unlikely fits",
    "no": "DOES NOT FIT",
}


class Fit(NamedTuple):
    """`probability`: the share of published runs that fit, of those that are predicted to fill as much of their device; None where
    none tells: on a machine that was measured, where the host's memory lacks, and over a limit that a person set below the
    device's. There the prediction decides between likely and no."""

    word: Word
    probability: float | None

    @property
    def phrase(self) -> str:
        """Words for a headline."""
        return PHRASES[self.word] + (f" ({self._per_cent})" if self.probability is not None else "")

    @property
    def cell(self) -> str:
        """Words for a table."""
        return f"{self.word} {self._per_cent}" if self.probability is not None else self.word

    @property
    def _per_cent(self) -> str:
        """Rounded down: 89.6 % is likely, and 90 % would be sure."""
        return f"{floor(100 * (self.probability or 0.0) + 1e-9)} %"

    @classmethod
    def read(cls, document: Any) -> "Fit":
        """From such a document. Raises `KeyError`, `TypeError` or `ValueError` where it is none."""
        word, probability = document["word"], document["probability"]
        if word not in PHRASES:
            raise ValueError(f"fit.word {word!r:.40} is none of {', '.join(PHRASES)}")
        return cls(word, None if probability is None else float(probability))

    def document(self) -> dict[str, Any]:
        """For a JSON document."""
        return {"word": self.word, "probability": self.probability, "phrase": self.phrase}


def fit_of(summary: StepSummary, memory_bytes: int | None = None) -> Fit:
    """Whether the step of a summary fits, or another one in its place that holds so many bytes."""
    if memory_bytes is None and summary.host_lacks > 0:
        return Fit("no", None)
    held = max(summary.step.device_bytes) if memory_bytes is None else memory_bytes
    return _fit(summary.step.simulation.prices, held, summary.memory_limit)


def fit_of_priced(plan: Plan, priced: Priced) -> Fit:
    """Whether a layout of a plan fits."""
    return _fit(plan.request.template, priced.memory_bytes, plan.request.memory_bytes)


def _fit(prices: Prices, held: int, limit: float) -> Fit:
    capacity, risk = prices.cluster.device.memory_bytes, out_of_memory(prices)
    if risk is None or (held > limit and limit < 0.999 * MEMORY_SHARE * capacity):
        return Fit("likely" if held <= limit else "no", None)
    probability = float(1 - risk.probability(held / capacity))
    return Fit(next((word for least, word in LEAST if probability >= least), "no"), probability)
