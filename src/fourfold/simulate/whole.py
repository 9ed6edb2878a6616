"""How much of a step is simulated: bounds on what a request may ask for, and the whole step where every event is wanted."""

from fourfold.config import ModelConfig, UserError
from fourfold.program.spec import StepSpec
from fourfold.simulate.prediction import StepPrediction, simulated_microbatches
from fourfold.simulate.step import Simulation, simulate

MAX_SEGMENT_PASSES = 400_000
"""Segments x microbatches of one simulation: some five million instructions."""
MAX_LAYERS = 10_000
TRACE_INSTRUCTIONS = 2_000_000
"""A trace has all microbatches of a step up to so many instructions."""


def check_layers(model: ModelConfig) -> None:
    """Raises `UserError` where a model has more blocks than are worth dividing among stages."""
    if model.num_layers > MAX_LAYERS:
        raise UserError(
            f"model.num_layers = {model.num_layers}: too many to simulate; allowed: 1 to {MAX_LAYERS}; a value that works: 126"
        )


def check_size(spec: StepSpec) -> None:
    """Raises `UserError` where a simulation would not end in reasonable time."""
    number, segments = simulated_microbatches(spec), len(spec.segments)
    if number * segments <= MAX_SEGMENT_PASSES:
        return
    layout = spec.layout
    fewer = max(1, MAX_SEGMENT_PASSES // segments)
    raise UserError(
        f"{number} microbatches of {segments} segments are too much to simulate (pp = {layout.pp}, schedule {layout.schedule!r}); "
        f"allowed: segments x microbatches up to {MAX_SEGMENT_PASSES}; what works: larger layout.microbatch_sequences or a smaller "
        f"batch.global_sequences with at most {fewer} microbatches a rank, or less pp"
    )


def step_for_trace(spec: StepSpec, step: StepPrediction) -> tuple[Simulation, str]:
    """The step with all its microbatches, or, where they are too many, the part that was simulated already; and what is cut."""
    if step.is_full:
        return step.simulation, ""
    simulated, wanted = step.simulation.spec.layout.num_microbatches, spec.layout.num_microbatches
    instructions = sum(len(program.instructions) for program in step.simulation.programs)
    expected = instructions * wanted // simulated
    if expected <= TRACE_INSTRUCTIONS:
        return simulate(spec, step.simulation.prices), ""
    cut = (
        f"\nit shows {simulated} of {wanted} microbatches: all of them are some {expected:,} instructions, and a trace has at most "
        f"{TRACE_INSTRUCTIONS:,}"
    )
    return step.simulation, cut
