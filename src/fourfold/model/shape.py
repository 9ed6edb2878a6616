"""One microbatch on one rank, as the formulas of footprints see it: sizes, number formats and degrees."""

from dataclasses import dataclass

from fourfold.config import DTYPE_BYTES, ModelConfig
from fourfold.model.low_precision import GemmRecipe

LOGITS_CHUNK_ELEMENTS = 2**21
ACCELERATOR_CHUNK_ELEMENTS = 2**26
"""An accelerator needs larger matmuls than a processor's cache wants: 268 MB of logits in fp32."""
KERNEL_CHUNK_ELEMENTS = 3 * ACCELERATOR_CHUNK_ELEMENTS
"""Kernels of cross-entropy hold 2 bytes for a logit in bf16, formulas 6 at once: the same memory."""
MIN_CHUNK_TOKENS = 128
CAPPED_ROWS = 128
"""Queries of a block of attention whose scores are capped."""
SCORE_TILE = 1024
"""Queries, and keys, of a tile in which the largest score is sought."""
FULL_TILES, FULL_WAVES = 256, 1024
"""Tokens of full tiles of an accelerator's matmuls; and of as many as give, with the hidden sizes of usual models, a number of
tiles just below a multiple of 132 multiprocessors."""


def chunk_tokens(vocab_size: int, accelerator: bool = False) -> int:
    """Tokens whose logits over `vocab_size` columns (a rank's part of the vocabulary) the head holds at once."""
    if accelerator:
        return _full_tiles(ACCELERATOR_CHUNK_ELEMENTS // vocab_size)
    return max(MIN_CHUNK_TOKENS, LOGITS_CHUNK_ELEMENTS // vocab_size)


def kernel_chunk_tokens(vocab_size: int) -> int:
    """`chunk_tokens` on an accelerator where kernels compute the cross-entropy of logits in bf16."""
    return _full_tiles(KERNEL_CHUNK_ELEMENTS // vocab_size)


def _full_tiles(tokens: int) -> int:
    """The most of so many tokens that are full tiles."""
    for size in (FULL_WAVES, FULL_TILES):
        if tokens >= size:
            return tokens - tokens % size
    return MIN_CHUNK_TOKENS


@dataclass(frozen=True)
class Shape:
    """One microbatch on one rank: `sequences` of `sequence_length` tokens, computed in `compute` with gradients in `gradients`.

    `exchange`: the ranks are processors over gloo. There a reduce-scatter sends each part to its owner, who needs a staging buffer.
    Otherwise the ranks are accelerators and use the collectives of NCCL. `kernels`: norms, cross-entropy, SwiGLU and rotary
    embedding are kernels that read and write every number once, as a run on CUDA may choose (`kernels.kinds`), not formulas.
    """

    sequences: int
    sequence_length: int
    compute: str
    gradients: str
    document_mask: bool
    tp: int = 1
    sequence_parallel: bool = False
    tp_copies: int = 1
    cp_ring: int = 1
    cp_ulysses: int = 1
    cp_gather: bool = False
    ep: int = 1
    etp: int = 1
    exchange: bool = True
    recipe: GemmRecipe | None = None
    kernels: bool = False

    @property
    def tokens(self) -> int:
        """T: tokens of the microbatch on one rank of `tp`, before sequence parallelism splits them."""
        return self.sequences * self.sequence_length // (self.cp_ring * self.cp_ulysses)

    @property
    def hidden_tokens(self) -> int:
        """t: those whose hidden states the rank holds."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.compute]

    @property
    def accumulation_bytes(self) -> int:
        return max(4, self.element_bytes)

    def degree(self, axis: str) -> int:
        """The degree of a model-parallel axis."""
        return self.tp // self.tp_copies if axis == "tp_head" else int(getattr(self, axis))

    def heads(self, model: ModelConfig) -> tuple[int, int]:
        """(query heads, key and value heads) of one rank."""
        return model.num_heads // self.tp, model.num_kv_heads * self.tp_copies // self.tp
