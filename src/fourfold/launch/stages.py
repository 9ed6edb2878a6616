"""The stages of a run before they are launched: each one resolved, all of them for the same ranks and the same parameters."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from fourfold.config import RunConfig, UserError
from fourfold.config.stages import Course, Stage, course_of
from fourfold.launch.resolve import ResolvedRun, resolve_run
from fourfold.program import Fault, lower_pipeline, verify
from fourfold.program.spec import StepSpec, Transport


@dataclass(frozen=True)
class StagedRun:
    """A run with its stages. `config` is complete, the layouts of its stages too; `resolved`: each stage by itself."""

    config: RunConfig
    resolved: tuple[ResolvedRun, ...]

    @cached_property
    def course(self) -> Course:
        return course_of(self.config)

    def faults(self) -> Iterator[Fault]:
        """The verifier's faults of every stage, and of every batch on a ramp."""
        for stage, resolved in zip(self.course.stages, self.resolved, strict=True):
            yield from resolved.faults()
            for spec in self._growing(stage, resolved.spec):
                programs = lower_pipeline(spec)
                layout = spec.layout
                yield from verify({r: programs[layout.pp_rank(r)] for r in range(layout.world_size)}, spec)

    def _growing(self, stage: Stage, spec: StepSpec) -> Iterator[StepSpec]:
        """The steps of a stage whose batch is smaller than its last."""
        sizes = {each.sequences for each in self.course.batches_of(stage)}
        for sequences in sorted(sizes - {stage.config.batch.global_sequences}):
            yield spec.with_sequences(sequences)


def resolve_stages(
    config: RunConfig, ranks: int | None, vocab_size: int | None, transport: Transport = "exchange"
) -> StagedRun:
    """Completes and checks every stage of a run. Raises `UserError` naming the stage and the key."""
    course = course_of(config)
    resolved: list[ResolvedRun] = []
    for stage in course.stages:
        try:
            found = resolve_run(stage.config, ranks, vocab_size, transport)
            require_batches(course, stage, found)
            if resolved:
                require_alike(resolved[0], found)
        except UserError as error:
            raise UserError(f"{stage}: {error}" if config.stage else str(error), key=error.key) from None
        resolved.append(found)
        ranks = ranks if ranks is not None else found.layout.world_size
    sections = [
        section.model_copy(update={"layout": found.config.layout.model_dump(mode="json", exclude_none=True)})
        if section.layout
        else section
        for section, found in zip(config.stage, resolved, strict=bool(config.stage))
    ]
    return StagedRun(resolved[0].config.model_copy(update={"stage": sections}), tuple(resolved))


def require_batches(course: Course, stage: Stage, found: ResolvedRun) -> None:
    """Raises `UserError` where microbatches do not fill a batch of the stage."""
    per_microbatch = found.layout.data_degree * found.layout.microbatch_sequences
    for each in course.batches_of(stage):
        if each.sequences % per_microbatch:
            works = -(-each.sequences // per_microbatch) * per_microbatch
            raise UserError(
                f"batch.ramp: {each.sequences} sequences from step {each.step} on are not a multiple of dp_replicate x dp_shard x "
                f"microbatch_sequences = {per_microbatch}; a value that works: {works}"
            )


def require_alike(first: ResolvedRun, found: ResolvedRun) -> None:
    """Raises `UserError` where a stage cannot take over the state of the one before it, on the same ranks."""
    if found.layout.world_size != first.layout.world_size:
        raise UserError(
            f"its layout has {found.layout.world_size} ranks, and the run has {first.layout.world_size}; allowed: as many; what "
            f"works: leave layout.dp_shard out, which then fills the ranks"
        )
    ours, theirs = (
        [(p.name, p.shape) for s in each.spec.segments for unit in s.own for p in unit.parameters]
        for each in (found, first)
    )
    if ours != theirs:
        changed = next((mine for mine, other in zip(ours, theirs, strict=False) if mine != other), (ours + theirs)[-1])
        raise UserError(
            f"the parameter {changed[0]} {list(changed[1])} is not what the stage before it left; what works: the model's shape "
            f"as it was"
        )
