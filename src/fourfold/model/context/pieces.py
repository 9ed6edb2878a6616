"""The rectangles of (queries, keys) that a rank computes: causal within each document, for tokens placed by chunks.

A rank holds its chunks of a row in the order of the sequence. So the tokens that it has of a document lie side by side, and those
of them that come before a given place too. Against its own keys a rank computes a causal square a document. Against another
rank's, each chunk of its queries sees that rank's keys of the same document that come before the chunk: one rectangle. In
zig-zag, with chunks r and 2R - 1 - r (Llama 3, section 3.3.2), all queries see an earlier rank's front chunk, and the back chunk's
queries see both chunks of a later rank.

With a sliding window a query sees so many keys at most, itself the last. Blocks of no more queries than that see a causal square of
themselves; before it some keys that all of them see; and before those a square turned over, of keys that leave the window one by
one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fourfold.model.context.placement import Placement, zigzag

if TYPE_CHECKING:  # it takes numpy, which the planner's commands do without
    from fourfold.model.visible import Visible

Span = tuple[int, int]
"""First and one past the last."""
Rectangle = tuple[Span, Span]
"""Queries and keys."""
Mask = Literal["all", "causal", "turned"]
"""Every query sees every key; in a square query i sees keys 0 to i; in a square query i sees the keys from i on."""
Masked = tuple[Span, Span, Mask]
"""Queries, keys, and which of them they see."""


class Piece(NamedTuple):
    """One call of the kernel: `queries` and `keys` index a rank's local tokens, or those of a buffer of keys. `documents`: the rows
    laid flat are these documents, each a causal square of its own; None: every row is one. `window`: of a causal piece, for a
    kernel that has windows."""

    rows: Span
    queries: Span
    keys: Span
    mask: Mask
    documents: "Visible | None" = None
    window: int | None = None


def extent(piece: Piece) -> tuple[int, int, int, Mask]:
    """How many rows, queries and keys a piece has."""
    rows, queries, keys, mask, *_ = piece
    return rows[1] - rows[0], queries[1] - queries[0], keys[1] - keys[0], mask


class Run(NamedTuple):
    """Consecutive positions [start, stop) of the sequence, held from index `offset` on."""

    offset: int
    start: int
    stop: int


class Documents:
    """Per row the ends of its documents, and which of its chunks every rank of the ring holds. `lengths` None: every row is one
    document. `placement` None: in zig-zag. `window`: the keys that a query sees at most, None: all before it. `chunk`: documents
    are cut into so many tokens (chunked attention, Llama 4), None: they are not."""

    def __init__(
        self,
        batch: int,
        sequence_length: int,
        lengths: Sequence[Sequence[int]] | None,
        ring: int = 1,
        placement: Placement | None = None,
        window: int | None = None,
        chunk: int | None = None,
    ) -> None:
        self.batch, self.ring, self.length = batch, ring, sequence_length
        self.window = None if window is None or window >= sequence_length else window
        self.placement = placement or zigzag(ring)
        self._made: dict[Hashable, Any] = {}
        if lengths is None:
            self.rows: list[list[Span]] = [cut([(0, sequence_length)], chunk)]
            return
        if len(lengths) != batch:
            raise ValueError(f"document_lengths has {len(lengths)} rows, the batch {batch}; give one list for each row")
        self.rows = []
        for row, sizes in enumerate(lengths):
            if sum(sizes) != sequence_length:
                raise ValueError(
                    f"document_lengths[{row}] sums to {sum(sizes)}; it must cover the whole sequence of {sequence_length}"
                )
            self.rows.append(cut([(a, b) for a, b in pairwise(accumulate(sizes, initial=0)) if a < b], chunk))

    def runs(self, rank: int, row: int = 0) -> list[Run]:
        """The positions of a ring rank's tokens of a row."""
        chunk = self.length // self.placement.num_chunks
        chunks = self.placement.of_row(row)[rank]
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

    def pieces(self, of_row: Callable[[int], Iterable[Masked]]) -> list[Piece]:
        """`of_row` of every row; all rows in one piece where they are alike."""
        if len(self.rows) == 1:
            return [Piece((0, self.batch), *each) for each in of_row(0)]
        return [Piece((row, row + 1), *each) for row in range(len(self.rows)) for each in of_row(row)]


def cut(documents: list[Span], chunk: int | None) -> list[Span]:
    """The documents, each in parts of `chunk` tokens, the last of which may be shorter."""
    if chunk is None:
        return documents
    return [(first, min(first + chunk, last)) for start, last in documents for first in range(start, last, chunk)]


def own_pieces(rank: int, documents: Documents, packs: bool = False) -> list[Piece]:
    """Causal squares over the rank's own tokens, one a document; with a window one of each block of it. Every token is in exactly
    one. `packs`: all documents in one piece, for a kernel that takes sequences of several lengths in one launch, and windows."""
    if documents.window is not None and not packs:
        return documents.pieces(lambda row: [(span, span, "causal") for span, _, _ in _blocks(rank, row, documents)])

    def squares(row: int) -> list[Masked]:
        held: dict[Hashable, Span] = {}
        for offset, start, stop in documents.runs(rank, row):
            for document in documents.within(row, (start, stop)):
                first, last = max(start, document[0]) - start + offset, min(stop, document[1]) - start + offset
                key = document if documents.window is None else (document, start)
                held[key] = held.get(key, (first, last))[0], last
        return [(each, each, "causal") for each in held.values()]

    pieces = [piece._replace(window=documents.window) for piece in documents.pieces(squares)]
    if not packs or len(pieces) == 1:
        return pieces
    from fourfold.model.visible import Visible

    lengths = [stop - start for _, (start, stop), *_ in pieces]
    tokens = (0, documents.length // documents.ring)
    visible = Visible.documents(lengths * (documents.batch if len(documents.rows) == 1 else 1))
    return [Piece((0, documents.batch), tokens, tokens, "causal", visible, documents.window)]


def earlier_pieces(rank: int, documents: Documents, packs: bool = False) -> list[Piece]:
    """The rest of what a rank computes against its own keys: with a window, each block of queries sees keys before it. `packs`:
    those of its own run are in `own_pieces`."""
    if documents.window is None:
        return []

    def of_row(row: int) -> list[Masked]:
        runs = documents.runs(rank, row)
        if not packs:
            return list(_windowed(rank, row, documents, runs))
        masked = _windowed(rank, row, documents, runs)
        return [each for each in masked if _run_of(runs, each[0]) != _run_of(runs, each[1])]

    return documents.pieces(of_row)


def _run_of(runs: Sequence[Run], span: Span) -> int:
    """The run that some of a rank's own tokens lie in."""
    return bisect_right(runs, span[0], key=lambda run: run.offset)


def ring_pieces(rank: int, source: int, documents: Documents) -> list[Piece]:
    """The pieces that `rank` computes against the keys of another rank of the ring, which are in that rank's own order. Without a
    window the pieces of a document have keys that begin alike, each no fewer than the one before."""
    if documents.window is not None:
        return documents.pieces(lambda row: _windowed(rank, row, documents, documents.runs(source, row)))
    return documents.pieces(lambda row: [(*spans, "all") for spans in _rectangles(rank, source, row, documents)])


def window_pieces(rank: int, documents: Documents, held: Sequence[Run]) -> list[Piece]:
    """With a window, the pieces that a rank computes against keys that are held in some runs, of every row alike."""
    return documents.pieces(lambda row: _windowed(rank, row, documents, held))


def gathered_pieces(rank: int, documents: Documents) -> tuple[list[Piece], list[Piece]]:
    """A rank's pieces against the first halves of the other ranks' tokens, and against their second halves, each in rank order."""
    half = documents.length // (2 * documents.ring)
    others = [source for source in range(documents.ring) if source != rank]

    def of_half(number: int) -> list[Piece]:
        def of_row(row: int) -> list[Masked]:
            if documents.window is not None:
                return list(_windowed(rank, row, documents, _halves_held(documents, others, row, number)))
            found = []
            for source in others:
                for queries, keys in _rectangles(rank, source, row, documents):
                    first, last = max(keys[0] - number * half, 0), min(keys[1] - number * half, half)
                    if first < last:
                        found.append((queries, (source * half + first, source * half + last)))
            return [(*spans, "all") for spans in _joined(found, 1)]

        return documents.pieces(of_row)

    return of_half(0), of_half(1)


def _halves_held(documents: Documents, sources: Iterable[int], row: int, number: int) -> list[Run]:
    """The runs of the ranks' first or second halves, one rank's behind the other's, `number` 0 or 1."""
    half, found = documents.length // (2 * documents.ring), []
    for source in sources:
        for offset, start, stop in documents.runs(source, row):
            first, last = max(offset, number * half), min(offset + stop - start, (number + 1) * half)
            if first < last:
                place = start + first - offset
                found.append(Run(source * half + first - number * half, place, place + last - first))
    return found


def _blocks(rank: int, row: int, documents: Documents) -> Iterator[tuple[Span, Span, int]]:
    """A rank's queries in blocks of one document, no longer than the window: which of its tokens, their positions, and where their
    document starts."""
    assert documents.window is not None
    for offset, start, stop in documents.runs(rank, row):
        for document in documents.within(row, (start, stop)):
            last = min(stop, document[1])
            for first in range(max(start, document[0]), last, documents.window):
                end = min(first + documents.window, last)
                yield (first - start + offset, end - start + offset), (first, end), document[0]


def _windowed(rank: int, row: int, documents: Documents, held: Sequence[Run]) -> Iterator[Masked]:
    """All pairs of the rank's queries and of keys before their block, which are held in some runs, within the window and the
    document."""
    assert documents.window is not None
    for (query, query_end), (first, end), start in _blocks(rank, row, documents):
        everyone, leaving = end - documents.window, first - documents.window + 1
        for keys in _all_held(held, (max(start, everyone), first)):
            yield (query, query_end), keys[0], "all"
        for (key, key_end), (place, stop) in _all_held(held, (max(start, leaving), everyone)):
            seen = place - leaving  # queries before that one see all of these keys
            if seen:
                yield (query, query + seen), (key, key_end), "all"
            yield (query + seen, query + seen + stop - place), (key, key_end), "turned"


def _all_held(runs: Sequence[Run], span: Span) -> Iterator[tuple[Span, Span]]:
    """The parts of a span of the sequence that are held: where they lie, and their positions."""
    for offset, start, stop in runs:
        first, last = max(start, span[0]), min(stop, span[1])
        if first < last:
            yield (first - start + offset, last - start + offset), (first, last)


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
