"""Lines that a run says before it trains: what is allowed, and may not be what was meant."""

from collections.abc import Sequence

from fourfold.config import ModelConfig, RunConfig, num_steps
from fourfold.config.optimizers import learning_rate

LEAST_JUMP = 0.01
"""A change of the learning rate from one step to the next, as a share of it, that is not the schedule's own."""


def warnings_of(
    config: RunConfig, model: ModelConfig, before: RunConfig | None, step: int, memory: Sequence[str] = ()
) -> tuple[str, ...]:
    """All of them. `before`: the configuration under which the run has made `step` steps; `memory`: what the machine's memory gives
    cause to say."""
    found = [*memory, _capacity(model), _other_schedule(before, config, step) if before is not None else None]
    return tuple(f"warning: {line}" for line in found if line is not None)


def device_memory_line(peak_bytes: int, available: int | None) -> list[str]:
    """That a rank needs more memory than its device has, its context and what its allocator leaves between buffers not counted."""
    if available is None or peak_bytes <= available:
        return []
    return [
        f"a rank has a predicted peak of {peak_bytes / 1e9:.2f} GB, its device {available / 1e9:.2f} GB in all; a higher "
        f"layout.zero, layout.recompute = full or a smaller layout.microbatch_sequences needs less"
    ]


def memory_line(peak_bytes: int, local_ranks: int, available: int | None) -> list[str]:
    """That the ranks of this machine need more memory than it has."""
    if available is None or peak_bytes * local_ranks <= available:
        return []
    return [
        f"{local_ranks} ranks with a predicted peak of {peak_bytes / 1e9:.2f} GB each need "
        f"{peak_bytes * local_ranks / 1e9:.2f} GB, this machine has {available / 1e9:.2f} GB; a higher layout.zero, "
        f"layout.recompute = full or a smaller layout.microbatch_sequences needs less"
    ]


def _capacity(model: ModelConfig) -> str | None:
    if model.capacity_factor is None:
        return None
    return (
        f"model.capacity_factor = {model.capacity_factor:g}: an expert drops the tokens beyond its capacity, counted in a rank's "
        f"microbatch, so losses depend on the layout; a value with which they do not: 0"
    )


def _other_schedule(before: RunConfig, now: RunConfig, step: int) -> str | None:
    """That a run which goes on makes its next step at another learning rate than its schedule led to."""
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
