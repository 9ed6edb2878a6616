"""The source tree's own laws: a name for every class, files neither so long that they hold two ideas nor too short for one.

Files that depart today are listed with the reason. The lists only shrink: an entry that is no longer needed fails too."""

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fourfold"
FILES = sorted(SOURCE.rglob("*.py"))
LONGEST, SHORTEST = 500, 40
PACKAGE_FILES = ("__init__.py", "__main__.py")
"""Files that may be shorter than `SHORTEST`: a package shows, and `python -m` runs, as little as it can."""

NAMED_TWICE: dict[str, str] = {}
FAMILIES = "huggingface/families/"
"""A model family is one file, however little it has to say."""
SHORT = {
    "report/timeline_trace.py": "the trace of a schedule alone, of which no program is simulated",
    "api/new_file.py": "files for `--out`, which commands and what they call write",
    "cli/list.py": "one command, one file",
    "launch/shown.py": "bounds on runs that are looked at, below every command that reads a folder",
    "explore/browser/engine.py": "all that a browser calls; the documents and their refusals are the server's",
    "explore/browser/stand_ins.py": "what comes before the first import of anything else",
    "explore/refusals.py": "what server, processes and browser say alike of an error, without the server's libraries",
    "explore/packed.py": "columns of numbers that the page reads as typed arrays; schema and documents both stand on it",
    "explore/warm.py": "what the process that answers are forks of imports last, by its name alone",
    "kernels/triton_rows.py": "what the Triton kernels of four kinds share; Triton may be missing",
    "model/mup.py": "one paper's table of factors, which initialisation and optimizer read",
    "plan/moves/overlap.py": "one move of the search, one file",
    "program/fault.py": "the record that all of the verifier's rules make",
    "runtime/capabilities.py": "the one list of capabilities' handlers, beside `program/capabilities.py`, which imports no torch",
    "program/schedule/breadth_first.py": "one schedule, one file",
    "program/schedule/built_in.py": "the one list of schedules: `catalogue` imports it, and it every schedule",
    "simulate/paused_garbage_collection.py": "Python's garbage collector, paused by whoever makes many objects",
    "train/certificate.py": "what a checkpoint proves, beside `train/state.py`, the state that it holds",
    "train/deterministic.py": "what a rank's process sets before it has a device; the trials of back ends stand in `kernels`",
    "model/halves.py": "runtime and checkpoints, side by side, need it: it belongs to neither",
}


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_no_class_has_another_ones_name() -> None:
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in FILES)
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    twice = {name for name, number in names.items() if number > 1}
    assert twice - set(NAMED_TWICE) == set(), "two classes of one name: say in the name what tells them apart"
    assert set(NAMED_TWICE) - twice == set(), "no longer named twice: take it off the list"


def test_no_file_is_long() -> None:
    long = {name_of(path): lines for path in FILES if (lines := lines_of(path)) > LONGEST}
    assert long == {}, f"more than {LONGEST} lines: look for the second idea"


def test_short_files_have_a_reason() -> None:
    files = (path for path in FILES if path.name not in PACKAGE_FILES and not name_of(path).startswith(FAMILIES))
    short = {name_of(path) for path in files if lines_of(path) < SHORTEST}
    assert short - set(SHORT) == set(), f"fewer than {SHORTEST} lines: part of which file is it? Else state a reason"
    assert set(SHORT) - short == set(), "no longer short, or gone: take it off the list"


@pytest.mark.parametrize("reasons", [NAMED_TWICE, SHORT])
def test_reasons_are_stated(reasons: dict[str, str]) -> None:
    assert all(reasons.values())


def test_the_rooms_that_the_architecture_names_are_there() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition("## The room of a change")[2].partition("##")[0]
    rooms = [path for path in re.findall(r"`([a-zA-Z_*/.]+/[a-zA-Z_*/.]*)`", table) if not path.startswith("src/")]
    missing = [path for path in rooms if not any(SOURCE.glob(re.sub("[A-Z]{4,}", "*", path)))]
    assert len(rooms) > 25
    assert missing == [], "renamed or gone: correct the page"


def test_the_layers_that_the_architecture_names_are_those_that_are_checked() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = page.partition("## The layers")[2].partition("Packages on one line")[0]
    lines = [line[4:46].strip() for line in drawn.splitlines() if line.startswith("    ") and line[4:46].strip()]
    named = " | ".join(lines).replace("| |", "|")
    contracts = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    assert named.split(" | ") == [package for layer in layers for package in layer.split(" | ")]
