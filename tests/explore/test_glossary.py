"""The glossary that the page shows is the docs' file."""

import pytest

from fourfold.config import UserError
from fourfold.explore.glossary import PLACES, glossary, pieces, read_glossary, slug_of

ENTRIES = {each["slug"]: each for each in glossary()}


def test_every_heading_is_an_entry() -> None:
    headings = [line[4:] for line in PLACES[0].read_text(encoding="utf-8").splitlines() if line.startswith("### ")]
    assert [each["name"] for each in ENTRIES.values()] == headings
    assert all(each["definition"] for each in ENTRIES.values())


def test_terms_that_matter_have_formula_and_source() -> None:
    names = (
        "pipeline bubble", "MFU", "HFU", "ZeRO", "HSDP", "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "activations",
        "tensor parallelism (TP)", "sequence parallelism (SP)", "context parallelism (CP)", "expert parallelism (EP)", "1F1B",
        "interleaved 1F1B", "zero bubble (ZB)", "goodput", "optimizer states", "data parallelism (DP)", "pipeline parallelism (PP)",
    )  # fmt: skip
    for name in names:
        entry = ENTRIES[slug_of(name)]
        assert entry["formula"], name
        assert entry["source"], name
        assert not any("Formula" in piece["text"] or "Source" in piece["text"] for piece in entry["definition"])


def test_a_reference_has_the_texts_of_its_target() -> None:
    assert {**ENTRIES["bubble"], "slug": "", "name": ""} == {**ENTRIES["pipeline-bubble"], "slug": "", "name": ""}


def test_a_paragraph_is_cut_at_its_terms() -> None:
    slugs = frozenset(ENTRIES)
    found = pieces("See [ZeRO], [shared](#zero), `full:N`, *every* [page](x.md)", slugs, bare=True)
    assert [(each["text"], each["term"], each["code"]) for each in found] == [
        ("See ", None, False), ("ZeRO", "zero", False), (", ", None, False), ("shared", "zero", False), (", ", None, False),
        ("full:N", None, True), (", ", None, False), ("every", None, False), (" ", None, False), ("page", None, False),
    ]  # fmt: skip
    assert pieces("[batch, sequence]", slugs) == [{"text": "[batch, sequence]", "term": None, "code": False}]


def test_a_term_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match="did you mean zero"):
        pieces("[ZeROs]", frozenset(ENTRIES), bare=True)
    with pytest.raises(UserError, match="no such term"):
        read_glossary("### one\n\nSee [two](#two).\n")
