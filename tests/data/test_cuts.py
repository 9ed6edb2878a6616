"""A long text has the tokens that the `tokenizers` library gives for the whole of it, whatever the tokenizer."""

import re
from functools import cache

import pytest
from tokenizers import AddedToken, Tokenizer

from fourfold.data import cuts
from fourfold.data.cuts import LINE, SPACE, cut, cut_places
from fourfold.data.tokenizer import LibraryTokenizer
from tests.data.tokenizer_kinds import KINDS, UNCUT, hard_text


@cache
def stored(kind: str) -> str:
    """The tokenizer.json: written and read again, the scores of a Unigram may differ in their last bit."""
    return (KINDS | UNCUT)[kind]().to_str()


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer.from_str(stored(kind))


def loaded(kind: str) -> LibraryTokenizer:
    inner = Tokenizer.from_str(stored(kind))
    return LibraryTokenizer(inner, inner.token_to_id("<eos>") or 0)


@pytest.mark.parametrize("kind", KINDS)
def test_cut_wherever_it_may_be_a_text_has_the_same_tokens(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "PIECE_CHARS", 1)
    tokenizer, places = loaded(kind), cut_places(tokenizer_of(kind))
    for seed in range(2):
        text = hard_text(seed, 4000)
        # Llama 2 puts back the space that stood before each piece but the first.
        assert (" " if kind == "llama2" else "").join(cut(text, places, 1)) == text
        assert len(list(cut(text, places, 1))) > 5
        expected = tokenizer_of(kind).encode(text, add_special_tokens=False).ids
        assert tokenizer.encode_batch([text])[0].tolist() == expected


@pytest.mark.parametrize("kind", UNCUT)
def test_where_nothing_is_proved_a_text_stays_uncut(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "PIECE_CHARS", 1)
    assert cut_places(tokenizer_of(kind)) is None
    text = hard_text(5, 600)
    expected = tokenizer_of(kind).encode(text, add_special_tokens=False).ids
    assert loaded(kind).encode_batch([text])[0].tolist() == expected


@pytest.mark.rest
@pytest.mark.parametrize("kind", KINDS)
def test_a_document_of_two_pieces(kind: str) -> None:
    text = hard_text(7, 400_000)
    assert len(text) > cuts.PIECE_CHARS
    expected = tokenizer_of(kind).encode(text, add_special_tokens=False).ids
    assert loaded(kind).encode_batch(["first", text, "last"])[1].tolist() == expected


@pytest.mark.parametrize("kind", ["llama2, another prefix", "over spaces", "left stripped", "prepended", "no words"])
def test_cutting_these_would_give_other_tokens(kind: str) -> None:
    """The test above would see it."""
    inner, text = tokenizer_of(kind), hard_text(5, 5000)
    pieces = cut(text, re.compile(f"{SPACE}|{LINE}"), 1)
    ids = [number for piece in pieces for number in inner.encode(piece, add_special_tokens=False).ids]
    assert ids != inner.encode(text, add_special_tokens=False).ids


def test_an_added_token_with_a_space_keeps_texts_uncut_at_spaces() -> None:
    inner = Tokenizer.from_str(stored("gpt2"))
    inner.add_tokens([AddedToken("import end")])
    places = cut_places(inner)
    assert places is not None
    assert places.pattern == LINE
    inner.add_tokens([AddedToken("a\nb")])
    assert cut_places(inner) is None


def test_groups_bound_what_the_library_holds_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    tokenizer = loaded("gpt2")

    class Watched:
        def encode_batch_fast(self, pieces: list[str], **options: bool) -> list[object]:
            calls.append(sum(map(len, pieces)))
            return list(inner.encode_batch_fast(pieces, **options))

    inner = tokenizer._inner
    assert tokenizer._places is not None
    tokenizer._inner = Watched()
    monkeypatch.setattr("fourfold.data.tokenizer._GROUP_CHARS", 3000)
    monkeypatch.setattr(cuts, "PIECE_CHARS", 500)
    texts = [hard_text(1, 10_000), "", "one", hard_text(2, 2000)]
    assert [each.tolist() for each in tokenizer.encode_batch(texts)] == [inner.encode(text).ids for text in texts]
    assert len(calls) > 3
    assert max(calls) < 3000 + 2 * 500 + 500


def test_a_place_is_found_from_a_size_on_and_the_rest_is_one_piece() -> None:
    places = re.compile(f"{SPACE}|{LINE}")
    assert list(cut("ab cd\nef gh", places, 3)) == ["ab cd\n", "ef gh"]
    assert list(cut("ab cd\nef gh", places, 2)) == ["ab", " cd\n", "ef", " gh"]
    assert list(cut("x" * 100 + "\n", places, 10)) == ["x" * 100 + "\n"]
    assert list(cut("", places, 10)) == [""]
    assert list(cut("ab cd", None, 1)) == ["ab cd"]
