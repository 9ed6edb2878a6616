"""Exhausted disks and files reach the terminal by name, and a terminal that goes away does not change how a run ends."""

import fcntl
import json
import os
import pty
import resource
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("files", [8, 11, 13])
def test_too_few_open_files_are_named(here: Path, files: int) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    command = [*COMMAND, "--ranks", "2", "--out", "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limit)
    assert done.returncode == 1, done
    assert "Too many open files" in done.stderr
    assert f"may open {files} files and sockets here; what works: ulimit -n" in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


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
    deadline = time.monotonic() + 60
    metrics = here / "run" / "metrics.jsonl"
    os.set_blocking(ours, False)
    while time.monotonic() < deadline and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        time.sleep(0.05)
        try:
            os.read(ours, 1 << 16)
        except OSError:
            continue
    os.close(ours)
    assert process.wait(60) == 129
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
