"""The arithmetic of segments and stages, in FLOPs: what models are divided by, and what timelines take for time without prices."""

from typing import TYPE_CHECKING

from fourfold.program.schedule import StageTimes

if TYPE_CHECKING:
    from fourfold.program.facts import Lowering


def segment_costs(facts: "Lowering") -> list[float]:
    """Forward and backward FLOPs of every segment; the head's backward does its forward too."""
    parts = [facts.footprint(segment) for segment in facts.segments]
    costs = [float(part.forward.flops + part.backward.flops) for part in parts]
    return [*costs[:-1], float(parts[-1].backward.flops)]


def stage_flops(facts: "Lowering") -> StageTimes:
    """How long each stage's forward, input gradient and weight gradient take; transfers as if free."""
    parts = [[facts.footprint(s) for s in facts.stage_segments(i)] for i in range(len(facts.stage_bounds))]
    return StageTimes(
        forward=tuple(float(sum(f.forward.flops for f in stage)) for stage in parts),
        input_gradient=tuple(float(sum(f.backward.flops - f.weight_gradient.flops for f in stage)) for stage in parts),
        weight_gradient=tuple(float(sum(f.weight_gradient.flops for f in stage)) for stage in parts),
        activations=tuple(float(sum(f.saved_bytes + f.output_bytes for f in stage)) for stage in parts),
        weight_activations=tuple(float(sum(f.deferred_bytes for f in stage)) for stage in parts),
    )
