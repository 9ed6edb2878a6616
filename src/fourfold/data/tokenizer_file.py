"""A tokenizer's files as plain JSON, before the `tokenizers` library sees them: `data.tokenizer` ("bytes", "bpe:N", trained here on
training documents alone, or a path), and the special tokens that end and begin a document."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeGuard

from fourfold.config import UserError
from fourfold.config.beside import where_looked
from fourfold.config.whole_file import bounded

SPEC_ALLOWED = '"bytes", "bpe:N" with N from 300 to 1000000 (for example "bpe:4096"), or the path of a tokenizer.json'
_MAX_FILE_BYTES = 1 << 29
_END_NAMES = frozenset({"eos", "eod", "eot", "eotid", "endoftext", "endofsentence", "endofdocument", "imend"})
"""Usual names of an end-of-text token without their brackets: `<eos>`, `<|endoftext|>`, `<|eot_id|>`; beside them, `</s>`."""
_BEGIN_NAMES = frozenset({"bos", "bod", "bot", "beginoftext", "beginofsentence", "startoftext"})
"""Usual names of a begin-of-text token, likewise; beside them, `<s>`."""
BYTES_VOCAB_SIZE = 257
"""256 bytes and end-of-text."""
MIN_BPE_VOCAB, MAX_BPE_VOCAB = 300, 1_000_000


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


def end_of_text(file: TokenizerFile, stated: int | None = None) -> int:
    """The id of the token that ends a document. `stated` is `data.eos`, which counts before all else.

    Then what the folder states: `eos_token` in tokenizer_config.json or special_tokens_map.json and `eos_token_id` in
    config.json, which must agree; then the token that the post-processor puts behind a text; then the one special token with a
    usual name. A plain entry of the vocabulary, such as the HTML tag `</s>`, is never taken for it by its name.
    Raises `UserError`, which asks for `data.eos`, where there is none or more than one.
    """
    ids = file.ids()
    if stated is not None:
        if stated not in ids.values():
            raise UserError(
                f"data.eos = {stated}: no token of {file.path}; allowed: the id of one of its {len(ids)} tokens"
            )
        return stated
    candidates, where = _stated_in_folder(file, ids, "eos")
    if not candidates:
        candidates, where = set(frame(file)[1][-1:]), "what stands in"
    if not candidates:
        named = {number for text, number in file.special_ids().items() if _named(text, "</s>", _END_NAMES)}
        candidates, where = named, "the names in"
    if len(candidates) == 1:
        return candidates.pop()
    if candidates:
        raise UserError(
            f"data.eos is not stated, and {where} {file.path} leave {len(candidates)} tokens that may end a document: "
            f"{_listed(ids, candidates)}; state one, for example data.eos = {min(candidates)}"
        )
    plain = [number for text, number in ids.items() if _named(text, "</s>", _END_NAMES)]
    entries = f" (not special, so that text may hold them: {_listed(ids, plain)})" if plain else ""
    raise UserError(
        f"data.tokenizer: {file.path} has no special token that is known to end a document{entries}; state the id of the one it "
        f"has, for example data.eos = {min(plain, default=0)}, or put a tokenizer_config.json with eos_token beside it"
    )


def begin_of_text(file: TokenizerFile, choice: bool | Literal["auto"]) -> tuple[int, ...]:
    """The ids that stand before every document, () for none. `choice` is `data.bos`.

    "auto": what the tokenizer's own post-processor puts before a text, where `add_bos_token` in tokenizer_config.json does not say
    otherwise. True: the same or, where it puts nothing, the begin-of-text token, found as `end_of_text` finds the other one.
    Raises `UserError` where that is not known, and where the two files say different things and the choice is "auto".
    """
    if choice is False:
        return ()
    before = frame(file)[0]
    if choice == "auto":
        stated = beside(file, "tokenizer_config.json").get("add_bos_token") if _owns_folder(file) else None
        if isinstance(stated, bool) and stated != bool(before):
            puts = "puts a token before a text" if before else "puts nothing before a text"
            raise UserError(
                f'data.bos = "auto": the post-processor of {file.path} {puts}, but tokenizer_config.json beside it says '
                f"add_bos_token = {str(stated).lower()}; state which is meant: data.bos = true, or data.bos = false"
            )
        return before
    if before:
        return before
    ids = file.ids()
    candidates, where = _stated_in_folder(file, ids, "bos")
    if not candidates:
        candidates = {number for text, number in file.special_ids().items() if _named(text, "<s>", _BEGIN_NAMES)}
        where = "the names in"
    if len(candidates) == 1:
        return (candidates.pop(),)
    found = (
        f"{where} {file.path} leave {_listed(ids, candidates)}" if candidates else f"{file.path} has none that is known"
    )
    raise UserError(
        f"data.bos = true: which token begins a text? {found}; put a tokenizer_config.json with bos_token beside it, or state "
        "data.bos = false"
    )


def frame(file: TokenizerFile) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer's own post-processor puts (before, behind) a single text."""
    return _frame(as_table(file.table.get("post_processor")))


def _frame(processor: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    kind = processor.get("type")
    if kind == "Sequence":
        frames = [_frame(as_table(inner)) for inner in as_list(processor.get("processors"))]
        return next((each for each in frames if each != ((), ())), ((), ()))  # the library uses no second one
    if kind in ("BertProcessing", "RobertaProcessing"):
        cls, sep = (as_list(processor.get(key))[1:2] for key in ("cls", "sep"))
        return tuple(filter(is_id, cls)), tuple(filter(is_id, sep))
    sides: tuple[list[int], list[int]] = [], []
    side = 0
    special = as_table(processor.get("special_tokens"))
    for piece in as_list(processor.get("single")) if kind == "TemplateProcessing" else []:
        if "Sequence" in as_table(piece):
            side = 1
        name = as_table(as_table(piece).get("SpecialToken")).get("id")
        sides[side].extend(filter(is_id, as_list(as_table(special.get(str(name))).get("ids"))))
    return tuple(sides[0]), tuple(sides[1])


def _stated_in_folder(file: TokenizerFile, ids: dict[str, int], role: str) -> tuple[set[int], str]:
    """(ids, the files that state them). Files beside a tokenizer under another name than tokenizer.json may be another's."""
    statements: list[tuple[str, set[int]]] = []
    if not _owns_folder(file):
        return set(), ""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = beside(file, name).get(f"{role}_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text:
            if text not in ids:
                raise UserError(
                    f"{file.path.parent / name}: {role}_token = {text!r} is no token of {file.path.name}; correct {name}, or state "
                    f"{'the id of the one that is meant, for example data.eos = 0' if role == 'eos' else 'data.bos = false'}"
                )
            statements.append((name, {ids[text]}))
    config = beside(file, "config.json")
    value = config.get(f"{role}_token_id", as_table(config.get("text_config")).get(f"{role}_token_id"))
    numbers = {number for number in (value if isinstance(value, list) else [value]) if is_id(number)}
    if numbers & set(ids.values()):
        statements.append(("config.json", numbers & set(ids.values())))
    if not statements:
        return set(), ""
    agreed = set.intersection(*(numbers for _, numbers in statements))
    where = f"{' and '.join(name for name, _ in statements)} beside"
    return agreed or set.union(*(numbers for _, numbers in statements)), where


def _owns_folder(file: TokenizerFile) -> bool:
    return file.path.name == "tokenizer.json"


def _named(text: str, plain: str, names: frozenset[str]) -> bool:
    """Whether a token is `plain`, or one of the names in brackets of any kind."""
    return text == plain or (re.search(r"\W", text) is not None and re.sub(r"[^a-z]", "", text.lower()) in names)


def _listed(ids: dict[str, int], chosen: Iterable[int]) -> str:
    texts = {number: text for text, number in ids.items()}
    return ", ".join(f"{texts[number]!r} (id {number})" for number in sorted(chosen))


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
