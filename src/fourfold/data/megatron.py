"""A Megatron pair as a corpus: read where it lies, never rewritten; its validation set is a list of token ranges."""

import os
from dataclasses import asdict, dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy as np

from fourfold.config import UserError
from fourfold.data.indexed import IndexedTokens, open_indexed
from fourfold.data.manifest import identify
from fourfold.data.split import Split, SplitSurvey
from fourfold.data.stream import TokenStream, complement

_CHUNK_BYTES = 1 << 20
_FULL_HASH_BYTES = 1 << 30
_NUM_SAMPLES = 256


@dataclass(frozen=True, eq=False)
class MegatronCorpus:
    """A checked pair. `validation`: token ranges (start, stop) of the validation set, int64 [R, 2], rising and disjoint."""

    name: str
    prefix: str
    corpus_id: str
    files: tuple[tuple[str, int, str], ...]
    split: Split
    validation: np.ndarray
    num_documents: int
    num_validation_documents: int

    def manifest(self) -> dict[str, Any]:
        """The corpus's part of the manifest, as JSON."""
        return {
            "name": self.name,
            "kind": "megatron",
            "corpus_id": self.corpus_id,
            "prefix": self.prefix,
            "documents": self.num_documents,
            "validation_documents": self.num_validation_documents,
            "validation_rule": asdict(self.split),
            "files": [{"path": path, "size_bytes": size, "sha256": digest} for path, size, digest in self.files],
            "sha256_of": f"the whole file up to {_FULL_HASH_BYTES} bytes, else {_NUM_SAMPLES} evenly spaced MiB of it",
        }


def scan_megatron(name: str, prefix: str, validation_every: int) -> MegatronCorpus:
    """Checks a pair and divides its documents: a document is for validation by the hash of its index, in decimal.

    Raises `RunFailure` where the pair is damaged and `UserError` where it holds no tokens.
    """
    indexed = open_indexed(prefix)
    if len(indexed.tokens) < 2:
        raise UserError(
            f"data.corpus = {name!r}: the Megatron pair holds {len(indexed.tokens)} tokens; at least 2 are needed"
        )
    split, validation, num_validation = _divide(indexed, validation_every)
    paths = [Path(prefix + suffix) for suffix in (".bin", ".idx")]
    files = tuple((path.name, os.path.getsize(path), _fingerprint(path)) for path in paths)
    return MegatronCorpus(
        name, prefix, identify(files), files, split, validation, indexed.num_documents, num_validation
    )


def train_stream(indexed: IndexedTokens, validation: np.ndarray) -> TokenStream:
    """The tokens outside the validation ranges."""
    return TokenStream(indexed.tokens, complement(validation, len(indexed.tokens)))


def count_tokens(stream: TokenStream, vocab_size: int, name: str, tokenizer: str) -> np.ndarray:
    """Occurrences of each id, int64 [vocab_size]. Raises `UserError` for an id outside the tokenizer's vocabulary."""
    counts = np.zeros(vocab_size, np.int64)
    for chunk in stream.chunks():
        for value in (int(chunk.min()), int(chunk.max())):
            if not 0 <= value < vocab_size:
                raise UserError(
                    f"data.corpus = {name!r}: holds the token id {value}, but data.tokenizer = {tokenizer!r} has "
                    f"{vocab_size} ids (0 to {vocab_size - 1}); name the tokenizer.json with which the pair was made"
                )
        counts += np.bincount(chunk, minlength=vocab_size)
    return counts


def _divide(indexed: IndexedTokens, every: int) -> tuple[Split, np.ndarray, int]:
    offsets = indexed.document_offsets
    not_empty = np.flatnonzero(np.diff(offsets) > 0)
    survey = SplitSurvey(every)
    for index in not_empty:
        survey.add(_key(index))
    split = survey.finish()
    if split.rule == "tail":
        start, stop = int(offsets[not_empty[0]]), int(offsets[not_empty[0] + 1])
        return split, np.array([[start + split.cut(stop - start), stop]], np.int64), 0
    validation = np.array([index for index in not_empty if split.is_validation(_key(index))], np.int64)
    return split, _merge(np.stack([offsets[validation], offsets[validation + 1]], axis=1)), len(validation)


def _key(index: np.integer) -> bytes:
    return str(int(index)).encode()


def _merge(ranges: np.ndarray) -> np.ndarray:
    """Joins ranges that touch."""
    separate = ranges[1:, 0] != ranges[:-1, 1]
    starts = ranges[:, 0][np.concatenate([[True], separate])]
    stops = ranges[:, 1][np.concatenate([separate, [True]])]
    return np.stack([starts, stops], axis=1)


def _fingerprint(path: Path) -> str:
    """SHA-256 of the file, or of its size and evenly spaced samples where reading it all would hold up every start."""
    digest, size = sha256(), os.path.getsize(path)
    with open(path, "rb") as stream:
        if size <= _FULL_HASH_BYTES:
            return file_digest(stream, sha256).hexdigest()
        digest.update(str(size).encode())
        for sample in range(_NUM_SAMPLES):
            stream.seek((size - _CHUNK_BYTES) * sample // (_NUM_SAMPLES - 1))
            digest.update(stream.read(_CHUNK_BYTES))
    return digest.hexdigest()
