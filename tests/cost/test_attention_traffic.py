"""Attention's traffic is what a literal run of each algorithm loads and stores, and the literal run gives attention's result."""

import math
import random

import pytest

from fourfold.cost.attention_traffic import (
    STATISTIC_BYTES,
    FlashLoop,
    Order,
    Tiles,
    Traffic,
    least_bytes,
    standard_passes,
    tiles_of,
)

Matrix = list[list[float]]
SIZES = [
    Tiles(tokens, dim, rows, columns, causal)
    for tokens in (1, 7, 12)
    for dim, rows, columns in ((1, 1, 1), (2, 3, 4), (3, 4, 3), (2, 12, 12), (2, 5, 2))
    for causal in (False, True)
]


class Memory:
    """Slow memory: matrices by name. Every element that is read or written there counts."""

    def __init__(self, tiles: Tiles, **matrices: Matrix) -> None:
        self.matrices, self.loaded, self.stored = matrices, 0, 0
        self._element = {"l": STATISTIC_BYTES, "m": STATISTIC_BYTES}
        self._default = tiles.element_bytes

    def _size(self, name: str, rows: Matrix) -> int:
        return sum(map(len, rows)) * self._element.get(name, self._default)

    def load(self, name: str, rows: range) -> Matrix:
        found = [list(self.matrices[name][row]) for row in rows]
        self.loaded += self._size(name, found)
        return found

    def store(self, name: str, rows: range, values: Matrix) -> None:
        for row, value in zip(rows, values, strict=True):
            self.matrices[name][row] = list(value)
        self.stored += self._size(name, values)

    @property
    def traffic(self) -> Traffic:
        return Traffic(self.loaded, self.stored)


def drawn(tiles: Tiles) -> dict[str, Matrix]:
    draw = random.Random(3)
    return {name: [[draw.uniform(-1, 1) for _ in range(tiles.head_dim)] for _ in range(tiles.tokens)] for name in "qkv"}


def attention(tiles: Tiles, q: Matrix, k: Matrix, v: Matrix) -> Matrix:
    found = []
    for row, query in enumerate(q):
        seen = range(row + 1 if tiles.causal else tiles.tokens)
        weights = [math.exp(sum(a * b for a, b in zip(query, k[key], strict=True))) for key in seen]
        total = sum(weights)
        found.append(
            [sum(w * v[key][c] for key, w in zip(seen, weights, strict=True)) / total for c in range(len(query))]
        )
    return found


def rows_of(tile: int, size: int, tokens: int) -> range:
    return range(tile * size, min(tokens, (tile + 1) * size))


def run(tiles: Tiles, order: Order) -> tuple[Memory, list[tuple[tuple[int, int], Traffic]]]:
    """Algorithm 1 of either paper, tile by tile: the memory after it, and (tile, what had moved) after every tile."""
    n = tiles.tokens
    memory = Memory(tiles, **drawn(tiles), o=[[0.0] * tiles.head_dim] * n, l=[[0.0]] * n, m=[[0.0]] * n)
    seen: list[tuple[tuple[int, int], Traffic]] = []

    def update(
        rows: range, keys: range, q: Matrix, k: Matrix, v: Matrix, o: Matrix, sums: Matrix, tops: Matrix
    ) -> None:
        """The online softmax; o is kept normalised."""
        for at, row in enumerate(rows):
            pairs = [
                (key, value) for number, key, value in zip(keys, k, v, strict=True) if not tiles.causal or number <= row
            ]
            if not pairs:
                continue
            scores = [sum(a * b for a, b in zip(q[at], key, strict=True)) for key, _ in pairs]
            top = max(tops[at][0], *scores)
            weights = [math.exp(score - top) for score in scores]
            before = sums[at][0] * math.exp(tops[at][0] - top)
            total = before + sum(weights)
            o[at] = [
                (before * old + sum(w * value[c] for w, (_, value) in zip(weights, pairs, strict=True))) / total
                for c, old in enumerate(o[at])
            ]
            sums[at], tops[at] = [total], [top]

    def skipped(rows: range, keys: range) -> bool:
        return tiles.causal and keys[0] > rows[-1]

    everything = range(n)
    if order == "2022":
        memory.store("o", everything, [[0.0] * tiles.head_dim for _ in everything])
        memory.store("l", everything, [[0.0] for _ in everything])
        memory.store("m", everything, [[-math.inf] for _ in everything])
        for j in range(tiles.key_tiles):
            keys = rows_of(j, tiles.key_rows, n)
            k, v = memory.load("k", keys), memory.load("v", keys)
            for i in range(tiles.query_tiles):
                rows = rows_of(i, tiles.query_rows, n)
                if skipped(rows, keys):
                    continue
                q, o, sums, tops = (memory.load(name, rows) for name in "qolm")
                update(rows, keys, q, k, v, o, sums, tops)
                for name, values in zip("olm", (o, sums, tops), strict=True):
                    memory.store(name, rows, values)
                seen.append(((i, j), memory.traffic))
        return memory, seen
    for i in range(tiles.query_tiles):
        rows = rows_of(i, tiles.query_rows, n)
        q, o = memory.load("q", rows), [[0.0] * tiles.head_dim for _ in rows]
        sums, tops = [[0.0] for _ in rows], [[-math.inf] for _ in rows]
        for j in range(tiles.key_tiles):
            keys = rows_of(j, tiles.key_rows, n)
            if skipped(rows, keys):
                continue
            update(rows, keys, q, memory.load("k", keys), memory.load("v", keys), o, sums, tops)
            seen.append(((i, j), memory.traffic))
        memory.store("o", rows, o)
        memory.store("l", rows, [[a[0] + math.log(b[0])] for a, b in zip(tops, sums, strict=True)])
        seen[-1] = (seen[-1][0], memory.traffic)
    return memory, seen


@pytest.mark.parametrize("order", ["2022", "2023"])
@pytest.mark.parametrize("tiles", SIZES, ids=str)
def test_the_count_is_that_of_a_literal_run(tiles: Tiles, order: Order) -> None:
    memory, seen = run(tiles, order)
    loop = FlashLoop(tiles, order)
    starts = [0, *loop.ends]
    counted = [
        (loop.place(turn, number), loop.after(turn, number))
        for turn, end in enumerate(loop.ends)
        for number in range(1, end - starts[turn] + 1)
    ]
    assert counted == seen
    assert loop.total == memory.traffic
    expected = attention(tiles, *(memory.matrices[name] for name in "qkv"))
    for row, other in zip(memory.matrices["o"], expected, strict=True):
        assert row == pytest.approx(other)


@pytest.mark.parametrize("tiles", SIZES, ids=str)
def test_the_standard_algorithm_writes_its_scores_and_reads_them(tiles: Tiles) -> None:
    n, everything = tiles.tokens, range(tiles.tokens)
    memory = Memory(tiles, **drawn(tiles), s=[[0.0]] * n, p=[[0.0]] * n, o=[[0.0]] * n)
    q, k = memory.load("q", everything), memory.load("k", everything)
    scores = [[sum(a * b for a, b in zip(row, key, strict=True)) for key in k] for row in q]
    memory.store("s", everything, scores)
    s = memory.load("s", everything)
    weights = [
        [math.exp(x) if not tiles.causal or c <= r else 0.0 for c, x in enumerate(row)] for r, row in enumerate(s)
    ]
    memory.store("p", everything, [[w / sum(row) for w in row] for row in weights])
    p, v = memory.load("p", everything), memory.load("v", everything)
    memory.store(
        "o",
        everything,
        [[sum(w * x[c] for w, x in zip(row, v, strict=True)) for c in range(tiles.head_dim)] for row in p],
    )
    passes = standard_passes(tiles).values()
    assert memory.traffic == Traffic(sum(each.loaded for each in passes), sum(each.stored for each in passes))
    assert memory.matrices["o"][-1] == pytest.approx(attention(tiles, *(memory.matrices[name] for name in "qkv"))[-1])


def test_figures_by_hand() -> None:
    """1,024 tokens, heads of 64, 100 kB: B_c = 50,000 / 256 = 195, B_r = 64, T_r = 16, T_c = 6; a row has 128 bytes."""
    tiles = tiles_of(1024, 64, 100_000, causal=False)
    assert (tiles.query_rows, tiles.key_rows, tiles.query_tiles, tiles.key_tiles) == (64, 195, 16, 6)
    assert FlashLoop(tiles, "2023").total == Traffic((1 + 2 * 16) * 1024 * 128, 1024 * 132)
    assert FlashLoop(tiles, "2022").total == Traffic(2 * 1024 * 128 + 6 * 1024 * 264, 7 * 1024 * 136)
    standard = sum(each.bytes for each in standard_passes(tiles).values())
    assert standard == 4 * 1024**2 * 2 + 4 * 1024 * 128
    assert least_bytes(tiles) == 4 * 1024 * 128


def test_traffic_falls_with_fast_memory_and_a_causal_mask_spares_half() -> None:
    """Theorem 2: N^2 d^2 / M, where fast memory holds few of the sequence's tiles."""
    sizes = [FlashLoop(tiles_of(65536, 128, m, causal=False), "2022").total.bytes for m in (2**16, 2**17, 2**18)]
    assert sizes[0] / sizes[1] == pytest.approx(2, rel=0.05)
    assert sizes[1] / sizes[2] == pytest.approx(2, rel=0.05)
    for order in ("2022", "2023"):
        half, full = (FlashLoop(tiles_of(65536, 128, 2**17, causal), order).total.bytes for causal in (True, False))
        assert half / full == pytest.approx(0.5, rel=0.05)
