"""A step as one pipeline rank sees it. The compiler passes and the runtime read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fourfold.layout import FlatLayout, flat_layout
from fourfold.model.footprint import Footprint, Halves, PartsFootprint
from fourfold.model.spec import Segment
from fourfold.program.footprints import Footprints
from fourfold.program.pattern import Pattern
from fourfold.program.spec import StepSpec
from fourfold.program.stage_map import StageMap, stage_map


@dataclass(frozen=True)
class RankView:
    """The segments and units that a pipeline rank holds; ranks that differ in other coordinates have the same (`rank_view`).

    `segments`: its own, in model order. `flats`: the units that they read, by name, their own first. `tied_unit`: the unit that two
    pipeline ranks share, where this is one of them: the embedding's, which tied heads and MTP modules read too. `stages`,
    `footprints`: those of the full pipeline, shared by its ranks. `reductions`: a cache of the patterns that reduce its gradients.
    """

    spec: StepSpec
    pp_rank: int
    stages: StageMap
    footprints: Footprints
    segments: tuple[Segment, ...]
    flats: Mapping[str, FlatLayout]
    tied_unit: str | None
    reductions: dict[tuple[str, bool], tuple[Pattern, Pattern] | None] = field(default_factory=dict, compare=False)

    @property
    def moe_segments(self) -> tuple[Segment, ...]:
        """This rank's mixtures of experts."""
        return tuple(segment for segment in self.segments if segment.moe)

    def footprint(self, segment: Segment) -> Footprint:
        """The segment's footprint under its own recompute policy."""
        return self.footprints.of(segment, self.stages.policies[segment.name])

    def halves(self, segment: Segment) -> Halves:
        """The footprint of the halves of the segment's split backward."""
        return self.footprints.halves(segment, self.stages.policies[segment.name])

    def parts(self, segment: Segment) -> tuple[PartsFootprint, PartsFootprint]:
        """The footprints of a routed block's forward and backward in parts."""
        return self.footprints.parts(segment, self.stages.policies[segment.name])


def rank_views(
    spec: StepSpec, stages: StageMap | None = None, footprints: Footprints | None = None
) -> tuple[RankView, ...]:
    """The view of every pipeline rank. `stages`, `footprints`: those of the spec where they are known already."""
    stages = stages or stage_map(spec)
    footprints = footprints or Footprints(spec.model, spec.shape)
    return tuple(_view(spec, pp_rank, stages, footprints) for pp_rank in range(spec.layout.pp))


def rank_view(spec: StepSpec, pp_rank: int = 0) -> RankView:
    """The view of one pipeline rank."""
    return _view(spec, pp_rank, stage_map(spec), Footprints(spec.model, spec.shape))


def _view(spec: StepSpec, pp_rank: int, stages: StageMap, footprints: Footprints) -> RankView:
    segments = tuple(segment for stage in stages.held(pp_rank) for segment in stages.stages[stage])
    units = {unit.name: unit for owner in spec.segments for unit in owner.own}
    names = [unit.name for segment in segments for unit in segment.own]
    names += [unit for segment in segments for unit in segment.units]
    flats = {name: flat_layout(units[name], spec.layout) for name in dict.fromkeys(names)}
    return RankView(spec, pp_rank, stages, footprints, segments, flats, _tied_unit(spec, pp_rank))


def _tied_unit(spec: StepSpec, pp_rank: int) -> str | None:
    return "embed" if ties_stages(spec) and pp_rank in spec.layout.tied_ranks else None


def ties_stages(spec: StepSpec) -> bool:
    """Whether two pipeline ranks share the embedding: where the last stage reads it."""
    return (spec.model.tie_embeddings or spec.model.mtp_layers > 0) and spec.layout.degree("tied") > 1
