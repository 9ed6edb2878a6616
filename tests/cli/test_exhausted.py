"""Exhausted disks and files reach the terminal by name, and a terminal that goes away does not change how a run ends."""

import fcntl
import json
import os
import pty
import resource
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.waiting import until

COMMAND = [sys.executable, "-m", "fourfold", "train", "run.toml", "run.sample_tokens=0"]


@pytest.fixture
def small_disk(here: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    (disk := here / "disk").mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a tmpfs is not allowed here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.rest
def test_a_full_disk_is_named_although_no_log_can_be_written(small_disk: Path) -> None:
    """All is taken but what the run's folder needs to be made."""
    (small_disk / "others").write_bytes(bytes(256 * 1024 - 24 * 1024))
    done = subprocess.run([*COMMAND, "--out", "disk/run"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def limited(files: int, *command: str) -> subprocess.CompletedProcess[str]:
    """A command whose processes may open so many files and sockets each: without coverage, which would open some of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "COVERAGE_PROCESS_START"}

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    return subprocess.run([*command], capture_output=True, text=True, check=False, env=environment, preexec_fn=limit)


def names_the_limit(done: subprocess.CompletedProcess[str], files: int) -> None:
    """One line, whatever ran out, and wherever: no process is ended by what it could not open."""
    assert done.returncode == 1, done
    assert "Too many open files" in done.stderr
    assert f"may open {files} files and sockets here; what works: ulimit -n" in done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def trained(files: int, ranks: int) -> subprocess.CompletedProcess[str]:
    return limited(files, *COMMAND, "--ranks", str(ranks), "--out", "run")


FEWEST = 5
"""With fewer the interpreter itself does not start."""


@pytest.mark.parametrize("files", [FEWEST, 8, 11, 13, 20])
def test_too_few_open_files_are_named(here: Path, files: int) -> None:
    names_the_limit(trained(files, 2), files)
    assert not (here / "run").exists()


def test_a_page_for_which_too_few_files_may_be_opened_is_not_begun(here: Path) -> None:
    names_the_limit(limited(40, sys.executable, "-m", "fourfold", "explore", "--no-browser", "--port", "0"), 40)


@pytest.mark.faults
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("files", [*range(FEWEST, 48), 56, 64, 80])
def test_a_run_is_refused_by_the_limit_or_trains(here: Path, files: int, ranks: int) -> None:
    """Under no limit does it begin and end midway."""
    done = trained(files, ranks)
    if done.returncode:
        names_the_limit(done, files)
    else:
        assert (here / "run" / "checkpoints" / "step-000003" / "manifest.json").is_file()
    assert done.returncode == 0 or files < 48


@pytest.mark.faults
def test_the_limit_that_is_named_works(here: Path) -> None:
    works = trained(20, 4).stderr.partition("ulimit -n ")[2].split()[0].rstrip(",;")
    assert trained(int(works), 4).returncode == 0


@pytest.mark.rest
def test_a_terminal_that_is_closed_ends_the_run_with_129_and_a_checkpoint(here: Path) -> None:
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [*COMMAND, "batch.steps=100000", "--out", "run"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    metrics = here / "run" / "metrics.jsonl"
    os.set_blocking(ours, False)

    def has_trained() -> bool:
        with suppress(OSError):  # nothing is there to read
            os.read(ours, 1 << 16)
        return metrics.exists() and metrics.read_text().count("\n") > 2

    until(has_trained, process)
    os.close(ours)
    assert process.wait() == 129
    events = [json.loads(line) for line in (here / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events][-2:] == ["save", "stop"]


def shell(here: Path, line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A command line of the shell in which `fourfold` is the command."""
    script = f'fourfold() {{ "{sys.executable}" -m fourfold "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", script], capture_output=True, check=False, env={**os.environ, **environment})


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("line", "code", "word"),
    [
        ("fourfold show run.toml >&- 2>&-", 0, b""),
        ("fourfold show nothing.toml >&- 2>&-", 2, b""),
        ("fourfold show run.toml >/dev/full", 1, b"No space left on device"),
        ("fourfold show 'r\303\266.toml'", 2, b"no such run file"),
        ("fourfold show $'r\\xff.toml'", 2, b"is no UTF-8; what works"),
    ],
)
def test_streams_and_names_that_are_odd(here: Path, line: str, code: int, word: bytes) -> None:
    done = shell(here, line)
    assert done.returncode == code, done
    assert word in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_locale_without_our_characters(here: Path) -> None:
    done = shell(here, "fourfold show run.toml layout.pp=2 --ranks 2 --timeline", **ASCII)
    assert done.returncode == 0, done.stderr
    assert b"?" in done.stdout


@pytest.mark.rest
def test_the_folder_may_be_a_link(here: Path) -> None:
    (here / "disk").mkdir()
    (here / "run").symlink_to(here / "disk")
    for steps in (2, 3):
        done = shell(here, f"fourfold train run.toml run.sample_tokens=0 batch.steps={steps} --out run")
        assert done.returncode == 0, done.stderr
    assert (here / "run").is_symlink()
    assert (here / "disk" / "checkpoints" / "step-000003" / "manifest.json").is_file()
