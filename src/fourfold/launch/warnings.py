"""Lines that a run says before it trains: what is allowed, and may not be what was meant.

Some are of a learning rate that a run does not reach, or leaves in a leap: phases of its schedule do not fit its steps.
"""

from collections.abc import Iterator, Sequence

from fourfold.config import ModelConfig, RunConfig, num_steps
from fourfold.config.optimizers import learning_rate

LEAST_JUMP = 0.01
"""A change of the learning rate from one step to the next, as a share of it, that is not the schedule's own."""


def phases_that_do_not_fit(config: RunConfig) -> Iterator[str]:
    """One line each, with values that fit. Steps count from 0, as in `learning_rate`."""
    section, steps = config.optimizer, num_steps(config)
    warmup, lr = section.warmup_steps, section.lr
    stated = f"optimizer.warmup_steps = {warmup} of a run of {steps} steps:"
    if warmup > steps:
        share = steps / warmup
        yield (
            f"{stated} the run ends within its warm-up, and its highest learning rate is {lr * share:g}, {share:.3g} of "
            f"optimizer.lr; what works: optimizer.warmup_steps={max(1, steps // 10)}"
        )
    elif section.schedule == "wsd" and warmup > steps - _decay_steps(section.decay_fraction, steps):
        yield (
            f"{stated} warm-up and the final decay over {_decay_steps(section.decay_fraction, steps)} steps "
            f"(optimizer.decay_fraction = {section.decay_fraction:g}) overlap, and the learning rate leaps where the one ends; "
            f"what works: {_beside_each_other(warmup, section.decay_fraction, steps)}"
        )
    elif section.schedule == "cosine" and warmup >= max(1, steps - 1) and section.min_lr_ratio < 1:
        yield (
            f"{stated} warm-up leaves no step for the decay, and the run ends at its highest learning rate, {lr:g}; what works: "
            f"optimizer.warmup_steps={steps // 10}"
        )


def _decay_steps(fraction: float, steps: int) -> int:
    """Steps of the final decay of `wsd`."""
    return max(1, round(fraction * steps))


def _beside_each_other(warmup: int, fraction: float, steps: int) -> str:
    """Keys with which warm-up and final decay do not overlap: a shorter warm-up, or a shorter decay where there is room."""
    decay, shorter = _decay_steps(fraction, steps), int((steps - warmup) / steps * 10**4) / 10**4
    works = [f"optimizer.warmup_steps={steps - decay}"] if decay < steps else []
    works += [f"optimizer.decay_fraction={shorter:g}"] if round(shorter * steps) else []
    return " or ".join(works) or f"optimizer.warmup_steps={steps // 10} optimizer.decay_fraction=0.2"


def other_schedule(before: RunConfig, now: RunConfig, step: int) -> str | None:
    """Warning that a run which goes on makes its next step at another learning rate than its schedule led to."""
    if step == 0:
        return None
    was = learning_rate(before.optimizer, step - 1, num_steps(before))
    same = learning_rate(now.optimizer, step - 1, num_steps(now))
    if abs(same - was) <= LEAST_JUMP * was:
        return None
    following = learning_rate(now.optimizer, step, max(num_steps(now), step + 1))
    return (
        f"the learning rate goes from {was:.3g} in step {step - 1} to {following:.3g} in step {step}: optimizer.schedule = "
        f"{now.optimizer.schedule} over {num_steps(now):,} steps, and the steps before were made over {num_steps(before):,}; to "
        f"hold the rate: --change optimizer.schedule=constant optimizer.lr={was:.3g}"
    )


def warnings_of(
    config: RunConfig, model: ModelConfig, before: RunConfig | None, step: int, seen: Sequence[str] = ()
) -> tuple[str, ...]:
    """Every warning of a run. `before`: the configuration under which the run has made `step` steps; `seen`: lines about its
    data and the machine's memory."""
    found = [*seen, _capacity(model), _tensor_scale(config), *phases_that_do_not_fit(config)]
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


def _capacity(model: ModelConfig) -> str | None:
    if model.capacity_factor is None:
        return None
    return (
        f"model.capacity_factor = {model.capacity_factor:g}: an expert drops the tokens beyond its capacity, counted in a rank's "
        f"microbatch, so losses depend on the layout; a value with which they do not: 0"
    )
