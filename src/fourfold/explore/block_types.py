"""Types of a block on the ranks that share it. Spans are [first, end)."""

from typing import Any

from fourfold.results.record import record

Span = tuple[int, int]
Box = tuple[int, int, int, int]
"""First and end row, first and end column."""
AttentionPiece = tuple[int, int, int, int, bool]
"""Queries and keys, first and end position; whether query i sees keys 0 to i alone."""


@record
class WeightSplit:
    """A dim of a parameter that is split over an axis."""

    dim: int
    axis: str


@record
class BlockWeight:
    """A parameter; `boxes`: by rank, the span of every dim that the rank has."""

    name: str
    shape: list[int]
    splits: list[WeightSplit]
    boxes: list[list[Span]]


@record
class BlockStep:
    """A matmul, attention, elementwise kernels or a collective over tp, and the activation after it: tokens x columns, what a rank
    has of it, by rank where that lies. `partial`: ranks have summands of it. `bytes`: of a collective's buffer."""

    kind: str
    weights: list[BlockWeight]
    shape: list[int]
    held_shape: list[int]
    partial: bool
    boxes: list[list[Box]]
    bytes: int
    sent_bytes: int


@record
class BlockRank:
    """A rank and its place on every axis."""

    rank: int
    coordinates: dict[str, int]


@record
class TurnRank:
    """A rank in a turn: whose keys it has, the pieces of attention that it computes, how many scores these are."""

    source: int
    pieces: list[AttentionPiece]
    scores: int


@record
class Turn:
    """All ranks of the ring between two shifts."""

    ranks: list[TurnRank]


@record
class RingDocument:
    """Ring attention over one sequence. `runs`: positions of each rank's tokens. `scores`: of each rank in all turns;
    `contiguous_scores`: where every rank had one run of tokens instead."""

    length: int
    runs: list[list[Span]]
    turns: list[Turn]
    shift_bytes: int
    num_shifts: int
    scores: list[int]
    contiguous_scores: list[int]


@record
class ExpertsDocument:
    """Experts on the ranks of `ep`. `experts`: by rank; `shape`: of the first expert parameter. `rows`: tokens that a rank's
    experts compute where loads are even. `exchange_bytes`: of one all-to-all, `exchanges` of a forward. `tokens`: by rank, the
    experts of the tokens that are drawn; `sent`: rows from rank to rank for these."""

    num_experts: int
    top_k: int
    ranks: list[int]
    experts: list[Span]
    shape: list[int]
    rows: int
    exchange_bytes: int
    exchanges: int
    tokens: list[list[list[int]]]
    sent: list[list[int]]


@record
class BlockDocument:
    """A block on the ranks that share it. `ring` is null without context parallelism, `experts` for a dense block."""

    segment: str
    hidden_size: int
    tokens: int
    element_bytes: int
    layout: dict[str, Any]
    sequence_parallel: bool
    ranks: list[BlockRank]
    steps: list[BlockStep]
    ring: RingDocument | None
    experts: ExpertsDocument | None
