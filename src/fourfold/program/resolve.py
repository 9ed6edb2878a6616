"""From a run's config, model and layout to the spec of its step: the segments are divided among the stages here."""

from dataclasses import replace

from fourfold.config import ModelConfig, RunConfig
from fourfold.layout import Layout
from fourfold.program.footprints import Footprints
from fourfold.program.schedule import check_schedule, stage_ranks
from fourfold.program.spec import StepSpec, Transport
from fourfold.program.stages import stage_sizes


def resolve_step(config: RunConfig, model: ModelConfig, layout: Layout, transport: Transport = "exchange") -> StepSpec:
    """The step of a run, its layout complete with stages and their ranks. Raises `UserError` for a schedule that cannot be."""
    precision = config.precision
    check_schedule(layout.schedule, layout.pp, layout.virtual_stages, layout.num_microbatches)
    spec = StepSpec(
        model,
        layout,
        precision.compute,
        precision.master_format,
        precision.gradients_format,
        config.data.document_mask,
        transport,
    )
    placed = replace(
        layout,
        stages=stage_sizes(config.layout.segments_per_stage, _segment_costs(spec), layout, model.mtp_layers),
        stage_ranks=stage_ranks(layout.schedule, layout.pp, layout.virtual_stages),
    )
    return replace(spec, layout=placed)


def _segment_costs(spec: StepSpec) -> list[float]:
    """Forward and backward FLOPs of every segment; the head's backward does its forward too."""
    footprints = Footprints(spec.model, spec.shape)
    policies = spec.layout.recompute
    parts = [footprints.of(segment, policy) for segment, policy in zip(spec.segments, policies, strict=True)]
    costs = [float(part.forward.flops + part.backward.flops) for part in parts]
    return [*costs[:-1], float(parts[-1].backward.flops)]
