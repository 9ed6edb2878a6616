"""Which tests execute which lines of `src`, from the data of coverage that a suite under `tests.support.reach` leaves.

python -m tools.reach record PYTEST-ARGUMENTS      # runs tests so; writes .reach/reach.sqlite and tests/reach.json
python -m tools.reach of FILE [PYTEST-ARGUMENTS]   # runs the tests that execute a file or a module; `make tests-of FILE`
python -m tools.reach renew PYTEST-ARGUMENTS       # records these tests alone: rows of new files, none of files that are gone
"""

import ast
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".reach"
MAP = ROOT / "tests" / "reach.json"
MOST_TESTS = 40
"""Tests that the map names for a file."""
_PHASES = (" (setup)", " (call)", " (teardown)")
_OTHER = re.compile(r" \((?:setup|call|teardown)\)\|")
"""Behind the test that a process was started for, where coverage names one that it serves later: `A (call)|B (call)`."""
_TABLES = """
create table test (id integer primary key, name text unique, seconds real);
create table reach (file text, test integer, lines blob, primary key (file, test)) without rowid;
"""
_SETTINGS = """
[run]
include = {source}/*
parallel = true
patch = fork, _exit
context = ${{PYTEST_CURRENT_TEST-}}
data_file = {folder}/data/c
disable_warnings = no-data-collected, module-not-measured, module-not-imported, already-imported
"""


def main(arguments: Sequence[str]) -> int:
    match arguments:
        case ["record", *rest]:
            return record(rest, map_of)
        case ["renew", *rest]:
            return record(rest, lambda reach: renewed(json.loads(MAP.read_text(encoding="utf-8")), map_of(reach), ROOT))
        case ["of", file, *rest]:
            return run_tests_of(file, rest)
    print(__doc__, file=sys.stderr)
    return 2


def record(arguments: Sequence[str], made: Callable[["Reach"], dict[str, Any]]) -> int:
    """Runs pytest with every process watched, then writes the map `made` of it; the exit code is pytest's."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    watched = {**os.environ, **watching(FOLDER, ROOT / "src" / "fourfold")}
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.reach", *arguments]
    code = subprocess.run(command, cwd=ROOT, env=watched, check=False).returncode
    gather(FOLDER, ROOT)
    MAP.write_text(json.dumps(made(Reach(FOLDER)), separators=(",", ":")).replace("],", "],\n") + "\n", "utf-8")
    return code


def watching(folder: Path, source: Path) -> dict[str, str]:
    """Variables that have every process of a suite watched while it executes files below `source`; data goes to `folder`."""
    (folder / "data").mkdir(parents=True)
    settings = folder / "coverage.ini"
    settings.write_text(_SETTINGS.format(source=source, folder=folder), encoding="utf-8")
    return {"FOURFOLD_REACH": str(folder), "COVERAGE_PROCESS_START": str(settings)}


def run_tests_of(wanted: str, arguments: Sequence[str]) -> int:
    """Runs what the map names for a file (`src/fourfold/program/lower.py`) or a module (`fourfold.program.lower`)."""
    known = json.loads(MAP.read_text(encoding="utf-8"))
    name = wanted if wanted.endswith(".py") else f"src/{wanted.replace('.', '/')}.py"
    if Path(name).is_absolute():
        name = os.path.relpath(name, ROOT)
    if name not in known["files"]:
        package = f"src/{wanted.replace('.', '/')}/__init__.py"
        if package not in known["files"]:
            print(f"{wanted}: no test executes a function of it, or there is no such file; what works: a path such as "
                  "src/fourfold/program/reductions.py, a module such as fourfold.program.reductions; `make test-all` "
                  "renews the map", file=sys.stderr)  # fmt: skip
            return 2
        name = package
    numbers, total = known["files"][name]["tests"], known["files"][name]["number"]
    tests = [test for test in (known["tests"][number] for number in numbers) if _exists(test, ROOT)]
    print(
        f"{len(tests)} of the {total} tests that execute {name}, those that execute much of it and little else first:"
    )
    print("".join(f"  {test}\n" for test in tests), flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not sweep and not faults", *tests, *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _exists(test: str, root: Path) -> bool:
    """Whether a test of the map is still there: it may have another name since the map was made."""
    file, _, function = test.partition("::")
    path = root / file
    return path.is_file() and f"def {function.split('::')[-1]}(" in path.read_text(encoding="utf-8")


class Reach:
    """Lines that each test executes inside functions, read from `folder/reach.sqlite`."""

    def __init__(self, folder: Path) -> None:
        path = folder / "reach.sqlite"
        if not path.exists():
            raise SystemExit(f"{path}: there is no record of what tests reach; what works: make test-all")
        self._path = path

    @cached_property
    def _tests(self) -> dict[int, tuple[str, float]]:
        with sqlite3.connect(self._path) as base:
            return {number: (name, seconds) for number, name, seconds in base.execute("select * from test")}

    @cached_property
    def _seconds(self) -> dict[str, float]:
        return dict(self._tests.values())

    def seconds(self, test: str) -> float:
        return self._seconds.get(test, 1.0)

    def tests_of_lines(self, file: str, lines: Iterable[int]) -> list[str]:
        """Ids of the tests that execute one of the lines."""
        wanted = sum(1 << line for line in lines)
        with sqlite3.connect(self._path) as base:
            rows = base.execute("select test, lines from reach where file = ?", (file,)).fetchall()
        return [self._tests[test][0] for test, bits in rows if int.from_bytes(bits, "little") & wanted]

    def lines_by_function(self) -> dict[str, dict[str, int]]:
        """How many lines the cases of each test function execute together, by file and function."""
        found: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        with sqlite3.connect(self._path) as base:
            for file, test, bits in base.execute("select file, test, lines from reach"):
                found[file][self._tests[test][0].split("[")[0]] |= int.from_bytes(bits, "little")
        return {file: {test: bits.bit_count() for test, bits in tests.items()} for file, tests in found.items()}


def gather(folder: Path, root: Path) -> None:
    """Makes `reach.sqlite` of what coverage and the plugin left in `folder`. A set-up is every test's of its file: who comes first
    is chance."""
    times = defaultdict(float)
    for path in folder.glob("times-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            times[row["test"]] = max(times[row["test"]], row["wall"])
    by_file = defaultdict(list)
    for test in times:
        by_file[test.split("::")[0]].append(test)
    inside: dict[str, int] = {}
    found: defaultdict[tuple[str, str], int] = defaultdict(int)
    for data in sorted((folder / "data").glob("c.*")):
        for file, context, bits in _read(data):
            name = os.path.relpath(file, root)
            if name not in inside:
                inside[name] = function_lines(Path(file).read_text(encoding="utf-8"))
            if lines := int.from_bytes(bits, "little") & inside[name]:
                found[name, context] |= lines
    merged: defaultdict[tuple[str, str], int] = defaultdict(int)
    for (name, joined), lines in found.items():
        context = _OTHER.split(joined)[-1]
        for phase in _PHASES:
            if context.endswith(phase):
                test = context.removesuffix(phase)
                for each in by_file[test.split("::")[0]] if phase == " (setup)" else [test]:
                    merged[name, each] |= lines
    target = folder / "reach.sqlite"
    target.unlink(missing_ok=True)
    with sqlite3.connect(target) as base:
        base.executescript(_TABLES)
        numbers = {test: number for number, test in enumerate(sorted(times))}
        base.executemany("insert into test values (?, ?, ?)", [(numbers[test], test, times[test]) for test in numbers])
        rows = (
            (name, numbers[test], lines.to_bytes((lines.bit_length() + 7) // 8, "little"))
            for (name, test), lines in merged.items()
            if test in numbers
        )
        base.executemany("insert into reach values (?, ?, ?)", rows)


def _read(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """(file, context, numbits of lines) of one file of coverage; nothing of one that a killed process left half-written."""
    try:
        with sqlite3.connect(path) as base:
            yield from base.execute(
                "select file.path, context.context, line_bits.numbits from line_bits "
                "join file on file.id = line_bits.file_id join context on context.id = line_bits.context_id"
            )
    except sqlite3.DatabaseError:
        return


def function_lines(source: str) -> int:
    """Bits of the lines that stand in bodies of functions: importing a file executes the others."""
    bits = 0
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            body = node.body if isinstance(node.body, list) else [node.body]
            for line in range(body[0].lineno, body[-1].end_lineno + 1):
                bits |= 1 << line
    return bits


def map_of(reach: Reach) -> dict[str, Any]:
    """The tests of each file, at most `MOST_TESTS`: those in the folder of its package first, of these the ones that execute much
    of it and little else: by the square of the lines of it that a test executes, over all lines that the test executes."""
    lines = reach.lines_by_function()
    totals: defaultdict[str, int] = defaultdict(int)
    for counts in lines.values():
        for test, number in counts.items():
            totals[test] += number

    def ordered(file: str, counts: Mapping[str, int]) -> list[str]:
        own = f"tests/{file.removeprefix('src/fourfold/').split('/')[0]}/"
        return sorted(counts, key=lambda test: (not test.startswith(own), -(counts[test] ** 2) / totals[test], test))

    best = {file: ordered(file, counts)[:MOST_TESTS] for file, counts in lines.items()}
    return _numbered({file: (len(lines[file]), tests) for file, tests in best.items()})


def renewed(known: Mapping[str, Any], latest: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """A map without the files and tests that are gone, and with the files that only the `latest` one knows."""
    rows = {}
    for each in (latest, known):
        for file, row in each["files"].items():
            if (root / file).is_file():
                tests = [each["tests"][place] for place in row["tests"]]
                rows[file] = (row["number"], [test for test in tests if _exists(test, root)])
    return _numbered(rows)


def _numbered(rows: Mapping[str, tuple[int, Sequence[str]]]) -> dict[str, Any]:
    """(Number of its tests, the best of them) of each file as a map, in which a test's name stands once."""
    names = sorted({test for _, tests in rows.values() for test in tests})
    places = {name: place for place, name in enumerate(names)}
    files = {
        file: {"number": number, "tests": [places[test] for test in tests]}
        for file, (number, tests) in sorted(rows.items())
    }
    return {"tests": names, "files": files}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
