"""How a run's config becomes a StepSpec: formats, schedule, stages, and what the capabilities keep of it."""

from dataclasses import replace

from fourfold.config import ModelConfig, RunConfig, UserError
from fourfold.config.schema import PrecisionSection
from fourfold.layout import Layout, check_stages
from fourfold.model.low_precision import GRADIENTS, GemmRecipe
from fourfold.program.capabilities import CAPABILITIES
from fourfold.program.footprints import Footprints
from fourfold.program.schedule import check_schedule, find_schedule, stage_ranks
from fourfold.program.spec import StepSpec, Transport
from fourfold.program.stages import stage_sizes


def resolve_step(config: RunConfig, model: ModelConfig, layout: Layout, transport: Transport = "exchange") -> StepSpec:
    """The step of a run, its layout complete with stages and their ranks. Raises `UserError` for a schedule that cannot be, and for
    what a capability refuses."""
    precision = config.precision
    if config.layout.virtual_stages is None:
        layout = replace(layout, virtual_stages=find_schedule(layout.schedule).min_virtual_stages)
        check_stages(layout.pp, layout.virtual_stages, model)
    if model.mup_base_hidden_size is not None and config.optimizer.name != "adamw":
        raise UserError(
            f"model.mup_base_hidden_size = {model.mup_base_hidden_size}: muP's learning rates are those of AdamW, and "
            f"optimizer.name = '{config.optimizer.name}'; what works: optimizer.name=adamw, or no mup_base_hidden_size"
        )
    spec = StepSpec(
        model,
        layout,
        precision.compute,
        precision.master_format,
        precision.gradients_format,
        config.data.document_mask,
        transport,
        config.optimizer.step_spec,
        recipe=gemm_recipe(precision, transport),
    )
    check_schedule(
        layout.schedule, layout.pp, layout.virtual_stages, -(-layout.num_microbatches // spec.microbatches_per_slot)
    )
    for each in CAPABILITIES:
        spec = each.resolve(config, spec) if each.resolve else spec
    placed = replace(
        layout,
        segments_per_stage=stage_sizes(
            config.layout.segments_per_stage, _segment_costs(spec), layout, model.mtp_layers
        ),
        stage_ranks=stage_ranks(layout.schedule, layout.pp, layout.virtual_stages),
    )
    return replace(spec, layout=placed)


def gemm_recipe(precision: PrecisionSection, transport: Transport) -> GemmRecipe | None:
    """Kernels multiply on accelerators that compute in 16 bits; elsewhere the rounding is emulated."""
    name = precision.gemm_dtype
    if name is None:
        return None
    kernels = transport == "native" and precision.compute == "bf16"
    return GemmRecipe(name, precision.gemm_gradients or GRADIENTS[name], kernels)


def _segment_costs(spec: StepSpec) -> list[float]:
    """Forward and backward FLOPs of every segment; the head's backward does its forward too."""
    footprints = Footprints(spec.model, spec.shape)
    policies = spec.layout.recompute
    parts = [footprints.of(segment, policy) for segment, policy in zip(spec.segments, policies, strict=True)]
    costs = [float(part.forward.flops + part.backward.flops) for part in parts]
    return [*costs[:-1], float(parts[-1].backward.flops)]
