"""Mutants are one edit each, drawn from a seed, found again where lines have moved, and caught by a test that fails."""

import ast
import sqlite3
from pathlib import Path

import pytest

from tools.mutants import LAWFUL, WEIGHTS, order, placed, shares_of, try_mutant
from tools.mutation_sites import KINDS, ROOT, Mutant, drawn, shares, sites_of
from tools.reach import Reach

SOURCE = '''"""Widths."""


def area(width: int, height: int = 2) -> int:
    """Width times height."""
    if width < 0 or height < 0:
        raise ValueError(f"negative: {width - 1}")
    parts = []
    parts.append(min(width, height * 3))
    parts.extend([width * height, 0])
    return parts[1]
'''
PATH = "src/fourfold/layout/area.py"
SOME = [ROOT / "src/fourfold/layout/mesh.py", ROOT / "src/fourfold/program/reductions.py"]


def edits(source: str) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for mutant in sites_of(PATH, source):
        found.setdefault((mutant.kind, mutant.old), set()).add(mutant.new)
    return found


def test_every_kind_of_edit_is_made_where_it_can_be() -> None:
    assert edits(SOURCE) == {
        ("operator", "width < 0 or height < 0"): {"((width < 0) and (height < 0))"},
        ("operator", "width < 0"): {"((width) <= (0))"},
        ("operator", "height < 0"): {"((height) <= (0))"},
        ("operator", "height * 3"): {"((height) + (3))"},
        ("operator", "width * height"): {"((width) + (height))"},
        ("factor", "height * 3"): {"(height)", "(3)"},
        ("factor", "width * height"): {"(width)", "(height)"},
        ("constant", "0"): {"1"},
        ("constant", "1"): {"2"},
        ("constant", "3"): {"4"},
        ("instruction", "parts.append(min(width, height * 3))"): {"pass"},
        ("instruction", "parts.extend([width * height, 0])"): {"pass"},
        ("instruction", "[width * height, 0]"): {"[0]", "[width * height]"},
        ("argument", "min(width, height * 3)"): {"min(height * 3, width)"},
    }


def test_what_only_a_person_reads_is_no_site() -> None:
    assert all(mutant.line != 7 for mutant in sites_of(PATH, SOURCE))
    assert all("Width" not in mutant.old for mutant in sites_of(PATH, SOURCE))


def test_a_draw_is_one_seeds_and_parses() -> None:
    once, again, other = (drawn(SOME, 60, seed, WEIGHTS) for seed in (3, 3, 4))
    assert once == again != other
    assert {mutant.kind for mutant in once} == set(KINDS)
    assert len({(mutant.path, mutant.line) for mutant in once}) == len(once)
    for mutant in once:
        source = (ROOT / mutant.path).read_text(encoding="utf-8")
        assert source[mutant.start : mutant.end] == mutant.old
        assert ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source))


def test_a_number_is_shared_out_by_weight() -> None:
    assert shares({"a": 1, "b": 1, "c": 2}, 9) == {"a": 2, "b": 2, "c": 5}
    assert sum(shares(dict.fromkeys("abcdefg", 1.0), 200).values()) == 200


def test_a_mutant_is_found_again_where_lines_have_moved() -> None:
    mutant = next(each for each in sites_of(PATH, SOURCE) if (each.old, each.new) == ("0", "1") and each.nth == 2)
    moved = "\n\n" + SOURCE.replace("width: int", "width: float")
    broken = placed(mutant, moved)
    assert broken is not None
    assert "[width * height, 1]" in broken
    assert placed(mutant, SOURCE.replace("[width * height, 0]", "[width * height]")) is None


def small_tree(folder: Path) -> Path:
    (folder / PATH).parent.mkdir(parents=True)
    (folder / PATH).write_text(SOURCE)
    (folder / "test_area.py").write_text(
        "import time\nfrom area import area\n"
        "def test_a_square(): assert area(2, 2) == 4\n"
        "def test_a_bar(): assert area(3, 2) == 6\n"
        "def test_nothing(): assert area(0, 5) == 0\n"
    )
    (folder / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str((folder / PATH).parent)!r})\n")
    return folder


@pytest.mark.parametrize(
    ("old", "new", "caught_by"),
    [
        ("width * height", "((width) + (height))", "test_area.py::test_a_bar"),
        ("[width * height, 0]", "[0]", "the run"),
        ("height * 3", "(height)", None),
    ],
)
def test_a_mutant_is_caught_by_the_first_test_that_fails(
    old: str, new: str, caught_by: str | None, tmp_path: Path
) -> None:
    tree = small_tree(tmp_path)
    mutant = next(each for each in sites_of(PATH, SOURCE) if (each.old, each.new) == (old, new))
    tests = [f"test_area.py::test_{name}" for name in ("a_square", "a_bar", "nothing")]
    if caught_by == "the run":
        tests = ["test_area.py::test_gone"]
    row = try_mutant(mutant, tree, tests, 30)
    assert (row["outcome"], row["caught_by"]) == ("caught" if caught_by else "missed", caught_by)
    assert (tree / PATH).read_text() == SOURCE


def record(folder: Path, reached: dict[str, tuple[float, dict[str, list[int]]]]) -> Reach:
    """A record of (seconds, lines by file) of each test."""
    with sqlite3.connect(folder / "reach.sqlite") as base:
        base.executescript("create table test (id, name, seconds); create table reach (file, test, lines);")
        for number, (test, (seconds, files)) in enumerate(reached.items()):
            base.execute("insert into test values (?, ?, ?)", (number, test, seconds))
            for file, lines in files.items():
                bits = sum(1 << line for line in lines).to_bytes(40, "little")
                base.execute("insert into reach values (?, ?, ?)", (file, number, bits))
    return Reach(folder)


def test_the_tests_that_reach_the_line_are_tried_quick_ones_of_its_package_first(tmp_path: Path) -> None:
    mutant = next(each for each in sites_of(PATH, SOURCE) if each.line == 10)
    reach = record(
        tmp_path,
        {
            "tests/cli/test_a.py::test_far": (0.1, {PATH: [10]}),
            "tests/layout/test_b.py::test_near[1]": (0.3, {PATH: [9, 10]}),
            "tests/layout/test_b.py::test_near[2]": (0.2, {PATH: [10]}),
            "tests/layout/test_b.py::test_slow": (50.0, {PATH: [10]}),
            "tests/layout/test_b.py::test_other_line": (0.1, {PATH: [9]}),
            "tests/layout/test_b.py::test_left_out": (0.1, {PATH: [10]}),
        },
    )
    far, near, slow = (
        "tests/cli/test_a.py::test_far",
        "tests/layout/test_b.py::test_near",
        "tests/layout/test_b.py::test_slow",
    )
    allowed = {far, f"{near}[1]", f"{near}[2]", slow, "tests/layout/test_b.py::test_other_line"}
    assert order(reach, mutant, allowed, 1000, None) == [f"{near}[2]", slow, f"{near}[1]", far]
    assert order(reach, mutant, allowed, 50.45, None) == [f"{near}[2]", f"{near}[1]", far], "others have their half"
    assert order(reach, mutant, allowed, 0.45, None) == [f"{near}[2]", far]
    assert order(reach, mutant, allowed, 0.1, far) == [far, f"{near}[2]"]
    assert order(reach, mutant, allowed, 0.1, "tests/gone.py::test_gone") == [f"{near}[2]"], "one at least"


def test_equivalent_mutants_and_those_that_are_gone_are_not_judged() -> None:
    mutants: list[Mutant] = sites_of(PATH, SOURCE)[:5]
    outcomes = ("caught", "missed", "missed", "gone", "caught")
    results = {mutant.name: {"outcome": outcome} for mutant, outcome in zip(mutants, outcomes, strict=True)}
    assert shares_of(mutants, results, {mutants[1].name: "reason"}) == {"layout": (2, 3), "all": (2, 3)}
    assert "layout" in LAWFUL
