"""A tokenizer.json and the files beside it as plain JSON, before the `tokenizers` library sees them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from fourfold.config import UserError
from fourfold.config.whole_file import bounded

SPEC_ALLOWED = '"bytes", "bpe:N" with N from 300 to 1000000 (for example "bpe:4096"), or the path of a tokenizer.json'
_MAX_FILE_BYTES = 1 << 29


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer.json as it is stored: `content` is its bytes, `table` its JSON object. The library has not seen it yet."""

    path: Path
    content: bytes
    table: dict[str, Any]

    def ids(self) -> dict[str, int]:
        """The id of every token by its text."""
        vocab = as_table(self.table.get("model")).get("vocab")
        if isinstance(vocab, list):  # Unigram: [text, score], in the order of the ids
            found = {as_text(pair): number for number, pair in enumerate(vocab)}
        else:
            found = dict(as_table(vocab))
        found.update({token["content"]: token.get("id") for token in self._added()})
        return {text: number for text, number in found.items() if isinstance(text, str) and is_id(number)}

    def special_ids(self) -> dict[str, int]:
        """The ids of special tokens alone: those that no text yields."""
        special = {token["content"] for token in self._added() if token.get("special") is True}
        return {text: number for text, number in self.ids().items() if text in special}

    def _added(self) -> list[dict[str, Any]]:
        added = self.table.get("added_tokens")
        return [token for token in map(as_table, as_list(added)) if isinstance(token.get("content"), str)]


def read_tokenizer_file(path: Path) -> TokenizerFile:
    """Reads a tokenizer.json. Raises `UserError` where it cannot be read or is no JSON object with a model."""
    try:
        content = bounded(path, _MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"data.tokenizer = {str(path)!r}: cannot be read: {reason}; allowed: {SPEC_ALLOWED}") from None
    try:
        table = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"data.tokenizer: {path} is not valid JSON ({error}); allowed: {SPEC_ALLOWED}") from None
    if not isinstance(table, dict) or not isinstance(table.get("model"), dict):
        raise UserError(
            f"data.tokenizer: {path} is not a tokenizer of the tokenizers library (it holds no model); allowed: {SPEC_ALLOWED}"
        )
    return TokenizerFile(path, content, table)


def beside(file: TokenizerFile, name: str) -> dict[str, Any]:
    """The JSON object in another file of the tokenizer's folder; {} where there is none. Raises `UserError` for a damaged one."""
    path = file.path.parent / name
    try:
        return as_table(json.loads(bounded(path)))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"data.tokenizer: {path}, beside the tokenizer, cannot be read ({error}); restore it or remove it"
        ) from None


def as_text(pair: object) -> str:
    """The text of a Unigram entry, [text, score]; "" where it is none."""
    first = next(iter(as_list(pair)), None)
    return first if isinstance(first, str) else ""


def is_id(value: object) -> TypeGuard[int]:
    """Whether a value out of JSON can be the id of a token."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def as_table(value: object) -> dict[str, Any]:
    """A JSON object; {} where the value is none."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """A JSON array; [] where the value is none."""
    return value if isinstance(value, list) else []
