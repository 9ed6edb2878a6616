"""Transcripts: a page is held to what its commands print."""

from pathlib import Path

import pytest

from tools.transcripts import blocks_of, main, shown, true_page

PAGE = """# A page

<!-- run 1-2 4 -->

    $ printf '%s\\n' a b c d e \\
    > f
    a
    b
    ...
    d
    ...

Another block:

    not a transcript

<!-- run -->

    $ echo kept > file; cat file
    kept

<!-- run exit 2 -->

    $ echo wrong >&2; exit 2
    wrong
"""


def _page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text)
    return path


def test_a_true_page_stays_as_it_is(tmp_path: Path) -> None:
    assert len(blocks_of(PAGE.split("\n"))) == 3
    assert true_page(_page(tmp_path, PAGE)) == PAGE


def test_a_page_that_differs_is_reported_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = _page(tmp_path, PAGE.replace("    d\n", "    x\n").replace("    kept\n", ""))
    monkeypatch.setattr("sys.argv", ["transcripts", str(page)])
    assert main() == 1
    assert "-     x" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["transcripts", str(page), "--write"])
    assert main() == 0
    assert page.read_text() == PAGE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<!-- run -->\n\n    $ exit 3\n", "exit code 3, stated 0"),
        ("<!-- run exit 1 -->\n\n    $ true\n", "exit code 0, stated 1"),
        ("<!-- run -->\n\nno block\n", "no block"),
    ],
)
def test_a_command_that_ends_otherwise_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        true_page(_page(tmp_path, text))


def test_parts_of_an_output() -> None:
    lines = list("abcdef")
    assert shown(lines, ((1, 0),)) == lines
    assert shown(lines, ((2, 3), (5, 0))) == ["...", "b", "c", "...", "e", "f"]
    assert shown(lines, ((1, 9),)) == lines
