"""What `data.tokenizer` says: "bytes", "bpe:N" (trained here, on training documents alone), or a path."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from fourfold.config import UserError
from fourfold.data.tokenizer import (
    END_OF_TEXT,
    SPEC_ALLOWED,
    ByteTokenizer,
    LibraryTokenizer,
    Tokenizer,
    load_tokenizer,
    split_at_lines,
    tokenizers_library,
)

MIN_BPE_VOCAB, MAX_BPE_VOCAB = 300, 1_000_000
TRAINING_CHARS = 1 << 30
"""A BPE is trained on at most this many characters of each part of the corpus."""


@dataclass(frozen=True)
class TokenizerSpec:
    """A checked `data.tokenizer`. `identity`: a short name for it, safe in a file name, that changes when it changes."""

    kind: Literal["bytes", "bpe", "file"]
    identity: str
    vocab_size: int = 0
    path: Path = Path()


def parse_tokenizer(value: str) -> TokenizerSpec:
    """Checks `data.tokenizer`. Raises `UserError` naming what is allowed."""
    if value == "bytes":
        return TokenizerSpec("bytes", "bytes", ByteTokenizer.vocab_size)
    if value.startswith("bpe:"):
        number = value.removeprefix("bpe:")
        if not re.fullmatch(r"[0-9]{1,7}", number) or not MIN_BPE_VOCAB <= int(number) <= MAX_BPE_VOCAB:
            raise UserError(f"data.tokenizer = {value!r}: not a vocabulary size; allowed: {SPEC_ALLOWED}")
        return TokenizerSpec("bpe", f"bpe-{int(number)}", int(number))
    path = Path(value).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if not value or not path.is_file():
        raise UserError(f"data.tokenizer = {value!r}: neither a known kind nor a file; allowed: {SPEC_ALLOWED}")
    return TokenizerSpec("file", "file-" + sha256(path.read_bytes()).hexdigest()[:12], path=path)


def make_tokenizer(spec: TokenizerSpec, training_texts: Iterable[str]) -> Tokenizer:
    """Loads or trains the tokenizer; the texts are read for a BPE alone."""
    if spec.kind == "bytes":
        return ByteTokenizer()
    return load_tokenizer(spec.path) if spec.kind == "file" else train_bpe(training_texts, spec.vocab_size)


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
    inner.train_from_iterator((piece for text in texts for piece in split_at_lines(text)), trainer)
    return LibraryTokenizer(inner, inner.token_to_id(END_OF_TEXT))


def first_chars(texts: Iterable[str], limit: int) -> Iterator[str]:
    """Whole texts from the front until `limit` characters have been given out."""
    given = 0
    for text in texts:
        yield text
        given += len(text)
        if given >= limit:
            return
