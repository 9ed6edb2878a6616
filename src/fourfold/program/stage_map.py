"""The map of a model's segments to the pipeline: the segments of each stage, and the rank that holds it."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from fourfold.layout.mesh import Recompute
from fourfold.model.spec import Segment
from fourfold.program.spec import StepSpec


@dataclass(frozen=True)
class StageMap:
    """The segments of every stage, in forward order, and of every stage the pipeline rank that holds it (`stage_map` makes it).

    By name of a segment: the segment itself, its successor's name, its stage, its recompute policy. `offloaded`: names of segments
    whose activations wait in the host's memory.
    """

    stages: tuple[tuple[Segment, ...], ...]
    ranks: tuple[int, ...]
    segments: dict[str, Segment]
    following: dict[str, str]
    stage_of: dict[str, int]
    policies: dict[str, Recompute]
    offloaded: frozenset[str] = frozenset()

    def held(self, pp_rank: int) -> tuple[int, ...]:
        """The stages on a pipeline rank, in model order."""
        return tuple(stage for stage, rank in enumerate(self.ranks) if rank == pp_rank)

    def boundary(self, segment: str) -> int | None:
        """The pipeline rank that a segment's input comes from; None where it is made on the segment's own rank."""
        stage = self.stage_of[segment]
        if stage == 0 or self.stages[stage][0].name != segment:
            return None
        before, own = self.ranks[stage - 1], self.ranks[stage]
        return before if before != own else None


def stage_map(spec: StepSpec) -> StageMap:
    """Cuts the model's segments into stages as the layout says."""
    segments, layout = spec.segments, spec.layout
    ends = (0, *accumulate(layout.segments_per_stage or (len(segments),)))
    stages = tuple(segments[start:end] for start, end in pairwise(ends))
    return StageMap(
        stages=stages,
        ranks=layout.stage_ranks,
        segments={segment.name: segment for segment in segments},
        following={a.name: b.name for a, b in pairwise(segments)},
        stage_of={segment.name: stage for stage, held in enumerate(stages) for segment in held},
        policies={segment.name: policy for segment, policy in zip(segments, layout.recompute, strict=True)},
        offloaded=frozenset(
            each.name for each, away in zip(segments, layout.offload or [False] * len(segments), strict=True) if away
        ),
    )
