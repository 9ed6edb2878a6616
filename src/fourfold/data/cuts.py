"""Where a long text may be cut so that a tokenizer gives the tokens of the whole text: only where that is proved.

A tokenizer of the library finds added tokens, then, in what lies between them, normalizes, divides into words (the
pre-tokenizer), and gives each word to its model. The tokens left and right of a cut are those of the whole text where a border
of words lies there in any case, and no step looks across it. Two kinds of places are tried:

- a *space*: before a single space between two letters or digits;
- a *line*: after a newline behind a visible character, before a letter or digit.

A pre-tokenizer *separates* at such places if it always has a border of words there; it *passes* if its borders depend on
nothing across them, so that a later one of a sequence still decides. One that is not known does neither: the text stays uncut,
unless it is one word for a BPE whose merges leave places free (`one_word_places`).

Llama 2, Mistral and Gemma write a space as `▁` and divide a text into no words. The merges left and right of a border between two
characters are those of the two sides alone if no merge joins a token that ends with the first to one that begins with the second:
then no token ever lies across, and the order of merges on one side does not depend on the other. Both characters must be tokens by
themselves, so that neither is spelt in bytes or taken for an unknown one together with its neighbours.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

PIECE_CHARS = 1 << 18
"""A text with proved places is encoded in pieces of some so many characters: the library holds ~100 bytes for each."""

_ANY, _ASCII = r"[^\W_]", "[0-9A-Za-z]"
SPACE, LINE = rf"(?<={_ANY})(?= {_ANY})", rf"(?<=\S\n)(?={_ANY})"

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LATER = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
_WORD_PATTERNS = frozenset(
    {
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _LATER,  # Llama 3
        _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _LATER,  # Qwen 2
        "|".join(f"{case}{_CONTRACTIONS}?" for case in _CASED)
        + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
        + _LATER,  # GPT-4o
        "|".join(_CASED) + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _LATER,  # Mistral's Tekken
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        + _LATER,  # DeepSeek V3
    }
)
"""Patterns of words without a look back. In each, a match goes on over a space only where it begins with it, and over a newline
only into more white space (GPT-4o: or into a slash). So a match that reaches a place of either kind ends there, also where the
text ends there, and another begins there."""
_SPACELESS_PATTERNS = frozenset({r"\p{N}", r"\p{N}{1,3}", r"\p{N}+", "[0-9]", "[0-9][0-9][0-9]", "[一-龥぀-ゟ゠-ヿ]+"})
"""Patterns that match no white space and look at nothing beside a match: of a sequence's earlier steps (DeepSeek, Falcon)."""

_PLAIN_NORMALIZERS = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase", "StripAccents", "BertNormalizer", "Precompiled"}
)
"""Normalizers that change one character, or one grapheme, at a time: none joins a space with ASCII letters beside it. NFC, which
joins no letter with white space before it either, counts as none."""
_SAMPLE = "".join(map(chr, [*range(0x30, 0x3A), *range(0x41, 0x5B), *range(0x61, 0x7B)]))


def one_word_places(
    inner: Any, normalizer: Sequence[dict[str, Any]], pre_tokenizer: Sequence[dict[str, Any]], has_added_tokens: bool
) -> str | None:
    """A pattern of the places to cut, as `cuts.cut` reads it; None where none is proved.

    normalizer, pre_tokenizer: their steps. has_added_tokens: whether text may hold added tokens that are not special.
    """
    mark, prepends = _space_mark(normalizer, pre_tokenizer)
    if mark is None or (prepends and has_added_tokens):
        return None
    characters = _free_before(mark, json.loads(inner.model.__getstate__()))
    if not characters:
        return None
    before = f"(?<=[{''.join(map(re.escape, sorted(characters)))}])"
    # A piece that gets the mark put before it stands for one that begins with it: its space is left out.
    return rf"{before} (?=[\s\S])" if prepends else f"{before}(?= )"


def _space_mark(
    normalizer: Sequence[dict[str, Any]], pre_tokenizer: Sequence[dict[str, Any]]
) -> tuple[str | None, bool]:
    """(the character that a space becomes, whether one is put before every text in any case)."""
    match normalizer, pre_tokenizer:
        case [], [{"type": "Metaspace", "replacement": mark, "split": False}]:
            return mark, False  # put before a text only where it does not begin with one
        case [{"type": "Replace", "pattern": {"String": " "}, "content": str(mark)}], _ if _does_nothing(pre_tokenizer):
            return (mark, False) if len(mark) == 1 and mark != " " else (None, False)
        case [
            {"type": "Prepend", "prepend": before},
            {"type": "Replace", "pattern": {"String": " "}, "content": str(mark)},
        ], _ if _does_nothing(pre_tokenizer):
            return (mark, True) if len(mark) == 1 and mark not in (" ", "") and before == mark else (None, False)
    return None, False


def _does_nothing(pre_tokenizer: Sequence[dict[str, Any]]) -> bool:
    """Whether no text without spaces is divided: there is no pre-tokenizer, or it looks for spaces."""
    return all(
        step["type"] == "Split" and step["pattern"] == {"String": " "} and not step["invert"] for step in pre_tokenizer
    )


def _free_before(mark: str, model: dict[str, Any]) -> set[str]:
    """The characters to which no merge joins a token that begins with `mark`."""
    plain = not any(
        model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")
    )
    if model.get("type") != "BPE" or not plain or mark not in model["vocab"]:
        return set()
    pairs = [merge.split(" ", 1) if isinstance(merge, str) else merge for merge in model["merges"]]
    joined = {left[-1:] for left, right in pairs if right[:1] == mark}
    return {token for token in model["vocab"] if len(token) == 1 and not token.isspace()} - joined - {mark}


def cut_places(inner: Any) -> re.Pattern[str] | None:
    """The places where texts may be cut for a `tokenizers.Tokenizer`; None where none is proved."""
    normalizer = [step for step in _steps(inner.normalizer, "normalizers") if step["type"] != "NFC"]
    pre_tokenizer = _steps(inner.pre_tokenizer, "pretokenizers")
    added = inner.get_added_tokens_decoder().values()
    if any(not token.special and (token.lstrip or token.rstrip or token.single_word) for token in added):
        return None
    normal = [] if inner.normalizer is None else [inner.normalizer.normalize_str(token.content) for token in added]
    contents = [*(token.content for token in added), *normal]
    proved = []
    if not any(re.search(r"\S ", text) for text in contents) and _keeps(normalizer, inner.normalizer):
        proved += [SPACE] if _separates(pre_tokenizer, _at_space) else []
    if not any(re.search(r"\n\S", text) for text in contents) and not normalizer:
        proved += [LINE] if _separates(pre_tokenizer, _at_line) else []
    if not proved and not any(re.search(r"\S ", text) for text in contents):
        steps = _steps(inner.normalizer, "normalizers")
        one_word = one_word_places(inner, steps, pre_tokenizer, any(not token.special for token in added))
        return None if one_word is None else re.compile(one_word)
    if not proved:
        return None
    return re.compile("|".join(proved).replace(_ANY, _ASCII) if normalizer else "|".join(proved))


def cut(text: str, places: re.Pattern[str] | None, piece_chars: int = PIECE_CHARS) -> Iterator[str]:
    """Pieces of at least `piece_chars` characters, cut at the next place after these; the full text where there is none. They
    concatenate to the text, but for the characters that a place itself spans."""
    start = 0
    while places is not None and len(text) - start > piece_chars:
        found = places.search(text, start + piece_chars)
        if found is None:
            break
        yield text[start : found.start()]
        start = found.end()
    yield text[start:]


def _steps(part: Any, name: str) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, with the library's defaults written out."""
    return [] if part is None else list(_flat(json.loads(part.__getstate__()), name))


def _flat(step: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    if step["type"] != "Sequence":
        yield step
        return
    for inner in step[name]:
        yield from _flat(inner, name)


def _keeps(steps: Iterable[dict[str, Any]], normalizer: Any) -> bool:
    """Whether a space between ASCII letters or digits stays one, with a letter or digit on either side, whatever else follows."""
    for step in steps:
        plain = step["type"] in _PLAIN_NORMALIZERS
        # Takes spaces off the end of a piece, which has none there; makes one of several, which a single space is not.
        stripped = step["type"] == "Strip" and not step["strip_left"]
        joined = step["type"] == "Replace" and step["pattern"] == {"Regex": " {2,}"}
        if not (plain or stripped or joined):
            return False
    changed = [normalizer.normalize_str(f"{each} {each}") for each in _SAMPLE] if normalizer is not None else []
    return all(re.fullmatch(rf"{_ASCII}+ {_ASCII}+", text) for text in changed)


def _separates(steps: Iterable[dict[str, Any]], at: Any) -> bool:
    """Whether the sequence has a border of words at every place of a kind. A step behind one that separates sees its words one by
    one, and must not ask where in the text they stand."""
    separated = False
    for step in steps:
        if separated and step["type"] == "Metaspace" and step["prepend_scheme"] == "first":
            return False
        verdict = at(step)
        if not separated and verdict is None:
            return False
        separated = separated or bool(verdict)
    return separated


def _at_space(step: dict[str, Any]) -> bool | None:
    """True: separates before a space. False: passes. None: not known."""
    match step:
        case {"type": "ByteLevel", "use_regex": True} | {"type": "Metaspace", "split": True}:
            return True  # a word that begins with a space gets no other prefix
        case _:
            return _anywhere(step)


def _at_line(step: dict[str, Any]) -> bool | None:
    """True: separates after a newline. False: passes. None: not known."""
    match step:
        case {"type": "ByteLevel", "use_regex": True, "add_prefix_space": False}:
            return True
        case _:
            return _anywhere(step)


def _anywhere(step: dict[str, Any]) -> bool | None:
    match step:
        case {"type": "Whitespace" | "WhitespaceSplit" | "BertPreTokenizer"}:
            return True
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}:
            if pattern in _WORD_PATTERNS and (behavior, invert) in (("Isolated", False), ("Removed", True)):
                return True
            return False if pattern in _SPACELESS_PATTERNS and (behavior, invert) == ("Isolated", False) else None
        case {"type": "Digits"} | {"type": "Punctuation", "behavior": "Isolated"}:
            return False
        case {"type": "ByteLevel", "use_regex": False, "add_prefix_space": False}:
            return False
        case _:
            return None
