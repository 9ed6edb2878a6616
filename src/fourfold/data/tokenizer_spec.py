"""Parses `data.tokenizer`: "bytes", "bpe:N" (trained here, on training documents alone), or a path."""

import re
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from fourfold.config import UserError
from fourfold.config.beside import where_looked
from fourfold.data.special_tokens import begin_of_text, end_of_text
from fourfold.data.tokenizer_file import SPEC_ALLOWED, read_tokenizer_file

BYTES_VOCAB_SIZE = 257
"""256 bytes and end-of-text."""
MIN_BPE_VOCAB, MAX_BPE_VOCAB = 300, 1_000_000


@dataclass(frozen=True)
class TokenizerSpec:
    """A checked `data.tokenizer`. `identity`: a short name for it, safe in a file name, that changes when it changes.
    `eos`: the id of a file's end-of-text token. `bos`: the ids that stand before every document."""

    kind: Literal["bytes", "bpe", "file"]
    identity: str
    vocab_size: int = 0
    path: Path = Path()
    eos: int | None = None
    bos: tuple[int, ...] = ()


def parse_tokenizer(value: str, eos: int | None = None, bos: bool | Literal["auto"] = "auto") -> TokenizerSpec:
    """Checks `data.tokenizer`, and `data.eos` and `data.bos` beside it; reads the files of a tokenizer's folder.

    Raises `UserError` naming what is allowed."""
    spec = _parse(value)
    if spec.kind == "file":
        file = read_tokenizer_file(spec.path)
        end, begin = end_of_text(file, eos), begin_of_text(file, bos)
        identity = "-".join(
            [f"file-{sha256(file.content).hexdigest()[:12]}-eos{end}", *(f"bos{number}" for number in begin)]
        )
        return replace(spec, identity=identity, eos=end, bos=begin)
    if bos is True:
        raise UserError(
            f"data.bos = true: data.tokenizer = {value!r} has no begin-of-text token; leave data.bos out, or name a tokenizer.json "
            "as data.tokenizer"
        )
    if eos is not None:
        raise UserError(
            f"data.eos = {eos}: data.tokenizer = {value!r} makes its own end-of-text token; leave data.eos out, or name a "
            "tokenizer.json as data.tokenizer"
        )
    return spec


def named_vocab_size(value: str) -> int | None:
    """The vocabulary of `"bytes"` or `"bpe:N"`; None of a file, which is not read. Raises `UserError` as `parse_tokenizer`."""
    return _parse(value).vocab_size if value == "bytes" or value.startswith("bpe:") else None


def _parse(value: str) -> TokenizerSpec:
    if value == "bytes":
        return TokenizerSpec("bytes", "bytes", BYTES_VOCAB_SIZE)
    if value.startswith("bpe:"):
        number = value.removeprefix("bpe:")
        if not re.fullmatch(r"[0-9]{1,7}", number) or not MIN_BPE_VOCAB <= int(number) <= MAX_BPE_VOCAB:
            raise UserError(f"data.tokenizer = {value!r}: not a vocabulary size; allowed: {SPEC_ALLOWED}")
        return TokenizerSpec("bpe", f"bpe-{int(number)}", int(number))
    path = Path(value).expanduser()
    path = path / "tokenizer.json" if path.is_dir() else path
    if not value or not path.is_file():
        raise UserError(
            f"data.tokenizer = {value!r}: neither a known kind nor a file{where_looked(value)}; allowed: {SPEC_ALLOWED}"
        )
    return TokenizerSpec("file", "file", path=path)
