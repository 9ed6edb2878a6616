"""A run's folder may hold anything: each command answers or says what is wrong, in bounded time, whatever stands where."""

import json
import os
import random
import shutil
import signal
import unicodedata
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
from fourfold.api.run_feed import RunFeed
from fourfold.config import UserError
from fourfold.explore.run import run_comparison
from tests.support.left_run import leave_run
from tests.support.spoiled import Spoiled, spoiled_folders

COMMANDS = [
    ["doctor", "run"],
    ["doctor", "run", "--json"],
    ["report", "run"],
    ["report", "run", "--json"],
    ["compare", "run", "run"],
    ["compare", "run", "run", "--json"],
    ["show", "run"],
    ["show", "run", "--progress"],
    ["simulate", "run", "--cluster", "dgx-h100:2"],
    ["validate", "run", "--cluster", "dgx-h100:2", "--json"],
    ["checkpoint", "list", "run"],
    ["checkpoint", "list", "run", "--json"],
    ["checkpoint", "verify", "run"],
    ["checkpoint", "reshard", "run", "layout.zero=0", "--out", "resharded"],
    ["sample", "run", "--tokens", "2"],
    ["export", "run", "--out", "exported"],
    ["explore"],
]
EVERY = {each[0] for each in COMMANDS}
PLACES = 20
"""Places that `make test-rest` changes for each command, of some hundreds."""
READERS: dict[str, tuple[int, Collection[str]]] = {
    "events.jsonl": (24, ("doctor", "report", "explore")),
    "metrics.jsonl": (16, ("report", "compare", "validate", "explore")),
    "measured": (12, ("report", "compare", "explore")),
    "progress.bin": (8, ("doctor", "show", "explore")),
    "data.json": (3, ("sample", "export")),
    "checkpoints": (12, ("checkpoint", "sample", "export")),
    "run.toml": (16, EVERY),
}
"""How many changes of a file are tried in one test, and the commands that read it."""
GUARD_SECONDS = 120
"""After which a command counts as one that never ends; no law, so that a loaded machine breaks none."""


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return leave_run(tmp_path_factory.mktemp("left"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """`doctor` looks at a dead run twice without a pause."""
    monkeypatch.setattr("fourfold.supervise.doctor._LOOK_SECONDS", 0.0)


@contextmanager
def guarded() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(GUARD_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pages(run: Path) -> None:
    """The documents of `fourfold explore`, before and after it has compiled the run. Raises `UserError`."""
    feed = RunFeed(run)
    for _ in range(2):
        feed.refresh()
        documents: list[Any] = [feed.document(), feed.metrics.table()]
        json.dumps(documents, allow_nan=False)
        feed.prepare()
    json.dumps(run_comparison(run), allow_nan=False)


def problem(command: list[str], fourfold: Callable) -> str:
    """A fault of a command's answer, in words; empty: none."""
    try:
        with guarded():
            if command == ["explore"]:
                pages(Path("run"))
                return ""
            result = fourfold(*command)
    except UserError:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.200}"
    printed = result.out + result.err
    if result.code not in (0, 1, 2) or "Traceback" in printed:
        return f"exit {result.code}: {printed[-200:]}"
    if any(unicodedata.category(c) == "Cc" and c not in "\n\t" for c in printed):
        return f"control characters: {printed[:200]!r}"
    if "--json" in command and result.code == 0:
        json.loads(result.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return ""


def tried(change: Spoiled, command: list[str], left: Path, fourfold: Callable) -> str:
    for place in ("run", "resharded", "exported"):
        shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(left, "run")
    change.spoil(Path("run"))
    found = problem(command, fourfold)
    return found and f"{' '.join(command)}, {change.name}: {found}"


@pytest.mark.usefixtures("quick")
def test_a_command_answers_or_says_what_is_wrong(left: Path, fourfold: Callable) -> None:
    draw, changes = random.Random(0), spoiled_folders(left, seed=0)
    found = []
    for file, (number, readers) in READERS.items():
        of_file = [change for change in changes if change.name.startswith(file)]
        for change in draw.sample(of_file, number):
            found.append(tried(change, draw.choice([each for each in COMMANDS if each[0] in readers]), left, fourfold))
    assert not list(filter(None, found))


@pytest.mark.rest
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_so_does_each_command(command: list[str], left: Path, fourfold: Callable) -> None:
    changes = random.Random(" ".join(command)).sample(spoiled_folders(left, seed=1, each=1), PLACES)
    found = [tried(change, command, left, fourfold) for change in changes]
    assert not list(filter(None, found))


@pytest.mark.sweep
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_so_does_each_command_for_each_place(command: list[str], left: Path, fourfold: Callable) -> None:
    found = [tried(change, command, left, fourfold) for change in spoiled_folders(left, seed=1, each=1)]
    assert not list(filter(None, found))


def test_a_folder_untouched_is_answered(left: Path, fourfold: Callable) -> None:
    """Else the laws above would hold for a command that refuses everything."""
    shutil.copytree(left, "run")
    codes = {" ".join(each): fourfold(*each).code for each in COMMANDS if each != ["explore"]}
    assert codes == dict.fromkeys(codes, 0)
    pages(Path("run"))


def repeated(run: Path) -> None:
    raw = (run / "progress.bin").read_bytes()
    (run / "progress.bin").write_bytes(raw * (60_000_000 // len(raw)))


def deep(run: Path) -> None:
    text = (run / "run.toml").read_text()
    (run / "run.toml").write_text(text.replace("num_layers = 2", "num_layers = 100000"))


def waits(run: Path) -> None:
    """A pipe that nobody writes to, in place of the events."""
    (run / "events.jsonl").unlink()
    os.mkfifo(run / "events.jsonl")


def leads_away(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/dev/zero")


LARGE = {
    "60 MB of positions": repeated,
    "100,000 layers": deep,
    "a pipe": waits,
    "a device": leads_away,
    "a million ranks": lambda run: sized(run, "dp_shard = 2", "dp_shard = 1000000", 12_000_000),
    "a million microbatches": lambda run: sized(run, "dp_shard = 2", "dp_shard = 2", 2_000_000),
    "a line of 100 MB": lambda run: (run / "events.jsonl").write_bytes(b'{"event": "' + b"a" * 100_000_000 + b'"}\n'),
    "a run file of 3 MB": lambda run: (run / "run.toml").write_text("# " + "a" * 3_000_000),
}


def sized(run: Path, old: str, new: str, sequences: int) -> None:
    text = (run / "run.toml").read_text()
    assert old in text
    (run / "run.toml").write_text(
        text.replace(old, new).replace("global_sequences = 12", f"global_sequences = {sequences}")
    )


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", LARGE)
def test_what_is_large_ends_too(name: str, left: Path, fourfold: Callable) -> None:
    change = Spoiled(name, LARGE[name])
    reads = [["doctor", "run"], ["report", "run"], ["compare", "run", "run"], ["explore"]]
    assert not list(filter(None, (tried(change, command, left, fourfold) for command in reads)))
