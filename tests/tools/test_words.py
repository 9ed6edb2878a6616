"""The check of words finds what the glossary replaces, wherever it stands, and its counts only go down."""

from dataclasses import replace
from pathlib import Path

import pytest

from tools import words

TABLE = words.read_table(words.ROOT / words.TABLE)


def found(path: str, source: str) -> list[tuple[int, str]]:
    return [(use.line, use.word.word) for use in words.uses_in(path, source, TABLE)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("held_out_loss = 1.0\n", [(1, "held-out loss")]),
        ("class HeldOutLoss:\n    x = 1\n", [(1, "held-out loss")]),
        ("def f(n, facts):\n    return facts\n", [(1, "facts")]),
        ("import m\nm.facts\n", []),  # the file that defines it answers for it
        ('x = f"{y} of the held-out loss"\n', [(1, "held-out loss")]),
        ('"""A word\n\nthe usual\nprescription.\n"""\n', [(3, "usual prescription")]),
        ("x = 1  # two passes over memory\n", [(1, "passes over memory")]),
        ("# multi-head latent attention\n", []),
        ("# latent attention\n", [(1, "latent attention")]),
        ("# --multi-latent-attention, Megatron's flag\n", []),
        ("m.scaled_dot_product_attention = f\n", []),
        ("m.products = f\n", [(1, "products (of matrices)")]),
        ("# published rows\n", []),
        ("# publishes parameters\n", [(1, "publish")]),
        ('print("pp 2 (1f1b, v 11)", f"(1f1b, v {n})")\n', [(1, "v N"), (1, "v N")]),
        ('title = "of it"\n', [(1, "held / of it")]),
        ("# one of it\n", []),
        ("# a tensor, no Ghost\n", [(1, "ghost")]),
        ("class HostLane:\n    wards = 1\n", [(1, "lane"), (2, "ward, mate, couple")]),
        ("# a lane, towards home\n", []),
    ],
)
def test_python_is_searched_in_text_and_in_the_names_it_defines(source: str, expected: list[tuple[int, str]]) -> None:
    assert found("src/a.py", source) == expected


def test_markdown_and_toml_are_searched_as_a_text() -> None:
    assert found("docs/a.md", "one\n\nthe held-out\nloss\n") == [(3, "held-out loss")]
    assert found("a.toml", "# Moments in fp32\nslack = 0.03\n") == [(1, "moments"), (2, "slack")]


def test_a_file_is_searched_in_its_name() -> None:
    assert found("src/tape.py", "") == [(1, "tape")]


@pytest.mark.parametrize(
    ("docstring", "lines"),
    [
        ("Of one rank: its bytes.", [1]),
        ("Bytes. Of one rank.", [1]),
        ("Bytes.\n\n    What a rank sends.", [3]),
        ("Bytes that a rank sends, and\n    Of is no beginning here.", []),
        ("What does a rank send? Bytes.", []),
        ("Of course.", []),
        ("Sends 1.5 GB. Then waits.", []),
    ],
)
def test_a_docstring_has_no_headless_sentence(docstring: str, lines: list[int]) -> None:
    source = f'def f():\n    """{docstring}"""\n'
    assert [line - 1 for line, word in found("a.py", source) if word.startswith("headless")] == lines


@pytest.mark.parametrize(
    ("docstring", "found_at"),
    [
        ("The same for a rank.", True),
        ("Those of a rank.", True),
        ("Such a rank.", True),
        ("Its bytes.", True),
        ("As `f`, in bytes.", True),
        ("None where it is lost.", True),
        ("Assumptions.", False),
        ("All that a rank sends.", True),
        ("That of a rank.", True),
        ("\n    These are sent.", True),
        ("Bytes that a rank sends. The same in backward.", False),
        ("This rank's bytes.", False),
        ("Itself.", False),
        ("All ranks.", False),
    ],
)
@pytest.mark.parametrize("form", ['"""{}"""\n', 'def f():\n    """{}"""\n', 'class C:\n    x = 1\n    """{}"""\n'])
def test_a_docstring_says_what_the_thing_is(docstring: str, found_at: bool, form: str) -> None:
    uses = [word for _, word in found("src/fourfold/plan/a.py", form.format(docstring))]
    assert uses == ["docstring that points elsewhere"] * found_at


def test_files_that_another_change_is_in_are_spared_its_words_alone() -> None:
    source = 'def bring() -> None:\n    """Gives a held-out loss."""\n'
    assert all(list(words.ROOT.glob(path)) for path in TABLE.under_way.paths)
    table = replace(TABLE, under_way=words.UnderWay(("src/fourfold/plan/*",), frozenset({"bring"})))
    uses = {path: words.uses_in(path, source, table) for path in ("src/fourfold/plan/a.py", "src/fourfold/cost/a.py")}
    assert [use.word.word for use in uses["src/fourfold/plan/a.py"]] == ["held-out loss"]
    assert len(uses["src/fourfold/cost/a.py"]) == 2


def test_an_exemption_names_a_word_of_the_table(tmp_path: Path) -> None:
    table = tmp_path / "words.toml"
    text = (words.ROOT / words.TABLE).read_text()
    table.write_text(text + '\n[under_way]\npaths = ["src/fourfold/plan/*"]\nwords = ["carry"]\n')
    with pytest.raises(ValueError, match="carry"):
        words.read_table(table)


def test_no_replacement_is_itself_replaced() -> None:
    for word in TABLE.words:
        assert not [use.word.word for use in words.uses_in("a.md", word.use, TABLE)], word.use


def test_a_file_may_have_fewer_and_not_more() -> None:
    uses = words.uses_in("a.md", "publish\npublish\n", TABLE)
    assert words.excess(uses, {"a.md": {"publish": 2}}) == []
    assert words.excess(uses, {"a.md": {"publish": 3}}) == []
    assert words.excess(uses, {"a.md": {"publish": 1}}) == uses
    assert words.excess(uses, {"b.md": {"publish": 2}}) == uses
    assert str(uses[1]) == "a.md:2: 'publish': use parameter all-gather"


def test_counts_are_recorded_where_no_total_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / words.TABLE).write_text((words.ROOT / words.TABLE).read_text())
    monkeypatch.setattr(words, "ROOT", tmp_path)
    page, moved = tmp_path / "README.md", tmp_path / "CONTRIBUTING.md"
    page.write_text("publish publish\n")
    assert words.main([]) == 1
    assert words.main(["--record"]) == 0
    assert words.main([]) == 0
    page.rename(moved)
    assert words.main([]) == 1
    assert words.main(["--record"]) == 0  # moved, not more
    assert words.main([]) == 0
    moved.write_text("publish publish publish\n")
    assert (words.main([]), words.main(["--record"])) == (1, 1)
    moved.write_text("publish\n")
    assert (words.main([]), words.main(["--record"])) == (0, 0)
    moved.write_text("publish publish\n")
    assert words.main([]) == 1
