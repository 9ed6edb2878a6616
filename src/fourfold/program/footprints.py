"""The bytes and the work of passes over segments: the one door through which the program, and those who price it, ask for them."""

from fourfold.config import ModelConfig
from fourfold.model.footprint import Footprint, Shape, segment_footprint
from fourfold.model.spec import Segment
from fourfold.model.work import Work
from fourfold.program.instruction import Op

Kind = tuple[str, bool, int, str]
"""(kind, moe, depth, recompute policy): segments of a kind have the same footprint."""


class Footprints:
    """A cache: the footprints of one model's segments on microbatches of one shape, each worked out when it is first asked for.

    Whoever compiles several steps of one shape keeps it (`CompiledStages`); the ranks of a pipeline share it.
    """

    def __init__(self, model: ModelConfig, shape: Shape) -> None:
        self._model, self._shape = model, shape
        self._known: dict[Kind, Footprint] = {}

    def of(self, segment: Segment, policy: str) -> Footprint:
        """A segment's footprint. `policy`: none, selective or full recompute."""
        key = segment_kind(segment, policy)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = segment_footprint(segment, self._model, self._shape, policy)
        return found


def segment_kind(segment: Segment, policy: str) -> Kind:
    """What a segment's footprint depends on beside model and shape."""
    return (segment.kind, segment.moe, segment.depth, policy)


def work_of(footprint: Footprint, op: Op) -> Work:
    """The work of one computing instruction; a recomputed forward repeats the forward's."""
    work = {
        Op.FORWARD: footprint.forward,
        Op.RECOMPUTE: footprint.forward,
        Op.BACKWARD: footprint.backward,
        Op.BACKWARD_INPUT: footprint.input_gradient,
        Op.BACKWARD_WEIGHT: footprint.weight_gradient,
    }
    return work[op]
