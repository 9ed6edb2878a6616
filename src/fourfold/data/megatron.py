"""A Megatron pair as a corpus: read where it lies, never rewritten; its validation set is a list of token ranges."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fourfold.config import UserError
from fourfold.data.file_digests import file_digests
from fourfold.data.indexed import IndexedTokens, TokenStream, complement, open_indexed
from fourfold.data.manifest import Split, SplitSurvey, identify

DIGESTS = ".digests.json"
"""The record of digests: in a cache folder, of the files in it; in the folder of caches, of Megatron pairs."""


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
        }


def scan_megatron(name: str, prefix: str, validation_every: int, record: Path) -> MegatronCorpus:
    """Checks a pair and divides its documents: a document is for validation by the hash of its index, in decimal.

    `record`: where `file_digests` keeps those of pairs.

    Raises `RunFailure` where the pair is damaged and `UserError` where it holds no tokens.
    """
    indexed = open_indexed(prefix)
    if len(indexed.tokens) < 2:
        raise UserError(
            f"data.corpus = {name!r}: the Megatron pair holds {len(indexed.tokens)} tokens; at least 2 are needed"
        )
    split, validation, num_validation = _divide(indexed, validation_every)
    paths = pair_files(prefix)
    digests = file_digests(paths, record)
    files = tuple((path.name, os.path.getsize(path), digest) for path, digest in zip(paths, digests, strict=True))
    return MegatronCorpus(
        name, prefix, identify(files), files, split, validation, indexed.num_documents, num_validation
    )


def pair_files(prefix: str) -> list[Path]:
    """The two files of a pair."""
    return [Path(prefix + suffix) for suffix in (".bin", ".idx")]


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
