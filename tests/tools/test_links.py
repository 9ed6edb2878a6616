"""The check of links finds what is broken, in Markdown and in a built site."""

from pathlib import Path

import pytest

from tools.check_links import markdown_faults, site_faults
from tools.docs.outward_links import without_outward_links


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a](b.md)", None),
        ("[a](b.md#the-heading-of-b)", None),
        ("[a](#here)\n\n# Here", None),
        ("[a](folder/)", None),
        ("[a](https://example.org/x)", None),
        ("`[a](none.md)`\n\n    [a](none.md)\n", None),
        ("[a](none.md)", "a.md: none.md: there is no such file"),
        ("[a](b.md#nothing)", "a.md: b.md#nothing: the file has no such heading"),
        ("[a](#nothing)", "a.md: #nothing: the file has no such heading"),
    ],
)
def test_links_between_files(tmp_path: Path, text: str, fault: str | None) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "b.md").write_text("## The heading, of `b`\n")
    (tmp_path / "a.md").write_text(text)
    assert markdown_faults(tmp_path) == ([fault] if fault else [])


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<a href="b.html#x">b</a>', None),
        ('<a href="https://example.org">b</a>', None),
        ('<img src="data:image/png;base64,">', None),
        ('<a href="b.html#y">b</a>', "a.html: b.html#y: the page has no such anchor"),
        ('<a href="c.html">c</a>', "a.html: c.html: there is no such file"),
        ('<script src="https://example.org/x.js"></script>', "a.html: loads https://example.org/x.js from elsewhere"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "a.html: loads //example.org/x.css from elsewhere"),
    ],
)
def test_links_of_a_site(tmp_path: Path, html: str, fault: str | None) -> None:
    (tmp_path / "b.html").write_text('<h1 id="x">b</h1>')
    (tmp_path / "a.html").write_text(html)
    assert site_faults(tmp_path) == ([fault] if fault else [])
    (tmp_path / "a.css").write_text('@import "https://example.org/font.css";')
    assert "a.css: loads a style or font from elsewhere" in site_faults(tmp_path)


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("decisions/a", "[b](../b.md#c)", "[b](../b.md#c)"),
        ("decisions/a", "[b](../../benchmarks/b.md#c)", "b (`benchmarks/b.md`)"),
        ("a", "[b](../benchmarks/b.md)", "b (`benchmarks/b.md`)"),
        ("a", "[`benchmarks/b.md`](../benchmarks/b.md)", "`benchmarks/b.md`"),
        ("a", "[b](../CONTRIBUTING.md#tests)", "[b](/contributing.md#tests)"),
        ("a", "[b](c.md)", "[b](c.md)"),
    ],
)
def test_links_out_of_the_pages_become_text(page: str, text: str, expected: str) -> None:
    assert without_outward_links(page, text) == expected
