"""Which rectangles of (queries, keys) a rank computes: causal within each document, for tokens placed in zig-zag.

The sequence is cut into 2R chunks of n tokens; rank r has chunks r and 2R - 1 - r (Brandon et al. 2023 on balance; the
two-chunk placement is that of Llama 3, section 3.3.2). Against its own keys a rank computes causal squares. Against the
keys of an earlier rank, all its queries see the front chunk alone. Against the keys of a later rank, its back chunk's queries
see both chunks. A document is an interval: two ranks share at most one document of a row, and its part is one rectangle.
"""

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from fourfold.flash.visible import Visible

Span = tuple[int, int]
"""First and one past the last."""


class Piece(NamedTuple):
    """One call of the kernel: `queries` and `keys` index a rank's local tokens, or those of a buffer of keys. `causal` pieces are
    squares whose query i sees keys 0..i; in others every query sees every key. `documents`: the rows laid flat are these documents,
    each a causal square of its own; None: every row is one."""

    rows: Span
    queries: Span
    keys: Span
    causal: bool
    documents: Visible | None = None


def extent(piece: Piece) -> tuple[int, int, int, bool]:
    """How many rows, queries and keys a piece has."""
    rows, queries, keys, causal, _ = piece
    return rows[1] - rows[0], queries[1] - queries[0], keys[1] - keys[0], causal


class Run(NamedTuple):
    """Consecutive positions [start, stop) of the sequence, held from index `offset` on."""

    offset: int
    start: int
    stop: int


class Documents:
    """Per row the ends of its documents. `lengths` None: every row is one document."""

    def __init__(self, batch: int, sequence_length: int, lengths: Sequence[Sequence[int]] | None) -> None:
        self.batch = batch
        self._made: dict[Hashable, Any] = {}
        if lengths is None:
            self.rows: list[list[Span]] = [[(0, sequence_length)]]
            return
        if len(lengths) != batch:
            raise ValueError(f"document_lengths has {len(lengths)} rows, the batch {batch}; give one list for each row")
        self.rows = []
        for row, sizes in enumerate(lengths):
            if sum(sizes) != sequence_length:
                raise ValueError(
                    f"document_lengths[{row}] sums to {sum(sizes)}; it must cover the whole sequence of {sequence_length}"
                )
            self.rows.append([(a, b) for a, b in pairwise(accumulate(sizes, initial=0)) if a < b])

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The result of the first call's `make` with this key: pieces, which all layers share."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def pieces(self, causal: bool, of_row: Callable[[list[Span]], list[tuple[Span, Span]]]) -> list[Piece]:
        """`of_row` of every row's documents; all rows in one piece where each is one document."""
        if len(self.rows) == 1:
            return [Piece((0, self.batch), *spans, causal) for spans in of_row(self.rows[0])]
        return [Piece((row, row + 1), *spans, causal) for row, each in enumerate(self.rows) for spans in of_row(each)]


def rank_runs(rank: int, ring: int, sequence_length: int) -> list[Run]:
    """The positions of a ring rank's tokens: its chunk of the front, then that of the back."""
    if ring == 1:
        return [Run(0, 0, sequence_length)]
    chunk = sequence_length // (2 * ring)
    back = 2 * ring - 1 - rank
    return [Run(0, rank * chunk, (rank + 1) * chunk), Run(chunk, back * chunk, (back + 1) * chunk)]


def own_pieces(rank: int, ring: int, sequence_length: int, documents: Documents, packs: bool = False) -> list[Piece]:
    """Causal squares over the rank's own tokens, one a document; every token is in exactly one. `packs`: all documents in one
    piece, for a kernel that takes sequences of several lengths in one launch."""
    runs = rank_runs(rank, ring, sequence_length)

    def squares(row: list[Span]) -> list[tuple[Span, Span]]:
        spans = [span for document in row for span in _held(runs, document)]
        return [(span, span) for span in spans]

    pieces = documents.pieces(True, squares)
    if not packs or len(pieces) == 1:
        return pieces
    lengths = [stop - start for _, (start, stop), *_ in pieces]
    tokens = (0, sequence_length // ring)
    return [Piece((0, documents.batch), tokens, tokens, True, Visible.documents(lengths))]


def ring_pieces(rank: int, source: int, ring: int, sequence_length: int, documents: Documents) -> list[Piece]:
    """The pieces that `rank` computes against the keys of another rank of the ring, which are in that rank's own order."""
    queries, keys = rank_runs(rank, ring, sequence_length), rank_runs(source, ring, sequence_length)
    if source < rank:
        return _rectangles(queries, keys[:1], documents)
    return _rectangles(queries[1:], keys, documents)


def gathered_pieces(
    rank: int, ring: int, sequence_length: int, documents: Documents
) -> tuple[list[Piece], list[Piece]]:
    """A rank's pieces against the other ranks' front chunks, and against their back chunks, each in rank order."""
    queries = rank_runs(rank, ring, sequence_length)
    chunk = sequence_length // (2 * ring)
    front = [Run(j * chunk, *rank_runs(j, ring, sequence_length)[0][1:]) for j in range(ring)]
    back = [Run(j * chunk, *rank_runs(j, ring, sequence_length)[1][1:]) for j in range(ring)]
    before = _rectangles(queries, front[:rank], documents)
    after = _rectangles(queries[1:], front[rank + 1 :], documents)
    return before + after, _rectangles(queries[1:], back[rank + 1 :], documents)


def _rectangles(queries: list[Run], keys: list[Run], documents: Documents) -> list[Piece]:
    """All pairs of `queries` and `keys` within a document, where every key comes before every query. The document that has
    both holds the first query too, for documents are intervals."""
    if not keys:
        return []

    def of_row(row: list[Span]) -> list[tuple[Span, Span]]:
        document = next(span for span in row if span[0] <= queries[0].start < span[1])
        return [(q, k) for q in _held(queries, document) for k in _held(keys, document)]

    return documents.pieces(False, of_row)


def _held(runs: list[Run], document: Span) -> list[Span]:
    """Where tokens of a document lie, as few spans as possible."""
    spans: list[Span] = []
    for run in runs:
        start, stop = max(run.start, document[0]), min(run.stop, document[1])
        if start >= stop:
            continue
        first, last = run.offset + start - run.start, run.offset + stop - run.start
        if spans and spans[-1][1] == first:
            first = spans.pop()[0]
        spans.append((first, last))
    return spans
