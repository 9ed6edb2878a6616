"""Bytes that attention moves between a device's slow memory (HBM) and the fast memory on its chip, forward, one head.

Symbols of Dao et al. 2022, "FlashAttention": N tokens, head size d, M elements of fast memory. The standard algorithm (its
algorithm 0) writes the N x N scores and reads them again, twice: Theta(N d + N^2). Flash attention keeps tiles of B_r x B_c scores
in fast memory and never writes them: Theta(N^2 d^2 / M) (its theorem 2). Two orders of its loops are counted:

- `2022`, its algorithm 1: keys and values outside, queries inside. The output and its row statistics l and m are read and written
  for every tile.
- `2023`, algorithm 1 of Dao 2023, "FlashAttention-2": queries outside, keys and values inside. The output is written once, with one
  statistic a row, the logsumexp.

Caches between the two memories, which may serve a tile that another unit read before, are not counted.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

Order = Literal["2022", "2023"]
STATISTIC_BYTES = 4
"""A row statistic is kept in fp32."""


@dataclass(frozen=True)
class Traffic:
    """Bytes between the two memories."""

    loaded: int = 0
    stored: int = 0

    @property
    def bytes(self) -> int:
        return self.loaded + self.stored


@dataclass(frozen=True)
class Tiles:
    """The scores of one head, N x N, in tiles of `query_rows` x `key_rows` (B_r x B_c). The last tile of a side may be smaller.
    `causal`: tiles in which every key comes after every query are skipped."""

    tokens: int
    head_dim: int
    query_rows: int
    key_rows: int
    causal: bool
    element_bytes: int = 2

    @property
    def query_tiles(self) -> int:
        """T_r."""
        return -(-self.tokens // self.query_rows)

    @property
    def key_tiles(self) -> int:
        """T_c."""
        return -(-self.tokens // self.key_rows)

    def key_range(self, query_tile: int) -> range:
        """Tiles of keys that a tile of queries looks at."""
        if not self.causal:
            return range(self.key_tiles)
        last = min(self.tokens, (query_tile + 1) * self.query_rows) - 1
        return range(last // self.key_rows + 1)

    def query_range(self, key_tile: int) -> range:
        """Tiles of queries that look at a tile of keys."""
        return range(key_tile * self.key_rows // self.query_rows if self.causal else 0, self.query_tiles)


def tiles_of(tokens: int, head_dim: int, fast_bytes: float, causal: bool, element_bytes: int = 2) -> Tiles:
    """The tiles that fast memory has room for: B_c = M / (4 d), B_r = min(B_c, d) (Dao et al. 2022, algorithm 1)."""
    key_rows = min(tokens, max(1, int(fast_bytes // element_bytes) // (4 * head_dim)))
    return Tiles(tokens, head_dim, min(key_rows, head_dim), key_rows, causal, element_bytes)


@dataclass(frozen=True)
class FlashLoop:
    """Flash attention's loop over the tiles of a head. Outside: tiles of queries (2023), or of keys and values (2022)."""

    tiles: Tiles
    order: Order

    @property
    def _row_bytes(self) -> int:
        return self.tiles.head_dim * self.tiles.element_bytes

    def _inner(self, outer: int) -> range:
        return self.tiles.key_range(outer) if self.order == "2023" else self.tiles.query_range(outer)

    @cached_property
    def ends(self) -> list[int]:
        """Tiles of scores that are done when each turn of the outer loop ends."""
        outer = self.tiles.query_tiles if self.order == "2023" else self.tiles.key_tiles
        return list(accumulate(len(self._inner(turn)) for turn in range(outer)))

    @cached_property
    def _inner_rows(self) -> list[int]:
        """Rows that the inner loop has gone through before each turn of the outer one."""
        return [0, *accumulate(self._rows(turn, len(self._inner(turn))) for turn in range(len(self.ends)))]

    def _rows(self, turn: int, number: int) -> int:
        """Rows in the first `number` tiles of the inner loop."""
        inner = self._inner(turn)
        size = self.tiles.key_rows if self.order == "2023" else self.tiles.query_rows
        return min(self.tiles.tokens, (inner.start + number) * size) - min(self.tiles.tokens, inner.start * size)

    def place(self, turn: int, number: int) -> tuple[int, int]:
        """(tile of queries, tile of keys) of the `number`-th tile of a turn, from 1."""
        inner = self._inner(turn)[number - 1]
        return (turn, inner) if self.order == "2023" else (inner, turn)

    def after(self, turn: int, number: int) -> Traffic:
        """Bytes that have moved when `number` tiles of the outer loop's `turn` are done."""
        tiles, row, fresh = self.tiles, self._row_bytes, self.order == "2023"
        inner = self._inner_rows[turn] + self._rows(turn, number)
        outer = min(tiles.tokens, (turn + 1) * (tiles.query_rows if fresh else tiles.key_rows))
        if fresh:
            done = outer if number == len(self._inner(turn)) else turn * tiles.query_rows
            return Traffic(outer * row + 2 * inner * row, done * (row + STATISTIC_BYTES))
        state = row + 2 * STATISTIC_BYTES
        return Traffic(2 * outer * row + inner * (row + state), (tiles.tokens + inner) * state)

    @property
    def total(self) -> Traffic:
        """Bytes that all of it moves: with everything seen, loads of 2023 are (1 + 2 T_r) N d elements."""
        last = len(self.ends) - 1
        return self.after(last, len(self._inner(last)))


def standard_passes(tiles: Tiles) -> dict[str, Traffic]:
    """The standard algorithm by its three kernels (Dao et al. 2022, algorithm 0). A causal mask spares it nothing."""
    matrix = tiles.tokens * tiles.head_dim * tiles.element_bytes
    scores = tiles.tokens**2 * tiles.element_bytes
    return {
        "S = Q K^T": Traffic(2 * matrix, scores),
        "P = softmax(S)": Traffic(scores, scores),
        "O = P V": Traffic(scores + matrix, matrix),
    }


def least_bytes(tiles: Tiles) -> int:
    """Queries, keys and values read once, the output written once: no algorithm moves less."""
    return 4 * tiles.tokens * tiles.head_dim * tiles.element_bytes
