"""The bytes and the work of passes over segments: the one door through which the program, and those who price it, ask for them."""

from fourfold.config import ModelConfig
from fourfold.model.footprint import (
    Footprint,
    Halves,
    PartsFootprint,
    ScoresFootprint,
    Shape,
    segment_footprint,
    segment_halves,
    segment_parts,
    segment_scores,
)
from fourfold.model.spec import Segment
from fourfold.model.work import Work
from fourfold.program.instruction import Op

Kind = tuple[str, int, int, str]
"""(kind, type of layer, depth, recompute policy): segments of a kind have the same footprint."""


class Footprints:
    """A cache: the footprints of one model's segments on microbatches of one shape, each worked out when it is first asked for.

    Whoever compiles several steps of one shape keeps it (`CompiledStages`); the ranks of a pipeline share it.
    """

    def __init__(self, model: ModelConfig, shape: Shape) -> None:
        self._model, self._shape = model, shape
        self._known: dict[Kind, Footprint] = {}
        self._halves: dict[Kind, Halves] = {}
        self._parts: dict[Kind, tuple[PartsFootprint, PartsFootprint]] = {}

    def of(self, segment: Segment, policy: str) -> Footprint:
        """A segment's footprint. `policy`: none, selective or full recompute."""
        key = segment_kind(segment, policy)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = segment_footprint(segment, self._model, self._shape, policy)
        return found

    def halves(self, segment: Segment, policy: str) -> Halves:
        """The halves of a segment's backward, likewise."""
        key = segment_kind(segment, policy)
        found = self._halves.get(key)
        if found is None:
            found = self._halves[key] = segment_halves(segment, self._model, self._shape, policy)
        return found

    def parts(self, segment: Segment, policy: str) -> tuple[PartsFootprint, PartsFootprint]:
        """A routed block's forward and backward in parts, likewise."""
        key = segment_kind(segment, policy)
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = segment_parts(segment, self._model, self._shape, policy)
        return found

    def scores(self, segment: Segment) -> ScoresFootprint:
        """The search for the largest score of a block that attends, which no recompute policy changes."""
        return segment_scores(segment, self._model, self._shape)

    def work(self, segment: Segment, policy: str, op: Op) -> Work:
        """The work of one computing instruction; a recomputed forward repeats the forward's."""
        if op.info.computes in ("forward", "recomputation"):
            return self.of(segment, policy).forward
        if op is Op.BACKWARD:
            return self.of(segment, policy).backward
        halves = self.halves(segment, policy)
        return halves.input_gradient if op is Op.BACKWARD_INPUT else halves.weight_gradient


def segment_kind(segment: Segment, policy: str) -> Kind:
    """The key of a segment's footprint, beside model and shape."""
    return (segment.kind, segment.layer_type, segment.depth, policy)
