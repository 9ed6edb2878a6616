"""Parses `data.tokenizer`: "bytes", "bpe:N" (trained here, on training documents alone), or a path."""

import re
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from fourfold.config import UserError
from fourfold.config.beside import where_looked

SPEC_ALLOWED = '"bytes", "bpe:N" with N from 300 to 1000000 (for example "bpe:4096"), or the path of a tokenizer.json'
BYTES_VOCAB_SIZE = 257
"""256 bytes and end-of-text."""
MIN_BPE_VOCAB, MAX_BPE_VOCAB = 300, 1_000_000


@dataclass(frozen=True)
class TokenizerSpec:
    """A checked `data.tokenizer`. `identity`: a short name for it, safe in a file name, that changes when it changes.
    `eos`: the id of a file's end-of-text token, where it is stated."""

    kind: Literal["bytes", "bpe", "file"]
    identity: str
    vocab_size: int = 0
    path: Path = Path()
    eos: int | None = None


def parse_tokenizer(value: str, eos: int | None = None) -> TokenizerSpec:
    """Checks `data.tokenizer`, and `data.eos` beside it. Raises `UserError` naming what is allowed."""
    spec = _parse(value)
    if eos is None:
        return spec
    if spec.kind != "file":
        raise UserError(
            f"data.eos = {eos}: data.tokenizer = {value!r} makes its own end-of-text token; leave data.eos out, or name a "
            "tokenizer.json as data.tokenizer"
        )
    return replace(spec, identity=f"{spec.identity}-eos{eos}", eos=eos)


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
    return TokenizerSpec("file", "file-" + sha256(path.read_bytes()).hexdigest()[:12], path=path)
