"""Attention of packed documents over a ring of ranks: placed in zig-zag, and by the work of the documents.

    python benchmarks/context_balance.py [--ring 4 --tokens 8192 --rows 64 --timed 6]

Rows of three corpora, in tokens of 1,024 byte pairs: the standard library, the headers of torch, texts on installed packages.
Unevenness: the pairs of query and key of the most loaded rank, divided by the mean, per row. Times: forward and backward of one
attention of fp32 on CPU ranks of one thread each, by ring and by gathered keys, until the last rank is done; both placements in
alternation on the same rows.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from fourfold.config.schema import DataSection
from fourfold.data.batches import GlobalBatches
from fourfold.data.prepare import prepare
from fourfold.model import torch_operations
from fourfold.model.context.attention import attend_backward, attend_forward
from fourfold.model.context.placement import Placement, balanced, unevenness, zigzag
from fourfold.model.environment import Environment, Saved
from fourfold.model.parallel import ContextParallel, Parallel
from tests.support.attention import UNREAD, Case, groups_of
from tests.support.ranks import run_on_ranks

HEADS, HEAD_DIM = 1, 64
PACKAGES = Path(torch.__file__).parents[1]
CORPORA = {
    "standard library": "stdlib",
    "headers of torch": f"{PACKAGES}/torch/include/**/*.h",
    "descriptions of packages": f"{PACKAGES}/*/METADATA",
}

Lengths = Sequence[Sequence[int]]


def rows_of(corpus: str, tokens: int, rows: int) -> list[tuple[int, ...]]:
    """The lengths of the documents of so many rows, as training reads them."""
    with tempfile.TemporaryDirectory() as folder:
        section = DataSection(corpus=corpus, tokenizer="bpe:1024", document_mask=True, directory=folder)
        batches = GlobalBatches(prepare(section, lambda line: None), tokens, rows, 0, True)
        lengths = batches.batch(0, range(rows)).document_lengths
    assert lengths is not None
    return list(lengths)


def seconds_on_rank(rank: int, ring: int, gather: bool, rows: Sequence[tuple[int, ...]]) -> list[tuple[float, float]]:
    """Per row, seconds in zig-zag and placed by work, until all ranks are done."""
    group = groups_of(Case(ring=ring).layout(), rank)["cp_ring"]
    env = Environment(torch_operations, UNREAD, Parallel(context=ContextParallel(group, None, gather)))
    shape = (1, sum(rows[0]) // ring, HEADS, HEAD_DIM)
    q, k, v, grad = (torch.randn(shape) for _ in range(4))

    def seconds(row: tuple[int, ...], placement: Placement) -> float:
        group.all_reduce(torch.zeros(1)).wait()
        begun = time.perf_counter()
        saved = Saved()
        out = attend_forward(env, [q, k, v], [row], saved, placement=placement)
        saved.keep(attention=out.view(-1, out.shape[-1]))
        attend_backward(env, [grad.reshape(out.shape[1], -1)], saved)
        group.all_reduce(torch.zeros(1)).wait()
        return time.perf_counter() - begun

    seconds(rows[0], zigzag(ring))
    found = []
    for row in chain.from_iterable([row] * 2 for row in rows):
        found.append((seconds(row, zigzag(ring)), seconds(row, balanced([row], ring))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("ring", 4), ("tokens", 8192), ("rows", 64), ("timed", 6)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    print(
        "| corpus | documents a row | unevenness, zig-zag: mean, worst | by work: mean, worst | ring: time | gathered: time |"
    )
    print("|---|---|---|---|---|---|")
    for name, corpus in CORPORA.items():
        rows = rows_of(corpus, options.tokens, options.rows)
        before = [unevenness(zigzag(options.ring), [row]) for row in rows]
        after = [unevenness(balanced([row], options.ring), [row]) for row in rows]
        cells: list[Any] = [name, f"{statistics.mean(map(len, rows)):.1f}"]
        cells += [f"{statistics.mean(each):.3f}, {max(each):.2f}" for each in (before, after)]
        for gather in (False, True):
            timed = {"ring": options.ring, "gather": gather, "rows": rows[: options.timed]}
            pairs = run_on_ranks(options.ring, seconds_on_rank, **timed)[0]
            cells.append(f"{statistics.median(placed / zigzagged for zigzagged, placed in pairs):.2f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
