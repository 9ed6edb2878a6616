"""The validation set: fixed by content, never empty beside a training set, and never shared with it."""

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.data.manifest import SplitSurvey
from fourfold.data.prepared import PreparedData


def divide(texts: list[str], every: int) -> tuple[list[str], list[str], str]:
    survey = SplitSurvey(every)
    for text in texts:
        survey.add(text.encode())
    split = survey.finish()
    pairs = [split.divide(text) for text in texts]
    return [train for train, _ in pairs if train], [validation for _, validation in pairs if validation], split.rule


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(min_size=2, max_size=8), min_size=2, max_size=30), st.integers(2, 1000))
def test_both_sets_have_documents_and_are_disjoint(texts: list[str], every: int) -> None:
    train, validation, rule = divide(texts, every)
    assert train
    assert validation
    if rule == "tail":
        assert all(a + b == text for a, b, text in zip(train, validation, texts, strict=True))
    else:
        assert not set(train) & set(validation)
        assert sorted(train + validation) == sorted(texts)


def test_the_rule_is_the_hash_of_the_content() -> None:
    texts = [f"document {number}" for number in range(500)]
    _, validation, rule = divide(texts, 10)
    assert rule == "hash"
    assert validation == [text for text in texts if int(sha256(text.encode()).hexdigest(), 16) % 10 == 0]
    assert 25 < len(validation) < 90
    assert divide(texts[::-1], 10)[1] == validation[::-1]


def test_a_small_corpus_gives_its_last_documents_by_hash() -> None:
    texts = ["a1", "b2", "c3"]
    train, validation, rule = divide(texts, 10**6)
    assert rule == "last"
    assert validation == [max(texts, key=lambda text: sha256(text.encode()).hexdigest())]
    assert len(train) == 2


def test_one_document_gives_its_tail() -> None:
    train, validation, rule = divide(["x" * 80 + "y" * 20], 5)
    assert (train, validation, rule) == (["x" * 80], ["y" * 20], "tail")


def documents_of(prepared: PreparedData, side: int) -> list[str]:
    """Decodes a side of a text part by cutting it at end-of-text."""
    stream = prepared.streams(prepared.parts[0])[side]
    tokenizer = prepared.load_tokenizer()
    documents: list[list[int]] = [[]]
    for token in stream.read(0, len(stream)).tolist():
        if token == prepared.eos:
            documents.append([])
        else:
            documents[-1].append(token)
    assert documents.pop() == []
    return [tokenizer.decode(ids) for ids in documents]


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:400"])
def test_tokens_decode_to_the_documents_each_on_one_side(
    text_folder: Path, prepared_with: Callable[..., PreparedData], tokenizer: str
) -> None:
    prepared = prepared_with(corpus=str(text_folder), tokenizer=tokenizer)
    train, validation = documents_of(prepared, 0), documents_of(prepared, 1)
    texts = [path.read_text() for path in sorted(text_folder.rglob("*.txt"))]
    assert sorted(train + validation) == sorted(texts)
    assert not set(train) & set(validation)
    manifest = json.loads((prepared.folder / "manifest.json").read_text())
    split_of = {file["path"]: file["split"] for file in manifest["parts"][0]["files"]}
    for path in text_folder.rglob("*.txt"):
        side = split_of[path.relative_to(text_folder).as_posix()]
        assert path.read_text() in (train if side == "train" else validation)


def test_documents_of_one_file_fall_on_both_sides(tmp_path: Path, prepared_with: Callable[..., PreparedData]) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"document {i}"}) + "\n" for i in range(50)))
    prepared = prepared_with(corpus=str(tmp_path / "a.jsonl"))
    (part,) = prepared.parts
    assert part.train_documents + part.validation_documents == 50
    assert part.validation_documents > 0
    (file,) = json.loads((prepared.folder / "manifest.json").read_text())["parts"][0]["files"]
    assert (file["split"], file["documents"], file["validation_documents"]) == ("mixed", 50, part.validation_documents)


def test_a_single_document_is_cut(tmp_path: Path, prepared_with: Callable[..., PreparedData]) -> None:
    (tmp_path / "book.txt").write_text("abcdefghij" * 10)
    prepared = prepared_with(corpus=str(tmp_path / "book.txt"), validation_every=10)
    assert (documents_of(prepared, 0), documents_of(prepared, 1)) == (["abcdefghij" * 9], ["abcdefghij"])


def test_a_document_too_short_to_cut(tmp_path: Path, prepared_with: Callable[..., PreparedData]) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(UserError, match=r"data\.corpus = .*a\.txt.* one character"):
        prepared_with(corpus=str(tmp_path / "a.txt"))
