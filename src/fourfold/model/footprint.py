"""A segment's footprint on one rank: what it computes, keeps, moves and sends. It is recorded when first asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

from fourfold.config import ModelConfig
from fourfold.model.recorded_rank import Footprint, Halves, PartsFootprint, RecordedRank, ScoresFootprint
from fourfold.model.shape import Shape, chunk_tokens
from fourfold.model.spec import Segment, build_segments
from fourfold.model.work import Work

__all__ = [
    "Footprint",
    "Halves",
    "PartsFootprint",
    "ScoresFootprint",
    "Shape",
    "chunk_tokens",
    "segment_footprint",
    "segment_halves",
    "segment_parts",
    "segment_scores",
    "weight_gradient_work",
]


def segment_footprint(segment: Segment, model: ModelConfig, shape: Shape, policy: str) -> Footprint:
    """The footprint of any segment. `policy`: none, selective or full recompute. Segments of a kind have the same."""
    return _of_kind(segment.kind, segment.layer_type, segment.depth, model, shape, policy)


def segment_halves(segment: Segment, model: ModelConfig, shape: Shape, policy: str) -> Halves:
    """The halves of any segment's backward. Only a block's backward is split."""
    if segment.kind != "block":
        return Halves()
    return _halves_of_kind(segment.layer_type, segment.depth, model, shape, policy)


def segment_parts(
    segment: Segment, model: ModelConfig, shape: Shape, policy: str
) -> tuple[PartsFootprint, PartsFootprint]:
    """Forward and backward of a routed block, cut where rows go to their experts and where they come back."""
    return _parts_of_kind(segment.layer_type, segment.depth, model, shape, policy)


def segment_scores(segment: Segment, model: ModelConfig, shape: Shape) -> ScoresFootprint:
    """The search for the largest score of a block that attends."""
    return _scores_of_kind(segment.layer_type, segment.depth, model, shape)


def weight_gradient_work(segment: Segment, model: ModelConfig, shape: Shape) -> Work:
    """The work of a block's weight gradients. They see tokens: neither the split of sequences in attention nor recomputation
    changes it."""
    length = shape.sequence_length // (shape.cp_ring * shape.cp_ulysses)
    local = replace(shape, sequence_length=length, cp_ring=1, cp_ulysses=1, cp_gather=False)
    return segment_halves(segment, model, local, "none").weight_gradient


Recorded = TypeVar("Recorded", Footprint, Halves, ScoresFootprint)


@lru_cache(maxsize=512)
def _of_kind(kind: str, layer_type: int, depth: int, model: ModelConfig, shape: Shape, policy: str) -> Footprint:
    segment = _first(kind, layer_type, depth, model)
    return _largest([rank.footprint(policy) for rank in _recorded_ranks(segment, model, shape)])


@lru_cache(maxsize=512)
def _halves_of_kind(layer_type: int, depth: int, model: ModelConfig, shape: Shape, policy: str) -> Halves:
    segment = _first("block", layer_type, depth, model)
    return _largest([rank.halves(policy) for rank in _recorded_ranks(segment, model, shape)])


@lru_cache(maxsize=512)
def _scores_of_kind(layer_type: int, depth: int, model: ModelConfig, shape: Shape) -> ScoresFootprint:
    segment = _first("block", layer_type, depth, model)
    return _largest([rank.scores() for rank in _recorded_ranks(segment, model, shape)])


@lru_cache(maxsize=512)
def _parts_of_kind(
    layer_type: int, depth: int, model: ModelConfig, shape: Shape, policy: str
) -> tuple[PartsFootprint, PartsFootprint]:
    segment = _first("block", layer_type, depth, model)
    forward, backward = zip(*(rank.parts(policy) for rank in _recorded_ranks(segment, model, shape)), strict=True)
    return _largest_of_parts(forward), _largest_of_parts(backward)


def _largest_of_parts(ranks: Sequence[PartsFootprint]) -> PartsFootprint:
    """`_largest`, part by part."""
    largest = tuple(max(each) for each in zip(*(rank.workspace_bytes for rank in ranks), strict=True))
    return replace(ranks[0], workspace_bytes=largest)


def _first(kind: str, layer_type: int, depth: int, model: ModelConfig) -> Segment:
    return next(s for s in build_segments(model) if (s.kind, s.layer_type, s.depth) == (kind, layer_type, depth))


def _recorded_ranks(segment: Segment, model: ModelConfig, shape: Shape) -> "Iterator[RecordedRank]":
    """Ranks of a ring of which one has the largest temporaries.

    The last rank has all queries against halves of earlier keys, the first half of the queries against all later keys: as many
    scores. Its temporaries are smaller unless keys and values are larger than queries. The ranks between mix the two. Where
    all keys are gathered, the first rank has the longest matmul of all.
    """
    last = shape.cp_ring - 1
    if segment.kind != "block" or last == 0:
        yield RecordedRank(segment, model, shape)
        return
    if not shape.cp_gather:
        yield RecordedRank(segment, model, shape, last)
    if shape.cp_gather or model.num_heads < 2 * model.num_kv_heads:
        yield RecordedRank(segment, model, shape, 0)


def _largest(ranks: list[Recorded]) -> Recorded:
    """The first one's, with the largest workspaces of all."""
    names = [name for name in vars(ranks[0]) if name.endswith("workspace_bytes")]
    return replace(ranks[0], **{name: max(getattr(rank, name) for rank in ranks) for name in names})
