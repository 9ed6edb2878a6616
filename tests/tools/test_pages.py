"""Pages written from the code say all of it, and pages written by hand keep their form."""

import re
from functools import cache
from typing import Annotated

import pytest
from pydantic import Field

from fourfold.cli.app import COMMANDS
from fourfold.config.schema import RunConfig
from fourfold.config.section import Section
from fourfold.program.capabilities import OPCODES
from tests.config.good_run import section_at
from tools.check_links import ROOT
from tools.docs import command_pages, run_file_page
from tools.docs.docstrings import names_in, to_rst

DOCS = ROOT / "docs"


@cache
def _names() -> dict[str, str]:
    return names_in(ROOT / "src" / "fourfold")


def test_every_key_of_the_run_file_has_a_row_with_a_meaning() -> None:
    page = run_file_page.page()
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?) \| (.+) \|$", page, re.MULTILINE)
    named = {key for key, *_ in rows}
    for name, field in RunConfig.model_fields.items():
        section = section_at(name)
        assert (f"## [[{name}]]" if section is not field.annotation else f"## [{name}]") in page
        assert set(section.model_fields) <= named
    assert all(len(meaning) > 10 and meaning.endswith((".", "`")) for *_, meaning in rows)


@pytest.mark.parametrize(
    "row",
    [
        "| `zero` | integer ≥ 0, ≤ 3 | `0` | ZeRO stage",
        "| `global_sequences` | integer > 0 | **required** | Sequences",
        '| `outermost` | `"pp"`, `"dp_replicate"`, `"dp"` | `"pp"` | Ranks',
        "| `betas` | list of number ≥ 0, < 1, number ≥ 0, < 1 | `[0.9, 0.95]` | Decay",
        "| `seed` | integer ≥ 0, < 2^63 | `0` | Seed",
        '| `corpus` | string or list of table | `"stdlib"` | ',
    ],
)
def test_a_row_says_type_bounds_and_default(row: str) -> None:
    assert f"\n{row}" in run_file_page.page()


def test_a_key_without_a_text_is_refused() -> None:
    class Bare(Section):
        """A section."""

        told: int = 1
        """Something."""
        untold: Annotated[int, Field(gt=0)] = 1

    with pytest.raises(ValueError, match=r"bare\.untold: the schema says nothing about it"):
        run_file_page._section("[bare]", Bare, "bare")


def test_every_command_and_its_options_are_described() -> None:
    page = command_pages.page()
    for name in COMMANDS:
        assert f"## fourfold {name}\n" in page
        assert f"Usage: fourfold {name}" in page
    assert "--sequence-length" in page
    assert "\x1b" not in page  # no colours


def test_every_instruction_is_explained() -> None:
    _, section = (DOCS / "program.md").read_text(encoding="utf-8").split("## Instructions\n")
    letters = re.findall(r"^\| `(\S+)[^`]*` \|", section.split("\n## ")[0], re.MULTILINE)
    assert sorted(letters) == sorted(op.value for op in OPCODES)


def test_the_glossary_is_in_alphabetical_order_without_a_term_twice() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (\w)$", text, flags=re.MULTILINE)[1:]
    letters, sections = parts[::2], parts[1::2]
    assert letters == sorted(set(letters))
    for letter, section in zip(letters, sections, strict=True):
        terms = re.findall(r"^### (.+)$", section, re.MULTILINE)
        assert terms == sorted(set(terms), key=str.lower)
        assert all(term[0].upper() == letter for term in terms)
        assert len(re.findall(r"^### .+\n\n\S", section, re.MULTILINE)) == len(terms), "each has a definition"


def test_every_decision_has_the_same_headings() -> None:
    pages = sorted((DOCS / "decisions").glob("*.md"))
    index = (DOCS / "decisions" / "index.md").read_text(encoding="utf-8")
    for page in (page for page in pages if page.name != "index.md"):
        headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert headings == ["Context", "Decision", "Measured", "Consequences"], page.name
        assert f"({page.name})" in index
        assert f"\n{page.stem}\n" in index


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("Bytes of `sent`s.", "Bytes of ``sent``\\ s."),
        ("See `memory_peak`.", "See :py:obj:`memory_peak <fourfold.program.liveness.memory_peak>`\\ ."),
        ("a * b | c_ [1]_ **kw", "a \\* b \\| c\\_ [1]\\_ \\*\\*kw"),
        ("1. is no list", "1\\. is no list"),
        ("Two\nlines.", "Two lines."),
        ("- one\n- two\n  more", "- one\n- two more"),
        ("Words:\n\n    code * here\n", "Words\\:\n\n::\n\n       code * here"),
    ],
)
def test_a_docstring_becomes_safe_markup(docstring: str, expected: str) -> None:
    names = _names()
    assert "\n".join(to_rst(docstring.split("\n"), names)).strip() == expected
