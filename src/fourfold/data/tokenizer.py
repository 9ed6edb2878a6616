"""Text to token ids and back: bytes, a byte-level BPE, or any tokenizer.json."""

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fourfold.config import UserError
from fourfold.config.errors import shortened
from fourfold.data import cuts
from fourfold.data.cuts import cut, cut_places
from fourfold.data.tokenizer_file import BYTES_VOCAB_SIZE, SPEC_ALLOWED, end_of_text, read_tokenizer_file

END_OF_TEXT = "<|endoftext|>"
_GROUP_CHARS = 1 << 22
_MAX_VOCAB = 1 << 27


class Tokenizer(Protocol):
    """The interface of a tokenizer for the data, the model and the sampler. `eos` is the id of the end-of-text token."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos(self) -> int: ...

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """Token ids of each text, int32 [length], without end-of-text; a text never yields a special token."""
        ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of token ids; special tokens and ids beyond the vocabulary are left out."""
        ...

    def save(self, path: Path) -> None:
        """Writes a tokenizer.json that `load_tokenizer` and the `tokenizers` library read."""
        ...


class ByteTokenizer:
    """The 256 byte values of UTF-8, and 256 for end-of-text."""

    vocab_size = BYTES_VOCAB_SIZE
    eos = 256

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """Token ids of each text, int32 [bytes]."""
        return [np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32) for text in texts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD."""
        return bytes(int(i) for i in ids if 0 <= int(i) < 256).decode("utf-8", errors="replace")

    def save(self, path: Path) -> None:
        """Writes the same mapping as a BPE without merges, in the format of the `tokenizers` library."""
        path.write_text(json.dumps(_bytes_as_bpe(), ensure_ascii=False, indent=1), encoding="utf-8")


class LibraryTokenizer:
    """A tokenizer of the `tokenizers` library, with an end-of-text token. `inner` is a `tokenizers.Tokenizer`."""

    def __init__(self, inner: Any, eos: int) -> None:
        self._inner = inner
        self._eos = eos
        inner.no_truncation()
        inner.no_padding()
        self._vocab_size = max(inner.get_vocab(with_added_tokens=True).values()) + 1
        if self._vocab_size > _MAX_VOCAB:
            raise UserError(
                f"data.tokenizer: it has a token of the id {self._vocab_size - 1}; allowed: below {_MAX_VOCAB}"
            )
        # A document that spells out "<|endoftext|>" must not end there, so such text is encoded as text. The token that a folder
        # states to end texts may be a plain entry in its tokenizer.json.
        name = inner.id_to_token(eos)
        if name is not None and not getattr(inner.get_added_tokens_decoder().get(eos), "special", False):
            inner.add_special_tokens([name])
        if name is None or inner.token_to_id(name) != eos:
            raise UserError(
                f"data.tokenizer: its end-of-text token has the id {eos} in the file and another in the tokenizers library; "
                "correct the id in added_tokens"
            )
        inner.encode_special_tokens = True

    @property
    def vocab_size(self) -> int:
        """The largest id plus one (ids may have gaps)."""
        return self._vocab_size

    @property
    def eos(self) -> int:
        """The id of the end-of-text token."""
        return self._eos

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        """Token ids of each text, int32 [length]: those that the library gives for the whole text. Where that is proved to be
        the same, a long text is encoded in pieces, to bound the memory."""
        pieces = ((number, piece) for number, text in enumerate(texts) for piece in self._cut(text))
        ids: list[list[np.ndarray]] = [[] for _ in texts]
        for group in _groups(pieces):
            with _library_errors("data.tokenizer: it cannot encode the texts of the corpus"):
                encoded = self._inner.encode_batch_fast([piece for _, piece in group], add_special_tokens=False)
            for (number, _), encoding in zip(group, encoded, strict=True):
                ids[number].append(np.array(encoding.ids, dtype=np.int32))
        return [np.concatenate(each) for each in ids]

    def _cut(self, text: str) -> Iterable[str]:
        return cut(text, self._places, cuts.PIECE_CHARS) if len(text) > cuts.PIECE_CHARS else [text]

    @cached_property
    def _places(self) -> re.Pattern[str] | None:
        with _library_errors("data.tokenizer: it cannot say where texts may be cut"):
            return cut_places(self._inner)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of token ids, without special tokens."""
        known = [int(i) for i in ids if 0 <= int(i) < self._vocab_size]
        with _library_errors("data.tokenizer: it cannot decode what it encoded"):
            text: str = self._inner.decode(known, skip_special_tokens=True)
        return text

    def save(self, path: Path) -> None:
        """Writes tokenizer.json."""
        self._inner.save(str(path))


def load_tokenizer(path: Path | str, eos: int | None = None) -> Tokenizer:
    """Reads a tokenizer.json, or the one in a folder. `eos`: its end-of-text token; None: as `end_of_text` finds it.

    Raises `UserError` when there is none, when it is damaged, or when it has no such token.
    """
    given = Path(path).expanduser()
    file = read_tokenizer_file(given / "tokenizer.json" if given.is_dir() else given)
    if file.table == _bytes_as_bpe():
        return ByteTokenizer()
    library = tokenizers_library()
    with (
        _library_errors(f"data.tokenizer: {file.path} is not a tokenizer of the tokenizers library"),
        _without_panic_output(),
    ):
        inner = library.Tokenizer.from_str(file.content.decode("utf-8-sig"))
    return LibraryTokenizer(inner, end_of_text(file, eos))


def tokenizers_library() -> Any:
    """The `tokenizers` module, imported when first needed: the byte tokenizer does without it."""
    try:
        import tokenizers
    except ImportError:
        raise UserError(
            "data.tokenizer: this tokenizer needs the package tokenizers, which is not installed: pip install "
            "'fourfold[train]'; tokenizer = \"bytes\" works without it"
        ) from None
    return tokenizers


def _groups(pieces: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Pieces in groups of some four million characters: enough to keep the library's threads busy."""
    group, num_chars = [], 0
    for number, piece in pieces:
        group.append((number, piece))
        num_chars += len(piece)
        if num_chars >= _GROUP_CHARS:
            yield group
            group, num_chars = [], 0
    if group:
        yield group


@contextmanager
def _library_errors(what: str) -> Iterator[None]:
    """Turns the library's errors into a `UserError`: it raises bare `Exception`, and a Rust panic is no `Exception` at all."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise UserError(f"{what} ({shortened(str(error))[1:-1]}); allowed: {SPEC_ALLOWED}") from None


@contextmanager
def _without_panic_output() -> Iterator[None]:
    """Keeps off standard error what Rust writes there when it panics."""
    sys.stderr.flush()
    try:
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # standard error is closed
        yield
        return
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def byte_characters() -> list[str]:
    """The printable character that byte-level BPE vocabularies write for each byte value (GPT-2's convention).

    A byte that is a visible Latin-1 character stands for itself; the others, in order, are 256, 257, ...
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]


def _bytes_as_bpe() -> dict[str, Any]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    end_of_text = {"id": ByteTokenizer.eos, "content": END_OF_TEXT, "special": True, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{**end_of_text, "single_word": False, "lstrip": False, "rstrip": False}],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {character: byte for byte, character in enumerate(byte_characters())},
            "merges": [],
        },
    }
