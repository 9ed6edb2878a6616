"""Where a stage's samples begin: how far the stages before it have read each of its sources.

Stages that follow each other with the same blend and length are one row of samples. A source that comes again, in windows of the
same length, goes on where it was left, in the same shuffle. In windows of another length its text is cut anew, and shuffled anew.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fourfold.config import RunConfig
from fourfold.config.schema import CorpusPart, SkippedData
from fourfold.config.stages import Course, Stage
from fourfold.data.batches import Blend, SamplePlace

Source = tuple[str, int]
"""The name of a part of a blend, and which of the parts with that name it is."""


@dataclass(frozen=True)
class _Row:
    """Stages with one blend and one length, one after the other. `samples`: of the run, before the first of them, with those that
    were left out."""

    sources: tuple[Source, ...]
    weights: tuple[float, ...]
    length: int
    begin: int
    samples: int


def place_of(course: Course, stage: Stage, skips: Sequence[SkippedData] = ()) -> SamplePlace:
    """The place of a stage's samples: a pure function of the run file and of `skips`, the data that are left out."""
    behind = partial(_behind, course, skips)
    rows = list(_rows(course, behind))
    index = max(number for number, row in enumerate(rows) if row.begin <= stage.begin)
    own = rows[index]
    drawn = dict.fromkeys(own.sources, 0)
    keys: dict[Source, int] = {}
    for number, row in enumerate(rows):
        for source in row.sources:
            keys.setdefault(source, len(keys))
        if number < index and row.length == own.length:
            read = Blend(row.weights).drawn(rows[number + 1].samples - row.samples)
            for source, count in zip(row.sources, read, strict=True):
                drawn[source] = drawn.get(source, 0) + count
    return SamplePlace(
        first=lambda step: behind(step, inclusive=True) - own.samples,
        size=lambda step: course.batch_at(step).sequences,
        drawn=tuple(drawn[source] for source in own.sources),
        keys=tuple(keys[source] for source in own.sources),
    )


def _behind(course: Course, skips: Sequence[SkippedData], step: int, inclusive: bool = False) -> int:
    """Samples of the run before a step, and left out before it; `inclusive`: right before it too."""
    left_out = sum(skip.sequences for skip in skips if skip.step < step or (inclusive and skip.step == step))
    return course.samples_before(step) + left_out


def _rows(course: Course, behind: Callable[[int], int]) -> Iterator[_Row]:
    before: _Row | None = None
    for stage in course.stages:
        parts = _parts(stage.config)
        names = [path for path, _ in parts]
        sources = tuple((name, names[:place].count(name)) for place, name in enumerate(names))
        weights, length = tuple(weight for _, weight in parts), stage.config.batch.sequence_length
        if before is not None and (before.sources, before.weights, before.length) == (sources, weights, length):
            continue
        before = _Row(sources, weights, length, stage.begin, behind(stage.begin))
        yield before


def _parts(config: RunConfig) -> list[tuple[str, float]]:
    corpus = config.data.corpus
    parts = [CorpusPart(path=corpus)] if isinstance(corpus, str) else corpus
    return [(part.path, part.weight) for part in parts]
