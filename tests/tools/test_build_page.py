"""The built page of the tree: what its sources give, told without Node.js where it is not."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import build_page
from tools.build_page import DIST, PAGE, ROOT, SOURCES, differences, sources_digest


def test_the_trees_page_was_built_from_the_trees_sources() -> None:
    assert not build_page.is_stale(), "what works: make page"


def test_the_built_page_is_part_of_the_tree() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("no clone")
    listed = subprocess.run(
        ["git", "ls-files", "--", str(DIST.relative_to(ROOT))], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    inside = {p.relative_to(ROOT).as_posix() for p in DIST.rglob("*") if p.is_file() and p.name != "glossary.txt"}
    assert set(listed) == inside, "what works: make page, then git add src/fourfold/explore/dist"


def test_a_changed_source_makes_it_stale_and_a_changed_test_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page"
    shutil.copytree(PAGE, page, ignore=shutil.ignore_patterns("node_modules"))
    assert sources_digest(page) == sources_digest()
    (page / "node_modules").mkdir()
    (page / "node_modules/a.ts").write_text("")
    (page / "src/lib/new.test.ts").write_text("")
    assert sources_digest(page) == sources_digest()
    (page / "src/app.css").write_text((page / "src/app.css").read_text() + "\n")
    assert sources_digest(page) != sources_digest()
    monkeypatch.setattr(build_page, "PAGE", page)
    monkeypatch.setattr(build_page, "sources_digest", lambda: sources_digest(page))
    assert build_page.is_stale()


def test_files_that_differ_are_named(tmp_path: Path) -> None:
    built = tmp_path / "dist"
    shutil.copytree(DIST, built)
    assert differences(DIST, built) == []
    (built / "report.js").write_text("other")
    (built / "index.html").unlink()
    (built / "assets/new.js").write_text("")
    folder = DIST.relative_to(ROOT).as_posix()
    assert differences(DIST, built) == [
        f"{folder}/assets/new.js is missing",
        f"{folder}/index.html comes from no source",
        f"{folder}/report.js differs",
    ]


def test_the_check_fails_and_says_what_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(folder: Path, checks: object = ()) -> None:
        shutil.copytree(DIST, folder)
        (folder / "report.css").write_text("other")

    monkeypatch.setattr(build_page, "_make", make)
    with pytest.raises(SystemExit, match=r"report\.css differs\n.*what works: make page"):
        build_page.check_page()


def test_without_node_a_build_says_what_to_do(tmp_path: Path) -> None:
    """In a process of its own: nothing on PATH, and no package of PyPI."""
    script = "import tools.build_page as b; b.find_spec = lambda name: None; b.is_stale = lambda: True; b.build_page()"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "Node.js 20 or newer with npm is needed to build the page; what works" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_digest_stands_beside_the_page() -> None:
    assert (DIST / SOURCES).read_text() == f"{sources_digest()}\n"
