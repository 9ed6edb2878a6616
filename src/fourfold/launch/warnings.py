"""Lines that a run says before it trains: what is allowed, and may not be what was meant."""

from collections.abc import Sequence

from fourfold.config import ModelConfig, RunConfig
from fourfold.launch.rates import other_schedule, phases_that_do_not_fit


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
