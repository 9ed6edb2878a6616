"""`fourfold calibrate`: a small budget gives a file that simulates; nothing half-written; mistakes name what works."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fourfold.api.calibration import say_if_busy
from fourfold.cli.app import run
from fourfold.config.whole_file import write_whole
from fourfold.cost.calibration import constants_of
from fourfold.hardware import load_cluster
from fourfold.launch.machine import busy_cores

RUN = """
[model]
num_layers = 2
hidden_size = 32
num_heads = 4
ffn_size = 64
vocab_size = 4096
[batch]
global_sequences = 4
sequence_length = 16
steps = 2
[layout]
pp = 2
microbatch_sequences = 1
[cluster]
preset = "CLUSTER"
"""


@pytest.mark.rest
def test_a_small_budget_writes_a_file_that_a_run_is_simulated_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "here.toml"
    assert run(["calibrate", "--seconds", "2", "--ranks", "1,2", "--out", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    cluster = load_cluster(str(out))
    assert document["devices"] == cluster.devices == 2
    constants = constants_of(cluster)
    assert constants is not None
    assert sorted(constants.profiles) == [1, 2]
    assert all(contention_profile.memory_bytes_per_second > 1e6 for contention_profile in constants.profiles.values())
    file = tmp_path / "run.toml"
    file.write_text(RUN.replace("CLUSTER", str(out)))
    assert run(["simulate", str(file), "--json"]) == 0
    by_preset = json.loads(capsys.readouterr().out)
    assert run(["simulate", str(file), "--cluster", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == by_preset
    assert list(tmp_path.glob("here*")) == [out]


def test_what_stood_there_stays_where_the_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "here.toml"
    out.write_text("before")

    def refuse(source: Path, target: Path) -> None:
        raise OSError("full")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="full"):
        write_whole(out, "after")
    assert out.read_text() == "before"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--ranks", "0"], "--ranks 0"),
        (["--ranks", "1,x"], "--ranks 1,x"),
        (["--ranks", "3"], "3 ranks cannot send in pairs"),
        (["--ranks", ""], "--ranks"),
        (["--seconds", "soon"], "--seconds"),
        (["--seconds", "0"], "--seconds 0"),
        (["--dtype", "int8"], "--dtype int8"),
        (["--out", "/nowhere/at/all.toml"], "/nowhere/at"),
        (["--out", "machine.json"], "machine.json"),
    ],
)
def test_mistakes_say_what_works(options: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["calibrate", *options]) == 2
    text = capsys.readouterr().err
    assert named in text
    assert "works" in text or "allowed" in text


def test_this_machine_unmeasured_says_to_calibrate(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "preset:llama3-70b", "--cluster", "this"]) == 2
    assert "fourfold calibrate" in capsys.readouterr().err


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.rest
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the process table of Linux")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_ranks_that_measure(tmp_path: Path, number: int) -> None:
    command = [sys.executable, "-m", "fourfold", "calibrate", "--ranks", "1,2", "--seconds", "120"]
    process = subprocess.Popen([*command, "--out", str(tmp_path / "here.toml")], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "at once" in process.stdout.readline()
        children = _children(process.pid)
        assert len(children) >= 3
        process.send_signal(number)
        assert process.wait(timeout=30) == (143 if number == signal.SIGTERM else -number)
        until = time.monotonic() + 30
        while any(map(_running, children)) and time.monotonic() < until:
            time.sleep(0.1)
        assert not [child for child in children if _running(child)]
        assert not list(tmp_path.iterdir())
    finally:
        process.kill()
        process.wait()


def test_what_others_keep_busy_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores computed in 60 of 100 ticks."""
    stat, lines = tmp_path / "stat", iter(["cpu 60 0 0 40 0 0 0 0 0 0"])
    stat.write_text("cpu 0 0 0 0 0 0 0 0 0 0\n")
    monkeypatch.setattr("fourfold.launch.machine.time.sleep", lambda _: stat.write_text(next(lines)))
    monkeypatch.setattr("fourfold.launch.machine.os.cpu_count", lambda: 2)
    assert busy_cores(stat=stat) == pytest.approx(1.2)
    assert busy_cores(stat=tmp_path / "none") is None


@pytest.mark.parametrize(("busy", "told"), [(None, False), (0.1, False), (1.3, True)])
def test_a_loaded_machine_is_told_of_first(busy, told, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr("fourfold.api.calibration.busy_cores", lambda: busy)
    say_if_busy()
    assert ("note: other processes keep 1.3 of" in capsys.readouterr().err) == told
