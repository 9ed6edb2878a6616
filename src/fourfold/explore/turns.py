"""Context parallelism of a block: which tokens a rank has, and which part of attention it computes at every turn of the ring."""

from collections.abc import Iterator, Sequence
from typing import Any

from fourfold.layout import Layout
from fourfold.model.context.pieces import Documents, Piece, Run, Span, own_pieces, ring_pieces
from fourfold.model.shape import Shape
from fourfold.model.work import Start, Work


def token_runs(layout: Layout, rank: int) -> list[Run]:
    """The positions of a sequence that the rank has, as few runs as possible."""
    if layout.cp == 1:
        return [Run(0, 0, layout.sequence_length)]
    found: list[Run] = []
    for index, position in enumerate(layout.positions(rank)):
        if found and found[-1].stop == position:
            found[-1] = found[-1]._replace(stop=position + 1)
        else:
            found.append(Run(index, position, position + 1))
    return found


def local_spans(runs: Sequence[Run], shape: Shape, first: int, end: int) -> list[Span]:
    """Where a rank's tokens `first` to `end` of a microbatch laid flat stand in the full microbatch."""
    own = shape.tokens // shape.sequences
    found: list[Span] = []
    for sequence in range(shape.sequences):
        begin = sequence * own
        for start, stop in _within(runs, (max(0, first - begin), min(own, end - begin))):
            at = sequence * shape.sequence_length
            if found and found[-1][1] == at + start:
                start = found.pop()[0] - at
            found.append((at + start, at + stop))
    return found


def ring_document(layout: Layout, work: Work) -> dict[str, Any]:
    """`RingDocument`: one sequence, one document."""
    size, length = layout.cp_ring, layout.sequence_length
    documents = Documents(1, length, None, size)
    runs = [documents.runs(rank) for rank in range(size)]
    turns = []
    for turn in range(size):
        ranks = []
        for rank in range(size):
            source = (rank - turn) % size
            pieces = own_pieces(rank, documents) if turn == 0 else ring_pieces(rank, source, documents)
            drawn = [each for piece in pieces for each in _placed(piece, runs[rank], runs[source])]
            ranks.append({"source": source, "pieces": drawn, "scores": sum(map(_scores, drawn))})
        turns.append({"ranks": ranks})
    shifts = [each.collective for each in work.items if isinstance(each, Start) and each.collective.kind == "shift"]
    contiguous = [Run(0, rank * length // size, (rank + 1) * length // size) for rank in range(size)]
    return {
        "length": length,
        "runs": [[(run.start, run.stop) for run in each] for each in runs],
        "turns": turns,
        "shift_bytes": shifts[0].bytes if shifts else 0,
        "num_shifts": len(shifts),
        "scores": [sum(turn["ranks"][rank]["scores"] for turn in turns) for rank in range(size)],
        "contiguous_scores": [
            _scores((run.start, run.stop, run.start, run.stop, True)) + (run.stop - run.start) * run.start
            for run in contiguous
        ],
    }


Drawn = tuple[int, int, int, int, bool]
"""Queries and keys, [first, end) of positions in the sequence; whether query i sees keys 0 to i alone."""


def _placed(piece: Piece, queries: Sequence[Run], keys: Sequence[Run]) -> Iterator[Drawn]:
    """A piece of local tokens as pieces of the sequence. A causal square over two chunks is a triangle of each, and all of the
    later one against the earlier."""
    for mine in _within(queries, piece.queries):
        for theirs in _within(keys, piece.keys):
            if piece.mask != "causal" or theirs[1] <= mine[0]:
                yield *mine, *theirs, False
            elif mine == theirs:
                yield *mine, *theirs, True


def _within(runs: Sequence[Run], span: Span) -> Iterator[Span]:
    """Positions of the local tokens of `span`."""
    for run in runs:
        first, end = max(span[0], run.offset), min(span[1], run.offset + run.stop - run.start)
        if first < end:
            yield run.start + first - run.offset, run.start + end - run.offset


def _scores(piece: Drawn) -> int:
    """Products of a query with a key."""
    first, end, start, stop, causal = piece
    return (end - first) * (end - first + 1) // 2 if causal else (end - first) * (stop - start)
