"""One microbatch on one rank, as the formulas of footprints see it: sizes, number formats and degrees."""

from dataclasses import dataclass

from fourfold.config import DTYPE_BYTES, ModelConfig
from fourfold.model.low_precision import GemmRecipe

LOGITS_CHUNK_ELEMENTS = 2**21
ACCELERATOR_CHUNK_ELEMENTS = 2**26
"""An accelerator needs larger matmuls than a processor's cache wants: 268 MB of logits in fp32."""
MIN_CHUNK_TOKENS = 128


def chunk_tokens(vocab_size: int, accelerator: bool = False) -> int:
    """Tokens whose logits over `vocab_size` columns (a rank's part of the vocabulary) the head holds at once."""
    return max(MIN_CHUNK_TOKENS, (ACCELERATOR_CHUNK_ELEMENTS if accelerator else LOGITS_CHUNK_ELEMENTS) // vocab_size)


@dataclass(frozen=True)
class Shape:
    """One microbatch on one rank: `sequences` of `sequence_length` tokens, computed in `compute` with gradients in `gradients`.

    `exchange`: the ranks are processors over gloo. There a reduce-scatter sends each part to its owner, who needs a staging buffer.
    Otherwise the ranks are accelerators and use the collectives of NCCL. `kernels`: norms, cross-entropy, SwiGLU and rotary
    embedding are kernels that read and write every number once, as a run on CUDA may choose (`train.choices`), not formulas.
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
