"""The compute order of every pipeline rank, and the FLOPs of stages that `auto` takes for time."""

from collections.abc import Callable

from fourfold.model.footprint import Footprint
from fourfold.program.footprints import Footprints
from fourfold.program.schedule import Orders, StageTimes, schedule_orders
from fourfold.program.spec import StepSpec
from fourfold.program.stage_map import StageMap


def compute_orders(spec: StepSpec, stages: StageMap, footprints: Footprints) -> Orders:
    """Every rank's order, as the layout's schedule says."""
    layout = spec.layout
    times = stage_flops(stages, footprints) if layout.schedule == "auto" else None
    return schedule_orders(layout.schedule, layout.pp, layout.virtual_stages, layout.num_microbatches, times)


def stage_flops(stages: StageMap, footprints: Footprints) -> StageTimes:
    """FLOPs of each stage's forward, input gradient and weight gradient, as times without prices; transfers as if free."""
    parts = [[footprints.of(s, stages.policies[s.name]) for s in stage] for stage in stages.stages]

    def sums(number: Callable[[Footprint], int]) -> tuple[float, ...]:
        return tuple(float(sum(map(number, stage))) for stage in parts)

    return StageTimes(
        forward=sums(lambda f: f.forward.flops),
        input_gradient=sums(lambda f: f.backward.flops - f.weight_gradient.flops),
        weight_gradient=sums(lambda f: f.weight_gradient.flops),
        activations=sums(lambda f: f.saved_bytes + f.output_bytes),
        weight_activations=sums(lambda f: f.deferred_bytes),
    )
