"""The shapes that one device is measured with: large, skinny and small ones, of a size that suits a GPU or a processor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fourfold.model.work import Attention, Gemm


@dataclass(frozen=True)
class Shapes:
    """`rows`: tokens of matmuls, `widths`: their columns and inner sizes. `tokens`: of attention and of `operators`, [tokens,
    hidden]. `copied_bytes`: of the copies that show the memory's speed. `models`: hidden size, feed-forward size, vocabulary of the
    steps that constants are fitted to; `checked`: of those that they are checked with, with layers. `batch`: sequences of a
    microbatch, tokens of a sequence."""

    rows: tuple[int, ...]
    widths: tuple[int, ...]
    largest: tuple[int, ...]
    queries: tuple[int, ...]
    head_sizes: tuple[int, ...]
    heads: int
    tokens: int
    operators: tuple[tuple[int, int], ...]
    copied_bytes: int
    pool_bytes: int
    models: tuple[tuple[int, int, int], ...]
    checked: tuple[tuple[int, int, int, int], ...]
    batches: tuple[tuple[int, int], ...]

    def gemms(self) -> list[Gemm]:
        """Products of tokens; each stands for its weight gradient too."""
        return [Gemm(*each) for each in product(self.rows, self.widths, self.widths)]

    def attentions(self) -> list[Attention]:
        """Causal attention of as many keys as queries, forward."""
        return [
            Attention(max(1, self.tokens // queries), queries, queries, self.heads, self.heads, width, width)
            for queries, width in product(self.queries, self.head_sizes)
        ]

    def fitted_tables(self, dtype: str) -> list[dict[str, Any]]:
        """Run tables of the steps that constants are fitted to."""
        return list(self._tables([(2, *each) for each in self.models], dtype))

    def checked_tables(self, dtype: str) -> list[dict[str, Any]]:
        """Run tables of other steps."""
        return list(self._tables(self.checked, dtype))

    def _tables(self, models: Sequence[tuple[int, int, int, int]], dtype: str) -> Iterator[dict[str, Any]]:
        """Every model with the first batch before any with the next: the time may end before all are measured."""
        for sequences, length in self.batches:
            for layers, hidden, ffn, vocabulary in models:
                width = max(self.head_sizes[0], min(128, hidden // 8))
                model = {"num_layers": layers, "hidden_size": hidden, "ffn_size": ffn, "vocab_size": vocabulary}
                yield {
                    "model": {**model, "num_heads": hidden // width},
                    "batch": {"global_sequences": 2 * sequences, "sequence_length": length, "steps": 1},
                    "layout": {"microbatch_sequences": sequences},
                    "precision": {"compute": dtype},
                }


PROCESSOR = Shapes(
    rows=(32, 128, 512, 2048),
    widths=(128, 384, 1024, 2816),
    largest=(512, 1024, 1536),
    queries=(64, 128, 256, 512, 1024, 2048),
    head_sizes=(32, 64, 128),
    heads=4,
    tokens=512,
    operators=((128, 256), (256, 512), (512, 1024)),
    copied_bytes=2**27,
    pool_bytes=96 * 2**20,
    models=((192, 512, 2048), (512, 1408, 4096)),
    checked=((4, 256, 768, 4096), (3, 384, 1024, 4096), (2, 640, 1728, 8192)),
    batches=((1, 128), (2, 256)),
)
GPU = Shapes(
    rows=(64, 512, 2048, 8192),
    widths=(512, 2048, 5120, 14336),
    largest=(4096, 8192, 12288),
    queries=(512, 1024, 2048, 4096, 8192, 16384),
    head_sizes=(64, 128),
    heads=16,
    tokens=16384,
    operators=((2048, 1024), (4096, 4096), (16384, 8192)),
    copied_bytes=2**31,
    pool_bytes=2**31,
    models=((2048, 5632, 32768), (4096, 14336, 32768)),  # smaller ones wait for the host
    checked=((4, 2560, 6912, 32768), (2, 3072, 8192, 32768)),
    batches=((1, 4096), (2, 4096)),
)


def shapes_of(device: str) -> Shapes:
    """`device`: cuda or cpu."""
    return GPU if device == "cuda" else PROCESSOR
