"""Which rectangles of (queries, keys) a rank computes: causal within each document, for tokens placed by chunks.

A rank holds its chunks of a row in the order of the sequence. So the tokens that it has of a document lie side by side, and those
of them that come before a given place too. Against its own keys a rank computes a causal square a document. Against another
rank's, each chunk of its queries sees that rank's keys of the same document that come before the chunk: one rectangle. In
zig-zag, with chunks r and 2R - 1 - r (Llama 3, section 3.3.2), all queries see an earlier rank's front chunk, and the back chunk's
queries see both chunks of a later rank.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from fourfold.model.context.placement import Placement, zigzag

if TYPE_CHECKING:  # it takes numpy, which the planner's commands do without
    from fourfold.model.visible import Visible

Span = tuple[int, int]
"""First and one past the last."""
Rectangle = tuple[Span, Span]
"""Queries and keys."""


class Piece(NamedTuple):
    """One call of the kernel: `queries` and `keys` index a rank's local tokens, or those of a buffer of keys. `causal` pieces are
    squares whose query i sees keys 0..i; in others every query sees every key. `documents`: the rows laid flat are these documents,
    each a causal square of its own; None: every row is one."""

    rows: Span
    queries: Span
    keys: Span
    causal: bool
    documents: "Visible | None" = None


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
    """Per row the ends of its documents, and which of its chunks every rank of the ring holds. `lengths` None: every row is one
    document. `placement` None: in zig-zag."""

    def __init__(
        self,
        batch: int,
        sequence_length: int,
        lengths: Sequence[Sequence[int]] | None,
        ring: int = 1,
        placement: Placement | None = None,
    ) -> None:
        self.batch, self.ring, self.length = batch, ring, sequence_length
        self._placement = placement or zigzag(ring)
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

    def runs(self, rank: int, row: int = 0) -> list[Run]:
        """The positions of a ring rank's tokens of a row."""
        chunk = self.length // self._placement.num_chunks
        chunks = self._placement.of_row(row)[rank]
        return [Run(index * chunk, place * chunk, (place + 1) * chunk) for index, place in enumerate(chunks)]

    def within(self, row: int, span: Span) -> list[Span]:
        """The documents of a row that have tokens in a span of the sequence, in order."""
        ends = self.rows[row]
        first = bisect_right(ends, span[0], key=lambda document: document[1])
        last = bisect_left(ends, span[1], key=lambda document: document[0])
        return ends[first:last]

    def once(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """The result of the first call's `make` with this key: pieces, which all layers share."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def pieces(self, causal: bool, of_row: Callable[[int], Iterable[Rectangle]]) -> list[Piece]:
        """`of_row` of every row; all rows in one piece where each is one document."""
        if len(self.rows) == 1:
            return [Piece((0, self.batch), *spans, causal) for spans in of_row(0)]
        return [Piece((row, row + 1), *spans, causal) for row in range(len(self.rows)) for spans in of_row(row)]


def own_pieces(rank: int, documents: Documents, packs: bool = False) -> list[Piece]:
    """Causal squares over the rank's own tokens, one a document; every token is in exactly one. `packs`: all documents in one
    piece, for a kernel that takes sequences of several lengths in one launch."""

    def squares(row: int) -> list[Rectangle]:
        held: dict[Span, Span] = {}
        for offset, start, stop in documents.runs(rank, row):
            for document in documents.within(row, (start, stop)):
                first, last = max(start, document[0]) - start + offset, min(stop, document[1]) - start + offset
                held[document] = held.get(document, (first, last))[0], last
        return [(each, each) for each in held.values()]

    pieces = documents.pieces(True, squares)
    if not packs or len(pieces) == 1:
        return pieces
    from fourfold.model.visible import Visible

    lengths = [stop - start for _, (start, stop), *_ in pieces]
    tokens = (0, documents.length // documents.ring)
    return [Piece((0, documents.batch), tokens, tokens, True, Visible.documents(lengths))]


def ring_pieces(rank: int, source: int, documents: Documents) -> list[Piece]:
    """The pieces that `rank` computes against the keys of another rank of the ring, which are in that rank's own order. The
    pieces of a document have keys that begin alike, each no fewer than the one before."""
    return documents.pieces(False, lambda row: _rectangles(rank, source, row, documents))


def gathered_pieces(rank: int, documents: Documents) -> tuple[list[Piece], list[Piece]]:
    """A rank's pieces against the first halves of the other ranks' tokens, and against their second halves, each in rank order."""
    half = documents.length // (2 * documents.ring)
    others = [source for source in range(documents.ring) if source != rank]

    def of_half(number: int) -> list[Piece]:
        def of_row(row: int) -> list[Rectangle]:
            found = []
            for source in others:
                for queries, keys in _rectangles(rank, source, row, documents):
                    first, last = max(keys[0] - number * half, 0), min(keys[1] - number * half, half)
                    if first < last:
                        found.append((queries, (source * half + first, source * half + last)))
            return _joined(found, 1)

        return documents.pieces(False, of_row)

    return of_half(0), of_half(1)


def _rectangles(rank: int, source: int, row: int, documents: Documents) -> list[Rectangle]:
    """All pairs of the rank's queries and the source's keys within a document, where every key comes before every query: keys
    before a run are of the document that its first token goes on with."""
    keys, found = documents.runs(source, row), []
    for offset, start, stop in documents.runs(rank, row):
        document = documents.within(row, (start, start + 1))[0]
        seen = _held(keys, (document[0], start))
        if seen[0] < seen[1]:
            found.append(((offset, offset + min(stop, document[1]) - start), seen))
    return _joined(found, 0)


def _joined(rectangles: Iterable[Rectangle], side: int) -> list[Rectangle]:
    """Neighbours made one where they are alike but for one side's spans, which touch. `side`: 0 queries, 1 keys."""
    found: list[Rectangle] = []
    for each in rectangles:
        if found and found[-1][1 - side] == each[1 - side] and found[-1][side][1] == each[side][0]:
            spans = [*each]
            spans[side] = found.pop()[side][0], each[side][1]
            found.append((spans[0], spans[1]))
        else:
            found.append(each)
    return found


def _held(runs: Sequence[Run], span: Span) -> Span:
    """Where the tokens of a span of the sequence lie, side by side; a span of no width where there are none."""
    first, last = 0, 0
    for offset, start, stop in runs:
        if start >= span[1]:
            break
        if stop > span[0]:
            if first == last:
                first = max(start, span[0]) - start + offset
            last = min(stop, span[1]) - start + offset
    return first, last
