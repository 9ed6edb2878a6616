"""A page of one file: whatever its documents hold, no browser may execute it, and without the built page nothing is written."""

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fourfold.cli.app import run as run_command
from fourfold.config import RunFailure
from fourfold.report import page_file
from fourfold.report.page_file import page_text, write_page
from tests.report.test_comparison import CLUSTER, as_predicted

NASTY = "</script><script>alert(1)</script><!--<script>\u2028 & \"quoted\" 'x'"


class Elements(HTMLParser):
    """Scripts, styles and the policy of a page."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.scripts: list[tuple[dict[str, Any], str]] = []
        self.policy, self.title, self.style, self._in = "", "", "", ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._in, found = tag, dict(attributes)
        if tag == "script":
            self.scripts.append((found, ""))
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif self._in == "style":
            self.style += data
        elif self._in == "title":
            self.title += data

    def handle_endtag(self, tag: str) -> None:
        self._in = ""


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A built page of a few letters."""
    dist = tmp_path / "dist"
    dist.mkdir()
    files = {
        "index.html": "",
        "mark.svg": "<svg/>",
        "report.css": "a{}",
        "report.js": "let a = '<!--</script><script>';",
    }
    for name, text in files.items():
        (dist / name).write_text(text)
    monkeypatch.setattr(page_file, "DIST", dist)
    return dist


def test_documents_come_back_as_they_were_and_nothing_else_is_a_script(built: Path) -> None:
    documents = {"run": {"name": NASTY, "list": [NASTY]}, "metrics": {"steps": [1]}}
    found = Elements(page_text(NASTY, documents))
    assert found.title == NASTY
    texts = {attributes["data-document"]: text for attributes, text in found.scripts if "data-document" in attributes}
    assert {name: json.loads(text) for name, text in texts.items()} == documents
    executed = [text for attributes, text in found.scripts if attributes.get("type") != "application/json"]
    assert executed == ["let a = '\\x3c!--\\x3c/script>\\x3cscript>';"]


def test_the_policy_names_what_is_in_the_file_and_nothing_else(built: Path) -> None:
    found = Elements(page_text("a", {}))

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert "default-src 'none'" in found.policy
    assert f"script-src {digest(found.scripts[-1][1])};" in found.policy
    assert f"style-src {digest(found.style)};" in found.policy
    assert not re.search(r"unsafe|https?:|\*|connect-src", found.policy)


def test_a_number_that_json_lacks_is_no_page(built: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        page_text("a", {"run": {"loss": float("nan")}})


def test_a_place_that_cannot_be_written_is_named(built: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailure, match=r"--out .*cannot be written"):
        write_page(tmp_path / "nowhere" / "a.html", "a", {})


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_without_the_built_page_the_command_says_how_to_build_it(built: Path, tmp_path: Path, command) -> None:
    folder = as_predicted(tmp_path / "run").path
    (built / "report.js").unlink()
    code, out, err = command("report", folder, "--out", tmp_path / "a.html")
    assert (code, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert "make page" in err
    assert not (tmp_path / "a.html").exists()
    code, out, _ = command("report", folder, "--cluster", CLUSTER)
    assert code == 0
    assert "page none: the page is not built" in out
    assert not (folder / "report.html").exists()
    assert json.loads(command("report", folder, "--json")[1])["page"] is None


def test_a_run_becomes_a_page_in_its_folder(built: Path, tmp_path: Path, command) -> None:
    folder = as_predicted(tmp_path / "<b>run").path
    (folder / "metrics.jsonl").write_text('{"step": 0, "loss": 5.0, "step_seconds": 0.5}\n')
    (folder / "events.jsonl").write_text('{"time": 5, "event": "</script><script>x"}\n')
    code, out, _ = command("report", folder, "--cluster", CLUSTER)
    assert code == 0
    assert f"page {folder / 'report.html'}" in out
    found = Elements((folder / "report.html").read_text())
    documents = {a["data-document"]: json.loads(text) for a, text in found.scripts if "data-document" in a}
    assert set(documents) == {"run", "comparison", "metrics"}
    assert documents["run"]["name"] == "<b>run"
    assert documents["run"]["events"][0]["event"] == "</script><script>x"
    assert documents["comparison"]["error"] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"best": 1}',
        '{"time_shares": NaN}',
        '{"step_seconds": 1}',
        "[" * 100_000,
        "\x00",
        '"x"',
        "run = 1",
    ],
)
def test_a_file_that_is_no_document_is_refused_in_a_line(built: Path, tmp_path: Path, command, content: str) -> None:
    path = tmp_path / "saved.json"
    path.write_text(content)
    code, out, err = command("report", path)
    assert (code, out) == (2, "")
    assert "what works" in err
    assert not path.with_suffix(".html").exists()


def test_a_saved_simulation_and_a_saved_plan_become_pages(built: Path, tmp_path: Path, command) -> None:
    run = ("preset:llama3.1-8b-128", "layout.recompute=full")
    for kind, arguments in (
        ("simulate", run),
        (
            "plan",
            (
                "--model",
                "smollm2-135m",
                "--cluster",
                "dgx-h100:2",
                "--sequence-length",
                "2048",
                "--batch-sequences",
                "16",
            ),
        ),
    ):
        code, out, err = command(kind, *arguments, "--json")
        assert code == 0, err
        path = tmp_path / f"{kind}.json"
        path.write_text(out)
        assert command("report", path) == (0, f"page {path.with_suffix('.html')}\n", "")
        found = Elements(path.with_suffix(".html").read_text())
        documents = {a["data-document"]: json.loads(text) for a, text in found.scripts if "data-document" in a}
        assert documents == {kind: json.loads(out)}
    code, _, err = command("report", path, "--json")
    assert code == 2
    assert "--out alone" in err
