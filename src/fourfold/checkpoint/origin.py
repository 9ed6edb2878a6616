"""The folder that a run's weights came from: its tokenizer's files and its generation_config.json, carried to an export."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fourfold.checkpoint import folders
from fourfold.config import UserError
from fourfold.config.whole_file import bounded

TOKENIZER = "tokenizer.json"
_TOKENIZER_FILES = (
    TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
    "vocab.json", "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model",
)  # fmt: skip
_TEMPLATES = "additional_chat_templates"
KEPT = "origin"
"""The folder of a run in which they are kept."""
_GENERATION = "generation_config.json"
_MAX_BYTES = 1 << 29


@dataclass(frozen=True)
class Origin:
    """`files`: contents of the tokenizer's files by name; `generation`: text of generation_config.json, an object; None without."""

    folder: Path
    files: Mapping[str, bytes]
    generation: str | None

    def has_tokens(self, tokens: Mapping[int, str]) -> bool:
        """Whether its tokenizer has these tokens at these ids."""
        try:
            return tokens_by_id(json.loads(self.files[TOKENIZER])) == tokens
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
            return False

    def generation_with(self, eos: Any) -> str | None:
        """generation_config.json, with `eos` where those that it has are other tokens."""
        if self.generation is None or eos is None:
            return self.generation
        table = json.loads(self.generation)
        stated, wanted = listed(table.get("eos_token_id")), listed(eos)
        return (
            self.generation
            if any(each in stated for each in wanted)
            else json.dumps({**table, "eos_token_id": eos}, indent=2) + "\n"
        )


def read_origin(folder: Path) -> Origin | None:
    """Tokenizer files and generation_config.json of a folder; None where it has no config.json, or is gone. Raises `UserError` for
    files that cannot be read."""
    try:
        return _read(folder)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder}, which the weights came from, cannot be read: {error}; mend or remove that file"
        ) from None


def keep_origin(source: Path, run: Path) -> str | None:
    """Copies config.json and the files of `read_origin` into the folder of a run that begins, so that an export finds them where
    `source` has moved since. Returns a warning where that failed: the run goes on without."""
    kept = run / KEPT
    if kept.is_dir():
        return None
    try:
        origin = read_origin(source)
        if origin is None:
            return None
        texts = {} if origin.generation is None else {_GENERATION: origin.generation.encode()}
        aside = folders.aside(kept)
        folders.remove_tree(aside)
        for name, content in {**origin.files, **texts, "config.json": bounded(source / "config.json")}.items():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            folders.write_bytes(aside / name, content)
        os.rename(aside, kept)
    except (OSError, ValueError, UserError) as error:
        return f"warning: {source}: its tokenizer and configuration are not kept for an export ({error})"
    return None


def _read(folder: Path) -> Origin | None:
    if not (folder / "config.json").is_file():
        return None
    names = [
        *_TOKENIZER_FILES,
        *(f"{_TEMPLATES}/{path.name}" for path in sorted((folder / _TEMPLATES).glob("*.jinja"))),
    ]
    files = {name: bounded(folder / name, _MAX_BYTES) for name in names if (folder / name).is_file()}
    generation = None
    if (folder / _GENERATION).is_file():
        generation = bounded(folder / _GENERATION).decode("utf-8")
        if not isinstance(_parsed(generation), dict):
            raise ValueError(f"{_GENERATION} holds no JSON object")
    return Origin(folder, files, generation)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_GENERATION} is not readable JSON ({error})") from None


def tokens_by_id(document: dict[str, Any]) -> dict[int, str]:
    """Every token of a parsed tokenizer.json. Raises `KeyError`, `TypeError`, `ValueError` or `AttributeError` for what is none."""
    vocabulary = document["model"]["vocab"]
    if isinstance(vocabulary, list):  # a unigram model lists [token, score]
        tokens = {index: token for index, (token, _) in enumerate(vocabulary)}
    else:
        tokens = {index: token for token, index in vocabulary.items()}
    tokens.update({token["id"]: token["content"] for token in document.get("added_tokens") or ()})
    return tokens


def listed(value: Any) -> list[Any]:
    """An id, or several, as a list."""
    return value if isinstance(value, list) else [value]
