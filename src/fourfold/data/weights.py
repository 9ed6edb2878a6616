"""Weights of a blend's sources along a run: from `data.corpus` to phases in which they are constant.

A phase is a function of what is stated up to its end, so that a later change moves no sample before it.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from fourfold.config import RunConfig, UserError
from fourfold.config.schema import CorpusPart, DataSection

FEWEST_SEEN = 1 << 16
"""Samples of which every source that has a weight has one at least."""
MOST_EPOCHS = 4
"""Times that a source is read at most: up to then repeated text is nearly as good as new (Muennighoff et al. 2023)."""
MOST_PIECES = 256
"""A linear change is made in so many equal steps at most."""
Phase = tuple[int, Sequence[float]]
"""The first sample of the run, and the share of each source from there on."""


def largest_remainder(weights: Sequence[float], total: int) -> list[int]:
    """Divides `total` whole things by `weights` (Hamilton's method): floors, then one each to the largest remainders."""
    shares = [weight / sum(weights) * total for weight in weights]
    # A share that is whole but for rounding counts as whole.
    counts = [int(share + 1e-9 * total) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda part: (counts[part] - shares[part], part))
    for part in by_remainder[: total - sum(counts)]:
        counts[part] += 1
    return counts


def sources_of(data: DataSection) -> list[CorpusPart]:
    """The sources of a corpus: those of a blend, or the one. Raises `UserError` for a blend of none."""
    if not data.corpus and not isinstance(data.corpus, str):
        raise UserError('data.corpus = []: a blend has at least one part; what works: [{path = "texts"}]')
    return [CorpusPart(path=data.corpus)] if isinstance(data.corpus, str) else data.corpus


def fixed_shares(data: DataSection) -> list[float]:
    """Share of each source by its largest weight: of the validation set, which is the same in all of a run."""
    largest = [max(part.weight, *(change.weight for change in part.later), 0.0) for part in sources_of(data)]
    return [weight / sum(largest) for weight in largest]


def weight_phases(config: RunConfig) -> list[Phase]:
    """The phases of a run, rising from sample 0. Raises `UserError` where nothing has a weight, or something hardly any."""
    batch = config.batch
    tokens = batch.global_sequences * batch.sequence_length
    shares = shares_by_step(config.data, lambda wanted: -(-wanted // tokens))
    return [(step * batch.global_sequences, weights) for step, weights in shares]


def shares_by_step(data: DataSection, step_after: Callable[[int], int]) -> list[tuple[int, list[float]]]:
    """(first step, share of each source) of each phase. `step_after`: the first step before which so many tokens of the run were
    read. Raises `UserError`."""
    lines = [_Line(part, step_after) for part in sources_of(data)]
    stated = sorted({step for line in lines for step in line.steps})
    for step in stated:
        _check(step, [line.at(step) for line in lines])
    edges = []
    for start, stop in pairwise(stated):
        pieces = min(MOST_PIECES, stop - start) if any(line.is_sloped(start) for line in lines) else 1
        edges += [start + (stop - start) * piece // pieces for piece in range(pieces)]
    edges.append(stated[-1])
    # In the middle of a piece a line has its mean; behind the last edge nothing changes.
    middles = [(start + stop) / 2 for start, stop in pairwise(edges)] + [edges[-1]]
    phases = [(start, [line.at(middle) for line in lines]) for start, middle in zip(edges, middles, strict=True)]
    return [(start, [weight / sum(weights) for weight in weights]) for start, weights in phases]


class _Line:
    """The weight of one source by the step: points, each reached at once or in a line from the one before it."""

    def __init__(self, part: CorpusPart, step_after: Callable[[int], int]) -> None:
        points = {0: (part.weight, False)}
        for change in part.later:
            step = change.step if change.step is not None else step_after(change.tokens or 0)
            points[step] = change.weight, change.linear
        self.steps = list(points)
        self._points = list(points.values())

    def at(self, step: float) -> float:
        """The weight at a step, or between two."""
        index = bisect_right(self.steps, step) - 1
        weight, _ = self._points[index]
        if not self.is_sloped(step):
            return weight
        start, stop = self.steps[index : index + 2]
        return weight + (self._points[index + 1][0] - weight) * (step - start) / (stop - start)

    def is_sloped(self, step: float) -> bool:
        index = bisect_right(self.steps, step)
        return index < len(self.steps) and self._points[index][1]


def _check(step: int, weights: Sequence[float]) -> None:
    when = f" from step {step} on" if step else ""
    total = sum(weights)
    if not total:
        raise UserError(f"data.corpus: no source has a weight above 0{when}; a weight that works: 1.0")
    counts = largest_remainder(weights, FEWEST_SEEN)
    for weight, count in zip(weights, counts, strict=True):
        if weight and not count:
            raise UserError(
                f"data.corpus: weight {weight:g}{when} is less than 1/{FEWEST_SEEN} of the sum {total:g}, so that its part "
                f"would hardly be seen; a weight that works: {total / 1000:g}"
            )
