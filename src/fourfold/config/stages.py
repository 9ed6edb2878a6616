"""The course of a run: its stages, the global batch of every step, and what was read before it.

    [batch], ramp, [[stage]] ─► Course ─► stage, batch, tokens and sequences before any step ─► data, learning rate, programs

Everything is a pure function of the run file and the step. A stage's keys hold from its first step on, until a later stage states
them again."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from fourfold.config.errors import UserError
from fourfold.config.learning_rate import SpanOfSteps, check_horizon, learning_rate
from fourfold.config.run_file import parse_run
from fourfold.config.schema import BatchSection, RampPoint, RunConfig, StageSection
from fourfold.config.stage_tables import OF_SCHEDULE, stage_table

STAGE = "stage"
"""The key of a run's `data.json` that says which stage is trained, from 0."""


@dataclass(frozen=True)
class Batches:
    """Steps with one batch, of `sequences` x `length` tokens. `step`, `tokens`, `samples`: what the run has behind it before the
    first of them; `end`: the step behind the last."""

    step: int
    end: int
    sequences: int
    length: int
    tokens: int
    samples: int

    @property
    def step_tokens(self) -> int:
        return self.sequences * self.length


@dataclass(frozen=True)
class Stage:
    """Steps `begin` to `end` - 1 of a run, which share every key. `config`: the run as they make it; `schedules`: whether it states
    a schedule of the learning rate, which begins with it."""

    number: int
    begin: int
    end: int
    config: RunConfig
    name: str = ""
    schedules: bool = False

    def __str__(self) -> str:
        return f"stage {self.number + 1}{self.name and f' ({self.name})'}"


@dataclass(frozen=True)
class Course:
    """The stages of a run, and its batches, in order."""

    stages: tuple[Stage, ...]
    batches: tuple[Batches, ...]

    @property
    def steps(self) -> int:
        """Steps of the full run."""
        return self.stages[-1].end

    @property
    def tokens(self) -> int:
        """Tokens of the full run."""
        return self.tokens_before(self.steps)

    def stage_at(self, step: int) -> Stage:
        """The stage of a step; the last one's behind the end."""
        number = bisect_right(self.stages, step, key=lambda stage: stage.begin) - 1
        return self.stages[max(0, number)]

    def batch_at(self, step: int) -> Batches:
        """The batch of a step; the last one's behind the end."""
        return self.batches[max(0, bisect_right(self.batches, step, key=lambda each: each.step) - 1)]

    def tokens_before(self, step: int) -> int:
        """Tokens of all steps before one."""
        found = self.batch_at(step)
        return found.tokens + (step - found.step) * found.step_tokens

    def samples_before(self, step: int) -> int:
        """Sequences of all steps before one."""
        found = self.batch_at(step)
        return found.samples + (step - found.step) * found.sequences

    def step_after(self, tokens: int) -> int:
        """The first step before which so many tokens were read."""
        found = self.batches[max(0, bisect_right(self.batches, tokens, key=lambda each: each.tokens) - 1)]
        return found.step + max(0, -(-(tokens - found.tokens) // found.step_tokens))

    def batches_of(self, stage: Stage) -> list[Batches]:
        """The batches of a stage, in order."""
        return [each for each in self.batches if stage.begin <= each.step < stage.end]

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step."""
        number = bisect_right(self.schedules, step, key=lambda schedule: schedule[0].begin) - 1
        return learning_rate(self.stage_at(step).config.optimizer, step, self.schedules[max(0, number)][1])

    @cached_property
    def schedules(self) -> tuple[tuple[Stage, SpanOfSteps], ...]:
        """Every schedule of the learning rate: the stage that begins it, and its steps."""
        begun = [stage for stage in self.stages if stage.number == 0 or stage.schedules]
        found: list[tuple[Stage, SpanOfSteps]] = []
        for stage, end in zip(begun, [*(stage.begin for stage in begun[1:]), self.steps], strict=True):
            before = None
            if found:
                before = learning_rate(self.stages[stage.number - 1].config.optimizer, stage.begin, found[-1][1])
            found.append((stage, SpanOfSteps(stage.begin, end, self.tokens_before, self.step_after, before)))
        return tuple(found)


def course_of(config: RunConfig) -> Course:
    """The course of a run. Raises `UserError` where its length, its stages or its ramp are not stated as they must be."""
    total = _total(config)
    stages: list[Stage] = []
    batches: list[Batches] = []
    at = _Reached()
    sections = config.stage or [StageSection()]
    for number, (section, own) in enumerate(zip(sections, stage_configs(config), strict=True)):
        where = f"stage {number + 1}"
        until = _until(section, where, is_last=number == len(sections) - 1) or total
        begin = at.step
        batches += _batches(own.batch, at, until, where if config.stage else "the run")
        stages.append(Stage(number, begin, at.step, own, section.name, "schedule" in section.optimizer))
    course = Course(tuple(stages), tuple(batches))
    _require_end(course, total)
    for stage, span in course.schedules:
        check_horizon(stage.config.optimizer, span)
    return course


def stage_configs(config: RunConfig) -> list[RunConfig]:
    """The run as each stage makes it, without its list of stages. Raises `UserError` for a key that a stage does not change, or a
    value that it cannot have."""
    if not config.stage:
        return [config]
    table = config.model_dump(mode="json", exclude_unset=True)
    return [parse_run(stage_table(table, number), f"stage {number}") for number in range(1, len(config.stage) + 1)]


def num_steps(config: RunConfig) -> int:
    """Steps of the run: `batch.steps`, or as many as `batch.tokens` needs. Raises `UserError` unless exactly one is stated."""
    return course_of(config).steps


@dataclass
class _Reached:
    """Steps, tokens and sequences behind the run so far."""

    step: int = 0
    tokens: int = 0
    samples: int = 0

    def of(self, unit: str) -> int:
        return {"steps": self.step, "tokens": self.tokens, "sequences": self.samples}[unit]


Limit = tuple[str, int | Fraction]
"""A unit, and how many of it."""


def _total(config: RunConfig) -> Limit:
    batch = config.batch
    if batch.steps is not None and batch.tokens is not None:
        raise UserError(
            f"batch.steps = {batch.steps} and batch.tokens = {batch.tokens} are both stated; keep one of them"
        )
    if batch.steps is None and batch.tokens is None:
        raise UserError(
            "batch.steps is missing: it says how long to train; a value that works: steps = 1000 (or tokens = ...)"
        )
    return ("steps", batch.steps) if batch.steps is not None else ("tokens", batch.tokens or 0)


def _until(section: StageSection, where: str, is_last: bool) -> Limit | None:
    stated = [(unit, end) for unit in ("steps", "tokens") if (end := getattr(section, f"until_{unit}")) is not None]
    if len(stated) > 1:
        raise UserError(
            f"{where}: until_steps = {section.until_steps} and until_tokens = {section.until_tokens} are both stated; keep one "
            f"of them"
        )
    if not stated and not is_last:
        raise UserError(
            f"{where}: until_steps is missing: every stage but the last says where it ends, counted from the run's start; a "
            f"value that works: until_steps = 1000 (or until_tokens = ...)"
        )
    return stated[0] if stated else None


def _require_end(course: Course, total: Limit) -> None:
    """The last stage ends with the run."""
    unit, size = total
    last, step = course.stages[-1], course.steps
    end, before = (step, step - 1) if unit == "steps" else (course.tokens, course.tokens_before(step - 1))
    if end < size:
        raise UserError(
            f"{last} ends at step {step}, and batch.{unit} = {size} is the length of the run; what works: leave the last "
            f"stage's until_steps out, or another [[stage]]"
        )
    if before >= size:
        raise UserError(
            f"{last} ends at step {step}, beyond batch.{unit} = {size}, the length of the run; what works: leave the last "
            f"stage's until_steps out, or a longer run"
        )


def _batches(batch: BatchSection, at: _Reached, until: Limit, where: str) -> Iterator[Batches]:
    """Runs of equal batches until the limit; moves `at`."""
    unit, size = until
    if at.of(unit) >= size:
        raise UserError(
            f"{where} has no step: it ends at {size} {unit}, and {at.of(unit)} are behind it when it begins; what works: a "
            f"later end"
        )
    ramp = list(_sizes(batch))
    while at.of(unit) < size:
        step = next(((end, sequences) for end, sequences in ramp if at.of(end[0]) < end[1]), None)
        limits = [until] if step is None else [until, step[0]]
        sequences = batch.global_sequences if step is None else step[1]
        per_step = {"steps": 1, "tokens": sequences * batch.sequence_length, "sequences": sequences}
        count = min(-int(-(end - at.of(each)) // per_step[each]) for each, end in limits)
        yield Batches(at.step, at.step + count, sequences, batch.sequence_length, at.tokens, at.samples)
        at.step, at.tokens, at.samples = (
            at.step + count,
            at.tokens + count * per_step["tokens"],
            at.samples + count * sequences,
        )


def _sizes(batch: BatchSection) -> Iterator[tuple[Limit, int]]:
    """The sizes of a ramp, each with its end."""
    before: tuple[str, int] | None = None
    for number, point in enumerate(batch.ramp):
        unit, until = _end_of(point, number)
        follows = batch.ramp[number + 1].global_sequences if number + 1 < len(batch.ramp) else batch.global_sequences
        begin = before[1] if before is not None else 0
        if before is not None and (before[0] != unit or begin >= until):
            raise UserError(
                f"batch.ramp: point {number + 1} ends at {until} {unit}, and the one before it at {begin} {before[0]}; allowed: "
                f"rising ends in one unit"
            )
        before = unit, until
        if point.by is None:
            yield (unit, until), point.global_sequences
            continue
        rise = follows - point.global_sequences
        if rise <= 0 or rise % point.by:
            raise UserError(
                f"batch.ramp: point {number + 1} rises by = {point.by} from {point.global_sequences} to {follows} sequences, "
                f"which is not a whole number of times; a value that works: by = {max(1, rise)}"
            )
        count = rise // point.by
        for part in range(count):
            end = begin + Fraction((until - begin) * (part + 1), count)
            yield (unit, end), point.global_sequences + part * point.by


def _end_of(point: RampPoint, number: int) -> tuple[str, int]:
    units = ("steps", "tokens", "sequences")
    stated = [(unit, end) for unit in units if (end := getattr(point, f"until_{unit}")) is not None]
    if len(stated) != 1:
        raise UserError(
            f"batch.ramp: point {number + 1} states {len(stated)} of until_steps, until_tokens and until_sequences; allowed: "
            f"one; a value that works: {{ global_sequences = {point.global_sequences}, until_steps = 100 }}"
        )
    return stated[0]


def decayed(config: RunConfig, step: int, steps: int) -> RunConfig:
    """The run whose learning rate falls to 0 in the `steps` steps from step `step` on, with which it ends; what was made before it
    stays as it was."""
    course = course_of(config)
    stage = course.stage_at(step)
    kept = list(config.stage[: stage.number + 1]) or [StageSection()]
    optimizer = config.optimizer
    last = course.stage_at(step - 1).number
    begin, span = next((each, span) for each, span in reversed(course.schedules) if each.number <= last)
    if optimizer.horizon_steps is None and begin.number == 0 and "schedule" not in kept[0].optimizer:
        optimizer = optimizer.model_copy(update={"horizon_steps": span.end - span.begin})
    else:
        stated = {"horizon_steps": span.end - span.begin, **kept[begin.number].optimizer}
        kept[begin.number] = kept[begin.number].model_copy(update={"optimizer": stated})
    if stage.begin < step:
        kept[-1] = kept[-1].model_copy(update={"until_steps": step, "until_tokens": None})
        kept.append(StageSection(name="decay"))
    others = {key: value for key, value in kept[-1].optimizer.items() if key not in OF_SCHEDULE}
    decay = {**others, "schedule": "decay", "min_lr_ratio": 0.0}
    kept[-1] = kept[-1].model_copy(update={"optimizer": decay, "until_steps": None, "until_tokens": None})
    batch = config.batch.model_copy(update={"steps": step + steps, "tokens": None})
    found = config.model_copy(update={"optimizer": optimizer, "batch": batch, "stage": kept})
    after = course_of(found)
    looked = {
        *range(0, step, max(1, step // 100)),
        *(each.step for each in course.batches if each.step < step),
        step - 1,
    }
    if any(course.learning_rate(each) != after.learning_rate(each) for each in looked):
        raise UserError(
            f"--decay {steps}: the schedule counts tokens, and the stages to come have other batches, so that without them its "
            f"rates "
            f"before step {step} would have been others; what works: a last [[stage]] with optimizer.schedule = 'decay' in the "
            f"run file"
        )
    return found
