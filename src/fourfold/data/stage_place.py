"""Where a stage's samples begin: how far the stages before it have read each of its sources, and the weights that these have.

Stages that follow each other with the same blend and length are one row of samples. A source that comes again, in windows of the
same length, goes on where it was left, in the same shuffle. In windows of another length its text is cut anew, and shuffled anew.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fourfold.config import RunConfig
from fourfold.config.schema import CorpusPart, SkippedData
from fourfold.config.stages import Course, Stage, course_of
from fourfold.data.blend import Blend
from fourfold.data.weights import Phase, shares_by_step, sources_of, weight_phases

Source = tuple[str, int]
"""The name of a part of a blend, and which of the parts with that name it is."""


@dataclass(frozen=True)
class SamplePlace:
    """Which samples a step has, and where each part of the blend stands. `first`: the number of a step's first sample; `size`: how
    many it has; `phases`: of the weights, by samples; `drawn`: windows of each part that were read before sample 0; `keys`: the
    number of each part by which it is shuffled; `begin`: the step of sample 0."""

    first: Callable[[int], int]
    size: Callable[[int], int]
    phases: Sequence[Phase]
    drawn: tuple[int, ...]
    keys: tuple[int, ...]
    begin: int = 0

    @staticmethod
    def of_equal_steps(sequences: int, phases: Sequence[Phase]) -> "SamplePlace":
        """The place of a run whose steps all have as many sequences."""
        parts = len(phases[0][1])
        return SamplePlace(
            lambda step: step * sequences, lambda step: sequences, phases, (0,) * parts, tuple(range(parts))
        )


@dataclass(frozen=True)
class _Row:
    """Stages with one blend and one length, one after the other. `samples`: of the run, before the first of them, with those that
    were left out."""

    parts: tuple[CorpusPart, ...]
    phases: tuple[Phase, ...]
    length: int
    begin: int
    samples: int

    @property
    def sources(self) -> list[Source]:
        names = [part.path for part in self.parts]
        return [(name, names[:place].count(name)) for place, name in enumerate(names)]


def place_of_run(config: RunConfig) -> SamplePlace:
    """The place of the samples of a run of one stage. Raises `UserError`."""
    if (
        config.batch.steps is None and config.batch.tokens is None
    ):  # how long it is does not matter to it, unless a ramp does
        return SamplePlace.of_equal_steps(config.batch.global_sequences, weight_phases(config))
    course = course_of(config)
    return place_of(course, course.stages[0])


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
            read = Blend(row.phases).drawn(rows[number + 1].samples - row.samples)
            for source, count in zip(row.sources, read, strict=True):
                drawn[source] = drawn.get(source, 0) + count
    return SamplePlace(
        first=lambda step: behind(step, inclusive=True) - own.samples,
        size=lambda step: course.batch_at(step).sequences,
        phases=own.phases,
        drawn=tuple(drawn[source] for source in own.sources),
        keys=tuple(keys[source] for source in own.sources),
        begin=own.begin,
    )


def _behind(course: Course, skips: Sequence[SkippedData], step: int, inclusive: bool = False) -> int:
    """Samples of the run before a step, and left out before it; `inclusive`: right before it too."""
    left_out = sum(skip.sequences for skip in skips if skip.step < step or (inclusive and skip.step == step))
    return course.samples_before(step) + left_out


def _rows(course: Course, behind: Callable[..., int]) -> Iterator[_Row]:
    before: tuple[object, int] | None = None
    for stage in course.stages:
        config, length = stage.config, stage.config.batch.sequence_length
        if before == (config.data.corpus, length):
            continue
        before = config.data.corpus, length
        samples = behind(stage.begin)
        shares = shares_by_step(config.data, course.step_after)
        now = max(index for index, (step, _) in enumerate(shares) if step <= stage.begin)
        later = [(behind(step, inclusive=True) - samples, weights) for step, weights in shares[now + 1 :]]
        phases = ((0, shares[now][1]), *later)
        yield _Row(tuple(sources_of(config.data)), phases, length, stage.begin, samples)
