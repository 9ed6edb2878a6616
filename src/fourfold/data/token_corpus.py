"""A corpus of token ids: files that are read where they lie, never rewritten; its validation set is a list of token ranges."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fourfold.config import UserError
from fourfold.data.file_digests import file_digests
from fourfold.data.indexed import JoinedTokens, TokenStream, complement
from fourfold.data.manifest import Split, SplitSurvey, identify
from fourfold.data.token_files import TokenFile, find_beyond

DIGESTS = ".digests.json"
"""The record of digests: in a cache folder, of the files in it; in the folder of caches, of files of token ids."""


@dataclass(frozen=True, eq=False)
class TokenCorpus:
    """Checked files. `validation`: token ranges (start, stop) of the validation set in all files together, int64 [R, 2], rising and
    disjoint. `files`: with their sizes and digests in `stored`."""

    name: str
    files: tuple[TokenFile, ...]
    corpus_id: str
    stored: tuple[tuple[str, int, str], ...]
    split: Split
    validation: np.ndarray
    num_documents: int
    num_validation_documents: int

    @property
    def prefix(self) -> str:
        """The pair of a corpus that is one Megatron pair; else ""."""
        return self.files[0].path if self.is_pair else ""

    @property
    def is_pair(self) -> bool:
        return len(self.files) == 1 and self.files[0].kind == "pair"

    def manifest(self) -> dict[str, Any]:
        """The corpus's part of the manifest, as JSON."""
        return {
            "name": self.name,
            "kind": "megatron" if self.is_pair else "tokens",
            "corpus_id": self.corpus_id,
            "prefix": self.prefix,
            "documents": self.num_documents,
            "validation_documents": self.num_validation_documents,
            "validation_rule": asdict(self.split),
            "files": [{"path": path, "size_bytes": size, "sha256": digest} for path, size, digest in self.stored],
        }


def scan_tokens(name: str, files: Sequence[TokenFile], survey: SplitSurvey, eos: int, record: Path) -> TokenCorpus:
    """Checks files and divides their documents: by the hash of a document's ids, as int32, without an end-of-text behind them.

    `record`: where `file_digests` keeps those of the files.

    Raises `RunFailure` where a file is damaged and `UserError` where there are no tokens.
    """
    arrays = [file.open() for file in files]
    tokens = JoinedTokens(arrays)
    if len(tokens) < 2:
        held = "the Megatron pair holds" if files[0].kind == "pair" else f"{len(files)} files of token ids hold"
        raise UserError(f"data.corpus = {name!r}: {held} {len(tokens)} tokens; at least 2 are needed")
    documents = [_documents(file, array, eos) for file, array in zip(files, arrays, strict=True)]
    ranges = np.concatenate([start + each for start, each in zip(tokens.starts, documents, strict=False)])
    split, chosen = _divide(arrays, documents, survey, eos)
    if split.rule == "tail":
        lengths = ranges[:, 1] - ranges[:, 0]
        validation = np.stack([ranges[:, 0] + [split.cut(length) for length in lengths.tolist()], ranges[:, 1]], axis=1)
    else:
        validation = _merge(ranges[chosen])
    paths = [path for file in files for path in file.paths]
    digests = file_digests(paths, record)
    stored = tuple((path.name, os.path.getsize(path), digest) for path, digest in zip(paths, digests, strict=True))
    return TokenCorpus(name, tuple(files), identify(stored), stored, split, validation, len(ranges), int(chosen.sum()))


def token_streams(files: Sequence[TokenFile], validation: np.ndarray) -> tuple[TokenStream, TokenStream]:
    """(training tokens, validation tokens): those outside the validation ranges, and those inside."""
    tokens = JoinedTokens([file.open() for file in files])
    return TokenStream(tokens, complement(validation, len(tokens))), TokenStream(tokens, validation)


def count_tokens(stream: TokenStream, corpus: TokenCorpus, vocab_size: int, tokenizer: str) -> np.ndarray:
    """Occurrences of each id, int64 [vocab_size]. Raises `UserError` for an id outside the tokenizer's vocabulary."""
    counts = np.zeros(vocab_size, np.int64)
    for chunk in stream.chunks():
        if not 0 <= int(chunk.min()) <= int(chunk.max()) < vocab_size and (
            found := find_beyond(corpus.files, vocab_size)
        ):
            path, place, value = found
            raise UserError(
                f"data.corpus = {corpus.name!r}: {path}: token {place} holds the token id {value}, but data.tokenizer = "
                f"{tokenizer!r} "
                f"has {vocab_size} ids (0 to {vocab_size - 1}); name the tokenizer.json with which the files were made"
            )
        counts += np.bincount(chunk, minlength=vocab_size)
    return counts


def _documents(file: TokenFile, tokens: np.ndarray, eos: int) -> np.ndarray:
    """(start, stop) of every document of a file that is not empty, int64 [D, 2]."""
    offsets = file.document_offsets(tokens, eos)
    ranges = np.stack([offsets[:-1], offsets[1:]], axis=1)
    return ranges[ranges[:, 0] < ranges[:, 1]]


def _divide(
    arrays: Sequence[np.ndarray], documents: Sequence[np.ndarray], survey: SplitSurvey, eos: int
) -> tuple[Split, np.ndarray]:
    """The split, and whether each document is for validation, bool [D]: none under "tail", where each is cut."""
    chosen = np.fromiter(map(survey.add, _contents(arrays, documents, eos)), bool)
    split = survey.finish()
    if split.rule == "last":
        chosen = np.fromiter(map(split.is_validation, _contents(arrays, documents, eos)), bool)
    return split, chosen & (split.rule != "tail")


def _contents(arrays: Sequence[np.ndarray], documents: Sequence[np.ndarray], eos: int) -> Iterator[bytes]:
    """The bytes of every document that its hash is of."""
    for array, ranges in zip(arrays, documents, strict=True):
        tokens = np.asarray(array)
        for start, stop in ranges.tolist():
            ids = tokens[start:stop]
            yield (ids[:-1] if ids[-1] == eos else ids).astype("<i4").tobytes()


def _merge(ranges: np.ndarray) -> np.ndarray:
    """Joins ranges that touch."""
    separate = ranges[1:, 0] != ranges[:-1, 1]
    starts = ranges[:, 0][np.concatenate([[True], separate])]
    stops = ranges[:, 1][np.concatenate([separate, [True]])]
    return np.stack([starts, stops], axis=1)
