"""Where a BPE that takes a text as one word may be cut: before a space that no merge joins to the character before it.

Llama 2, Mistral and Gemma write a space as `▁` and divide a text into no words. The merges left and right of a border between two
characters are those of the two sides alone if no merge joins a token that ends with the first to one that begins with the second:
then no token ever lies across, and the order of merges on one side does not depend on the other. Both characters must be tokens by
themselves, so that neither is spelt in bytes or taken for an unknown one together with its neighbours.
"""

import json
import re
from collections.abc import Sequence
from typing import Any


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
