"""Lines that a run says before it trains: what is allowed, and may not be what was meant.

Some are of a learning rate that a run does not reach, or leaves in a leap: phases of its schedule do not fit its steps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fourfold.config import ModelConfig, RunConfig
from fourfold.config.learning_rate import learning_rate, phase_steps
from fourfold.config.optimizers import OptimizerSection
from fourfold.config.stages import course_of

LEAST_JUMP = 0.01
"""A change of the learning rate from one step to the next, as a share of it, that is not the schedule's own."""


def phases_that_do_not_fit(config: RunConfig) -> Iterator[str]:
    """One line each, with values that fit; of every schedule that a stage begins. Steps count from 0, as in `learning_rate`."""
    for stage, span in course_of(config).schedules:
        section = stage.config.optimizer
        if section.horizon_steps is not None and span.begin + section.horizon_steps <= span.end:
            span = replace(span, end=span.begin + section.horizon_steps)
        steps = span.end - span.begin
        warmup, decay, lr = *phase_steps(section, span), section.lr
        key = "warmup_steps" if section.warmup_tokens is None else "warmup_tokens"
        of = f"a run of {steps} steps" if not config.stage else f"{stage}, whose schedule has {steps} steps"
        stated = f"optimizer.{key} = {getattr(section, key)} of {of}:"
        in_tokens = "" if section.warmup_tokens is None else " (instead of optimizer.warmup_tokens)"
        if warmup > steps:
            share = learning_rate(section, span.end - 1, span) / lr
            yield (
                f"{stated} the run ends within its warm-up, and its highest learning rate is {lr * share:g}, {share:.3g} of "
                f"optimizer.lr; what works: optimizer.warmup_steps={max(1, steps // 10)}{in_tokens}"
            )
        elif decay is not None and warmup > steps - decay:
            stated_decay = f" (optimizer.decay_fraction = {section.decay_fraction:g})" if _is_share(section) else ""
            yield (
                f"{stated} warm-up and the final decay over {decay} steps{stated_decay} overlap, and the learning rate leaps "
                f"where the one ends; what works: {_beside_each_other(warmup, decay, steps, _is_share(section))}{in_tokens}"
                f"{'' if section.decay_tokens is None else ' (instead of optimizer.decay_tokens)'}"
            )
        elif decay is None and _decays(section) and warmup >= max(1, steps - 1) and section.min_lr_ratio < 1:
            yield (
                f"{stated} warm-up leaves no step for the decay, and the run ends at its highest learning rate, {lr:g}; what "
                f"works: optimizer.warmup_steps={steps // 10}{in_tokens}"
            )


def _decays(section: OptimizerSection) -> bool:
    """Whether the rate falls from warm-up to the end."""
    return section.schedule in ("cosine", "linear")


def _is_share(section: OptimizerSection) -> bool:
    """Whether the final decay is stated as a share of the steps."""
    return section.decay_steps is None and section.decay_tokens is None


def _beside_each_other(warmup: int, decay: int, steps: int, is_share: bool) -> str:
    """Keys with which warm-up and final decay do not overlap: a shorter warm-up, or a shorter decay where there is room."""
    shorter = int((steps - warmup) / steps * 10**4) / 10**4
    works = [f"optimizer.warmup_steps={steps - decay}"] if decay < steps else []
    works += [f"optimizer.decay_fraction={shorter:g}"] if is_share and round(shorter * steps) else []
    if works:
        return " or ".join(works)
    short = "optimizer.decay_fraction=0.2" if is_share else f"optimizer.decay_steps={max(1, steps // 5)}"
    return f"optimizer.warmup_steps={steps // 10} {short}"


def other_schedule(before: RunConfig, now: RunConfig, step: int) -> str | None:
    """Warning that a run which goes on makes its next step at another learning rate than its schedule led to."""
    if step == 0:
        return None
    old, new = course_of(before), course_of(now)
    was, same = old.learning_rate(step - 1), new.learning_rate(step - 1)
    if abs(same - was) <= LEAST_JUMP * was:
        return None
    following = new.learning_rate(step)
    return (
        f"the learning rate goes from {was:.3g} in step {step - 1} to {following:.3g} in step {step}: optimizer.schedule = "
        f"{new.stage_at(step).config.optimizer.schedule} over {new.steps:,} steps, and the steps before were made over "
        f"{old.steps:,}; to hold the rate: --change optimizer.schedule=constant optimizer.lr={was:.3g}"
    )


def warnings_of(
    config: RunConfig, model: ModelConfig, before: RunConfig | None, step: int, seen: Sequence[str] = ()
) -> tuple[str, ...]:
    """Every warning of a run. `before`: the configuration under which the run has made `step` steps; `seen`: lines about its
    data and the machine's memory."""
    found = [
        *seen,
        _capacity(model),
        _tensor_scale(config),
        _no_way_back(config),
        _endless_ramp(config),
        *phases_that_do_not_fit(config),
    ]
    found.append(other_schedule(before, config, step) if before is not None else None)
    return tuple(f"warning: {line}" for line in found if line is not None)


def memory_line(peak_bytes: int, ranks: int, available: int | None, where: str) -> list[str]:
    """Warning that so many ranks need more memory than there is `where` they run; of a device its context, and what its allocator
    leaves between buffers, is not counted."""
    if available is None or peak_bytes * ranks <= available:
        return []
    needs = (
        f"{ranks} ranks with a predicted peak of {peak_bytes / 1e9:.2f} GB each need {peak_bytes * ranks / 1e9:.2f} GB"
    )
    if ranks == 1:
        needs = f"a rank has a predicted peak of {peak_bytes / 1e9:.2f} GB"
    return [
        f"{needs}, {where} has {available / 1e9:.2f} GB; a higher layout.zero, layout.recompute = full or a smaller "
        f"layout.microbatch_sequences needs less"
    ]


def _tensor_scale(config: RunConfig) -> str | None:
    if config.precision.gemm_dtype != "fp8":
        return None
    return (
        "precision.gemm_dtype = fp8: the numbers of a microbatch share a scale, so the rounding of losses depends on "
        "layout.microbatch_sequences; values with which it does not: mxfp8, fp8-block"
    )


def _no_way_back(config: RunConfig) -> str | None:
    section, checkpoint = config.spikes, config.checkpoint
    reach = (checkpoint.every_steps or 0) * (checkpoint.keep - 1)
    if section.policy != "rollback" or reach >= section.rollback_steps or checkpoint.keep_every_steps is not None:
        return None
    every = checkpoint.every_steps or section.rollback_steps
    return (
        f"spikes.policy = rollback goes back {section.rollback_steps} steps, and the checkpoints that are kept reach back {reach}; "
        f"what works: checkpoint.every_steps={every} checkpoint.keep={1 + -(-section.rollback_steps // every)}"
    )


def _endless_ramp(config: RunConfig) -> str | None:
    course = course_of(config)
    own = course.stages[-1].config.batch
    last = course.batches[-1].sequences
    if not own.ramp or last == own.global_sequences:
        return None
    return (
        f"batch.ramp: the run ends, at step {course.steps}, before its ramp does: its last batch has {last} sequences, and none "
        f"batch.global_sequences = {own.global_sequences}; what works: an earlier end of the ramp, or batch.global_sequences={last}"
    )


def _capacity(model: ModelConfig) -> str | None:
    if model.capacity_factor is None:
        return None
    return (
        f"model.capacity_factor = {model.capacity_factor:g}: an expert drops the tokens beyond its capacity, counted in a rank's "
        f"microbatch, so losses depend on the layout; a value with which they do not: 0"
    )
