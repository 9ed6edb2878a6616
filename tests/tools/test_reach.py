"""A test is recorded in all of its processes, and the map names for a file the tests that execute little else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.reach import MAP, MOST_TESTS, Reach, function_lines, gather, main, map_of, renewed, watching

ROOT = MAP.parents[1]
MODULE = """VALUE = 1


def used() -> int:
    return VALUE


def unused() -> int:
    return 2


in_a_child = lambda: 3


def served() -> int:
    return 4
"""
TESTS = """
import os, subprocess, sys
from pathlib import Path
import pytest
sys.path.insert(0, str(Path(__file__).parent / "src"))
import module

@pytest.fixture(scope="module")
def once():
    return module.unused()

def test_here(once):
    assert module.used() == 1

def test_with_a_fixture_that_another_made(once):
    assert once == 2

def test_in_a_process_of_its_own():
    code = f"import sys; sys.path.insert(0, {sys.path[0]!r}); import module; module.in_a_child()"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_in_a_fork():
    if (pid := os.fork()) == 0:
        module.in_a_child()
        os._exit(0)
    os.waitpid(pid, 0)

SERVER = f'''
import sys; sys.path[:0] = [{sys.path[0]!r}]
import module
from tests.support.reach import enter
for line in sys.stdin:
    enter(line.strip())
    module.served()
    print(flush=True)
'''

servers = []

@pytest.mark.parametrize("number", [1, 2])
def test_served(number):
    if not servers:
        piped = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        servers.append(subprocess.Popen([sys.executable, "-c", SERVER], **piped))
    print(os.environ["PYTEST_CURRENT_TEST"], file=servers[0].stdin, flush=True)
    servers[0].stdout.readline()
    if number == 2:
        servers[0].communicate()

@pytest.mark.parametrize("number", [1, 2])
def test_nothing(number):
    pass
"""


@pytest.fixture(scope="module")
def reach(tmp_path_factory: pytest.TempPathFactory) -> Reach:
    """The record of the suite above, which is run with every process watched."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "src").mkdir()
    (folder / "src" / "module.py").write_text(MODULE)
    (folder / "test_module.py").write_text(TESTS)
    watched = watching(folder, folder / "src")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COVERAGE_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.reach", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "test_module.py"],
        cwd=folder, env={**kept, **watched, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    gather(folder, folder)
    return Reach(folder)


def names(tests: list[str]) -> set[str]:
    return {test.partition("::test_")[2] for test in tests}


def test_lines_are_those_of_the_test_s_own_processes(reach: Reach) -> None:
    used, unused, in_a_child, served = 5, 9, 12, 16
    assert names(reach.tests_of_lines("src/module.py", [used])) == {"here"}
    imported = {"in_a_process_of_its_own", "in_a_fork", "served[1]"}
    assert names(reach.tests_of_lines("src/module.py", [in_a_child])) == imported, "a lambda's line makes it too"
    assert names(reach.tests_of_lines("src/module.py", [served])) == {"served[1]", "served[2]"}, "in one process"
    assert names(reach.tests_of_lines("src/module.py", [1, 4])) == set(), "an import is no use"
    every = {
        "here",
        "with_a_fixture_that_another_made",
        "in_a_process_of_its_own",
        "in_a_fork",
        "served[1]",
        "served[2]",
        "nothing[1]",
        "nothing[2]",
    }
    assert names(reach.tests_of_lines("src/module.py", [unused])) == every, "a set-up is every test's of its file"


def test_every_test_has_its_time(reach: Reach) -> None:
    assert reach.seconds("test_module.py::test_in_a_process_of_its_own") > reach.seconds(
        "test_module.py::test_nothing[1]"
    )


def test_the_map_names_functions_those_that_execute_much_of_it_first(reach: Reach) -> None:
    found = map_of(reach)
    file = found["files"]["src/module.py"]  # type: ignore[index]
    ordered = [found["tests"][place] for place in file["tests"]]  # type: ignore[index]
    assert file["number"] == len(ordered) == 6
    assert names(ordered[:4]) == {"here", "served", "in_a_process_of_its_own", "in_a_fork"}, "two lines of it"


def test_a_renewed_map_forgets_what_is_gone_and_learns_what_is_new(reach: Reach, tmp_path: Path) -> None:
    for file, text in {"src/module.py": "", "src/old.py": "", "test_module.py": TESTS}.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    known = {
        "tests": ["test_gone.py::test_a", "test_module.py::test_gone", "test_module.py::test_here"],
        "files": {"src/gone.py": {"number": 1, "tests": [0]}, "src/old.py": {"number": 9, "tests": [2, 1]}},
    }
    found = renewed(known, map_of(reach), tmp_path)
    assert set(found["files"]) == {"src/module.py", "src/old.py"}
    assert [found["tests"][place] for place in found["files"]["src/old.py"]["tests"]] == ["test_module.py::test_here"]
    assert found["files"]["src/old.py"]["number"] == 9
    assert len(found["files"]["src/module.py"]["tests"]) == 6
    assert "test_gone.py::test_a" not in found["tests"]


def test_bodies_of_functions_are_lines_that_an_import_leaves_alone() -> None:
    assert [line for line in range(20) if function_lines(MODULE) >> line & 1] == [5, 9, 12, 16]


def test_the_map_of_this_tree_names_tests_that_exist_for_files_that_exist() -> None:
    known = json.loads(MAP.read_text(encoding="utf-8"))
    gone = [name for name in known["files"] if not (ROOT / name).is_file()]
    gone += [name for name in {test.split("::")[0] for test in known["tests"]} if not (ROOT / name).is_file()]
    assert gone == [], "what works: python -m tools.reach renew, with the tests of what is new"
    assert max(len(file["tests"]) for file in known["files"].values()) <= MOST_TESTS
    laws = [known["tests"][place] for place in known["files"]["src/fourfold/program/reductions.py"]["tests"]]
    assert any("test_laws_of_bytes" in law for law in laws)


@pytest.mark.parametrize("wrong", ["src/fourfold/nothing.py", "fourfold.nothing", "nothing"])
def test_a_file_that_no_test_executes_is_one_message(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["of", wrong]) == 2
    assert f"{wrong}: no test executes a function of it" in capsys.readouterr().err
