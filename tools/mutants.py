"""Breaks the source, one small edit at a time, and counts what the tests notice: `python -m tools.mutants`.

    python -m tools.mutants draw --out FILE              # a seeded set of 200 mutants
    python -m tools.mutants run --set FILE --results R   # the tests that reach each one; goes on where it was stopped
    python -m tools.mutants table --set FILE --results BEFORE --results R

A mutant is caught where a test fails that passes without it, or runs past its time limit. Which tests reach it is read from the
data that `make test-all` leaves. The test that caught it in an earlier run comes first, then those of its own package, for half of
the time. A mutant that `--seconds` of tests do not notice counts as missed, so the share that is printed is a lower bound. Mutants
that no test could notice are in `tools/mutants_equivalent.toml`, each with the reason.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tools.mutation_sites import ROOT, Mutant, drawn, sites_of
from tools.reach import Reach

SOURCE = ROOT / "src" / "fourfold"
LAWFUL = ("layout", "program", "runtime", "model", "simulate", "checkpoint", "data", "plan")
"""Packages in which at least `LEAST` of all mutants must be caught."""
LEAST = 0.9
WEIGHTS = {**dict.fromkeys(LAWFUL, 22.0), "*": 24.0 / 22}
"""Mutants of each package, of 200; the others share what remains."""
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.toml")
TEST_SECONDS = 60
"""A test that takes longer than this with a mutant has caught it: it hangs."""
MOST_TESTS = 400
FORKING = multiprocessing.get_context("forkserver")
PRELOADED = ["torch", "torch.distributed", "torch._dynamo", "numpy", "pydantic", "hypothesis", "pytest", "transformers"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    draw = commands.add_parser("draw", help="write a seeded set of mutants")
    draw.add_argument("--number", type=int, default=200)
    draw.add_argument("--seed", type=int, default=0)
    draw.add_argument("--package", action="append", help="of these packages alone; may be repeated")
    draw.add_argument("--out", type=Path, required=True)
    run = commands.add_parser("run", help="run the tests that reach each mutant")
    run.add_argument("--set", type=Path, required=True)
    run.add_argument("--results", type=Path, required=True, help="a file of lines, read and added to")
    run.add_argument("--reach", type=Path, default=ROOT / ".reach", help="what `make test-all` left")
    run.add_argument("--first", type=Path, help="results of an earlier run, whose tests are tried first")
    run.add_argument("--workers", type=int, default=2)
    run.add_argument("--seconds", type=float, default=60.0, help="tests that a mutant may take, by their own times")
    run.add_argument("--tree", type=Path, default=ROOT, help="the checkout whose tests are run")
    run.add_argument("-m", dest="marks", default="", help="marker expression of pytest: which tests count")
    table = commands.add_parser("table", help="print the share caught, by package")
    table.add_argument("--set", type=Path, required=True)
    table.add_argument("--results", type=Path, action="append", required=True)
    chosen = parser.parse_args(arguments)
    return {"draw": _draw, "run": _run, "table": _table}[chosen.command](chosen)


def _draw(chosen: argparse.Namespace) -> int:
    files = [path for path in SOURCE.rglob("*.py") if "page" not in path.parts]
    if chosen.package:
        files = [path for path in files if path.relative_to(SOURCE).parts[0].removesuffix(".py") in chosen.package]
    found = drawn(files, chosen.number, chosen.seed, WEIGHTS)
    chosen.out.write_text("".join(json.dumps(mutant.to_json()) + "\n" for mutant in found), encoding="utf-8")
    print(f"{len(found)} mutants in {chosen.out}")
    return 0


def read_set(path: Path) -> list[Mutant]:
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [Mutant(**{key: value for key, value in row.items() if key != "name"}) for row in rows]


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """By the mutant's name; the last line of each counts."""
    if not path.exists():
        return {}
    return {row["name"]: row for line in path.read_text(encoding="utf-8").splitlines() if (row := json.loads(line))}


def placed(mutant: Mutant, source: str) -> str | None:
    """The source with the mutant in it, also where lines above it have moved; None where its text is gone."""
    if source[mutant.start : mutant.end] == mutant.old:
        return mutant.applied(source)
    again = next((each for each in sites_of(mutant.path, source) if each.name == mutant.name), None)
    return again.applied(source) if again else None


def _run(chosen: argparse.Namespace) -> int:
    mutants, done = read_set(chosen.set), read_results(chosen.results)
    reach = Reach(chosen.reach)
    earlier = read_results(chosen.first) if chosen.first else {}
    allowed = collected(chosen.tree, chosen.marks)
    left = [mutant for mutant in mutants if mutant.name not in done]
    FORKING.set_forkserver_preload(PRELOADED)
    trees: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(chosen.workers):
            copy_of(chosen.tree, tree := Path(folder) / str(number))
            trees.put(tree)

        def judge(mutant: Mutant) -> dict[str, Any]:
            tree = trees.get()
            try:
                before = earlier.get(mutant.name, {}).get("caught_by")
                tests = order(reach, mutant, allowed, chosen.seconds, before)
                return {"name": mutant.name, **try_mutant(mutant, tree, tests, chosen.seconds)}
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(chosen.workers) as pool, open(chosen.results, "a", encoding="utf-8") as file:
            for number, row in enumerate(pool.map(judge, left), len(done) + 1):
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(
                    f"{number}/{len(mutants)} {row['outcome']:8} {row['seconds']:6.1f} s  {row['name'][:110]}",
                    flush=True,
                )
    return 0


def collected(tree: Path, marks: str) -> set[str]:
    """The tests that a marker expression takes, by their ids."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marks]
    done = subprocess.run(command, cwd=tree, env=environment(tree), capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if "::" in line}


def order(reach: Reach, mutant: Mutant, allowed: set[str], seconds: float, before: str | None) -> list[str]:
    """Tests in the order in which they are tried: the one that caught it before; those of the mutant's own package, for half of the
    `seconds`; the others'; what is left of its own. Each time one case of every function after the other, quick ones first."""
    tests = [test for test in reach.tests_of_lines(mutant.path, range(mutant.line, mutant.line + 1)) if test in allowed]
    own = f"tests/{mutant.package}/"
    tests.sort(key=reach.seconds)
    rounds: Counter[str] = Counter()
    ranked = []
    for place, test in enumerate(tests):
        function = test.split("[")[0]
        ranked.append((rounds[function], place, test))
        rounds[function] += 1
    near, far = ([test for *_, test in sorted(ranked) if test.startswith(own) == is_near] for is_near in (True, False))
    chosen: list[str] = []
    left = seconds
    for some, share in ((near, 0.5), (far, 1.0), (near, 1.0)):
        most = share * left
        for test in some:
            cost = reach.seconds(test)
            if test not in chosen and len(chosen) < MOST_TESTS and (cost <= most or not chosen):
                chosen.append(test)
                most, left = most - cost, left - cost
    if before is not None and before in allowed:
        chosen = [before, *(test for test in chosen if test != before)]
    return chosen


def try_mutant(mutant: Mutant, tree: Path, tests: Sequence[str], seconds: float) -> dict[str, Any]:
    """Runs tests on a tree with the mutant in it, and restores the tree."""
    path = tree / mutant.path
    source = path.read_text(encoding="utf-8")
    broken = placed(mutant, source)
    begun = time.monotonic()
    if broken is None:
        return {"outcome": "gone", "seconds": 0.0, "tests": 0}
    if not tests:
        return {"outcome": "missed", "seconds": 0.0, "tests": 0}
    path.write_text(broken, encoding="utf-8")
    try:
        caught_by = first_failure(tree, tests, 5 * seconds + 2 * TEST_SECONDS)
    finally:
        path.write_text(source, encoding="utf-8")
    outcome = "caught" if caught_by else "missed"
    return {"outcome": outcome, "seconds": time.monotonic() - begun, "tests": len(tests), "caught_by": caught_by}


def first_failure(tree: Path, tests: Sequence[str], most_seconds: float) -> str | None:
    """The first test that fails, or `the run` where that ends without naming one, or not at all; None where all pass."""
    with tempfile.NamedTemporaryFile("r+", encoding="utf-8") as printed:
        process = FORKING.Process(target=_test, args=(str(tree), list(tests), printed.name))
        process.start()
        process.join(most_seconds)
        ended = process.exitcode
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        if ended == 0:
            return None
        failed = (
            line.split(" ", 1)[1].split(" - ")[0].strip() for line in printed if line.startswith(("FAILED ", "ERROR "))
        )
        return next(failed, "the run")


def _test(tree: str, tests: list[str], printed: str) -> None:
    """A process of its own, forked where what tests import from others is there already; never returns."""
    os.setsid()
    for stream in (1, 2):
        os.dup2(os.open(printed, os.O_WRONLY | os.O_APPEND), stream)
    os.chdir(tree)
    os.environ.update(environment(Path(tree)))
    sys.path[:0] = [f"{tree}/src", tree]
    sys.dont_write_bytecode = True
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", f"--timeout={TEST_SECONDS}"]
    code = pytest.main([*options, *tests])
    sys.stdout.flush()
    os._exit(int(code))


def copy_of(tree: Path, there: Path) -> None:
    """The files of a checkout, those that git does not know yet too, and the page where it is built."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=tree, capture_output=True, check=True).stdout.decode().split("\0")
    page = tree / "src" / "fourfold" / "explore" / "dist"
    built = [path.relative_to(tree).as_posix() for path in page.rglob("*") if path.is_file()]
    for name in {*filter(None, listed), *built}:
        if (tree / name).is_file():
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / name, there / name)
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(there / "src"), str(there / "tests")], check=False)


def environment(tree: Path) -> dict[str, str]:
    """`tree`'s own packages come first; nothing is compiled beside a source that is about to change back."""
    return {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}", "PYTHONDONTWRITEBYTECODE": "1"}


def equivalents() -> dict[str, str]:
    """The reason by the mutant's name."""
    if not EQUIVALENT.exists():
        return {}
    return {row["name"]: row["reason"] for row in tomllib.loads(EQUIVALENT.read_text("utf-8"))["mutant"]}


def _table(chosen: argparse.Namespace) -> int:
    mutants, excused = read_set(chosen.set), equivalents()
    columns = [read_results(path) for path in chosen.results]
    counts = [shares_of(mutants, results, excused) for results in columns]
    print("package      mutants  equivalent  " + "  ".join(f"{path.stem:>16}" for path in chosen.results))
    low = []
    for package in [*sorted({mutant.package for mutant in mutants}), "all"]:
        some = [mutant for mutant in mutants if package in (mutant.package, "all")]
        pairs = [count[package] for count in counts]
        cells = [f"{caught:4}/{judged:<4} {caught / max(judged, 1):6.1%}" for caught, judged in pairs]
        print(f"{package:12} {len(some):7}  {sum(m.name in excused for m in some):10}  " + "  ".join(cells))
        caught, judged = counts[-1][package]
        if package in LAWFUL and caught < LEAST * judged:
            low.append(package)
    for mutant in mutants:
        if columns[-1].get(mutant.name, {}).get("outcome") == "missed" and mutant.name not in excused:
            print(f"missed: {mutant.path}:{mutant.line} {mutant.function}: {mutant.old!r} -> {mutant.new!r}")
    if low:
        print(f"below {LEAST:.0%}: {', '.join(low)}")
    return 1 if low else 0


def shares_of(
    mutants: Iterable[Mutant], results: Mapping[str, Mapping[str, Any]], excused: Mapping[str, str]
) -> dict[str, tuple[int, int]]:
    """(caught, judged) of each package, and of `all`."""
    caught: defaultdict[str, int] = defaultdict(int)
    judged: defaultdict[str, int] = defaultdict(int)
    for mutant in mutants:
        outcome = results.get(mutant.name, {}).get("outcome")
        if outcome in (None, "gone") or (mutant.name in excused and outcome == "missed"):
            continue
        for key in (mutant.package, "all"):
            judged[key] += 1
            caught[key] += outcome == "caught"
    return {package: (caught[package], judged[package]) for package in [*{m.package for m in mutants}, "all"]}


if __name__ == "__main__":
    sys.exit(main())
