"""Fills a cache folder: loads the tokenizer or trains one (a byte-level BPE), encodes every text corpus, counts the tokens, writes
the manifest."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fourfold.data.cuts import cut, cut_places
from fourfold.data.indexed import IndexedWriter, write_indexed
from fourfold.data.manifest import TextCorpus
from fourfold.data.prepared import TOKEN_FILES, text_digest
from fourfold.data.token_corpus import TokenCorpus, count_tokens, token_streams
from fourfold.data.tokenizer import (
    END_OF_TEXT,
    ByteTokenizer,
    LibraryTokenizer,
    Tokenizer,
    load_tokenizer,
    tokenizers_library,
)
from fourfold.data.tokenizer_file import TokenizerSpec

TRAINING_CHARS = 1 << 30
"""A BPE is trained on at most this many characters of each part of the corpus."""
Corpus = TextCorpus | TokenCorpus
Report = Callable[[str], None]

_BATCH_CHARS = 1 << 22
_REPORT_SECONDS = 10.0


def make_tokenizer(spec: TokenizerSpec, training_texts: Iterable[str]) -> Tokenizer:
    """Loads or trains the tokenizer; the texts are read for a BPE alone."""
    if spec.kind == "bytes":
        return ByteTokenizer()
    return load_tokenizer(spec.path, spec.eos) if spec.kind == "file" else train_bpe(training_texts, spec.vocab_size)


def train_bpe(texts: Iterable[str], vocab_size: int) -> LibraryTokenizer:
    """A byte-level BPE (Sennrich et al. 2016; bytes as in GPT-2) with end-of-text as id 0.

    The same texts in any order give the same tokenizer. A small corpus may hold too few pairs to reach `vocab_size`.
    """
    library = tokenizers_library()
    inner = library.Tokenizer(library.models.BPE())
    inner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    places = cut_places(inner)
    inner.train_from_iterator((piece for text in texts for piece in cut(text, places)), trainer)
    return LibraryTokenizer(inner, inner.token_to_id(END_OF_TEXT))


def first_chars(texts: Iterable[str], limit: int) -> Iterator[str]:
    """Whole texts from the front until `limit` characters have been given out."""
    given = 0
    for text in texts:
        yield text
        given += len(text)
        if given >= limit:
            return


def build_cache(
    folder: Path, corpus_id: str, corpora: Sequence[Corpus], spec: TokenizerSpec, tokenizer_name: str, report: Report
) -> None:
    """Writes tokenizer.json, manifest.json and, for part i, a folder part-i with

    counts.npy: occurrences of each id in the training and the validation tokens, int64 [2, vocab_size];
    for text: the pairs train and validation; for token ids: validation.npy, the validation token ranges, int64 [R, 2], and, but for
    a Megatron pair, token_files.json, their files.
    """
    begun = time.perf_counter()
    tokenizer = make_tokenizer(spec, _training_texts(corpora))
    tokenizer.save(folder / "tokenizer.json")
    if spec.kind == "bpe":
        short = (
            f" ({spec.vocab_size} were asked for: the corpus holds no more)"
            if tokenizer.vocab_size < spec.vocab_size
            else ""
        )
        seconds = time.perf_counter() - begun
        report(f"trained a BPE of {tokenizer.vocab_size} tokens in {seconds:.1f} s{short}")
    parts = []
    for number, corpus in enumerate(corpora):
        part_folder = folder / f"part-{number}"
        part_folder.mkdir()
        if isinstance(corpus, TextCorpus):
            sizes = _encode(corpus, tokenizer, spec.bos, part_folder, report)
        else:
            sizes = _count(corpus, tokenizer, tokenizer_name, part_folder)
        digest = text_digest(folder, part_folder.name) if isinstance(corpus, TextCorpus) else ""
        parts.append({**corpus.manifest(), "folder": part_folder.name, **sizes, "sha256": digest})
    manifest: dict[str, Any] = {
        "corpus_id": corpus_id,
        "tokenizer": tokenizer_name,
        "vocab_size": tokenizer.vocab_size,
        "eos": tokenizer.eos,
        "bos": spec.bos,
        "parts": parts,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def _training_texts(corpora: Sequence[Corpus]) -> Iterator[str]:
    for corpus in corpora:
        if isinstance(corpus, TextCorpus):
            yield from first_chars((train for train, _ in corpus.documents() if train), TRAINING_CHARS)


def _encode(
    corpus: TextCorpus, tokenizer: Tokenizer, begin: tuple[int, ...], folder: Path, report: Report
) -> dict[str, int]:
    begun = reported = time.perf_counter()
    num_chars = 0
    counts = np.zeros((2, tokenizer.vocab_size), np.int64)
    with (
        write_indexed(folder / "train", tokenizer.vocab_size) as train,
        write_indexed(folder / "validation", tokenizer.vocab_size) as validation,
    ):
        for batch in _batched(corpus):
            for side, writer in enumerate((train, validation)):
                texts = [pair[side] for pair in batch if pair[side]]
                counts[side] += _append(writer, tokenizer, begin, texts)
            num_chars += sum(len(text) for pair in batch for text in pair)
            if time.perf_counter() - reported > _REPORT_SECONDS:
                reported = time.perf_counter()
                report(f"{corpus.name}: {num_chars / 1e6:.0f} million characters encoded")
        sizes = {
            "train_tokens": train.num_tokens,
            "validation_tokens": validation.num_tokens,
            "train_documents": train.num_documents,
            "validation_documents": validation.num_documents,
        }
    sizes["inner_ends"] = int(counts[:, tokenizer.eos].sum()) - train.num_documents - validation.num_documents
    np.save(folder / "counts.npy", counts)
    seconds = time.perf_counter() - begun
    report(
        f"{corpus.name}: encoded {num_chars} characters in {seconds:.1f} s: {sizes['train_tokens']} training tokens, "
        f"{sizes['validation_tokens']} for validation"
    )
    return sizes


def _batched(corpus: TextCorpus) -> Iterator[list[tuple[str, str]]]:
    """Documents in groups of some four million characters: enough to keep the encoder's threads busy."""
    batch, num_chars = [], 0
    for pair in corpus.documents():
        batch.append(pair)
        num_chars += len(pair[0]) + len(pair[1])
        if num_chars >= _BATCH_CHARS:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch


def _append(writer: IndexedWriter, tokenizer: Tokenizer, begin: tuple[int, ...], texts: list[str]) -> np.ndarray:
    """Writes documents, each with `begin` before it and end-of-text behind it.

    Returns the occurrences of each id, int64 [vocab_size]."""
    if not texts:
        return np.zeros(tokenizer.vocab_size, np.int64)
    start, end = np.array(begin, np.int32), np.array([tokenizer.eos], np.int32)
    documents = [np.concatenate([start, ids, end]) for ids in tokenizer.encode_batch(texts)]
    for ids in documents:
        writer.append(ids)
    return np.bincount(np.concatenate(documents), minlength=tokenizer.vocab_size)


def _count(corpus: TokenCorpus, tokenizer: Tokenizer, tokenizer_name: str, folder: Path) -> dict[str, int]:
    streams = token_streams(corpus.files, corpus.validation)
    counts = [count_tokens(stream, corpus, tokenizer.vocab_size, tokenizer_name) for stream in streams]
    if not corpus.is_pair:
        (folder / TOKEN_FILES).write_text(
            json.dumps([asdict(file) for file in corpus.files], indent=1), encoding="utf-8"
        )
    np.save(folder / "counts.npy", np.stack(counts))
    np.save(folder / "validation.npy", corpus.validation)
    return {
        "train_tokens": len(streams[0]),
        "validation_tokens": len(streams[1]),
        "train_documents": corpus.num_documents - corpus.num_validation_documents,
        "validation_documents": corpus.num_validation_documents,
    }
