"""Corpus to tokens to memory-mapped shards to global batches. Numpy arrays out; no torch."""

from fourfold.data.batches import IGNORED, Batch, GlobalBatches
from fourfold.data.indexed import IndexedTokens, open_indexed, write_indexed
from fourfold.data.prepare import prepare
from fourfold.data.prepared import PreparedData, PreparedPart, open_prepared
from fourfold.data.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer
from fourfold.data.tokenizer_spec import parse_tokenizer, train_bpe

__all__ = [
    "IGNORED",
    "Batch",
    "ByteTokenizer",
    "GlobalBatches",
    "IndexedTokens",
    "PreparedData",
    "PreparedPart",
    "Tokenizer",
    "load_tokenizer",
    "open_indexed",
    "open_prepared",
    "parse_tokenizer",
    "prepare",
    "train_bpe",
    "write_indexed",
]
