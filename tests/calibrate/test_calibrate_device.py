"""`fourfold calibrate --device`: a small budget gives a device's file that simulates and plans; mistakes name what works."""

import json
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fourfold.cli.app import run
from fourfold.hardware import load_cluster
from fourfold.hardware.new_cluster import new_cluster

RUN = """
[model]
num_layers = 2
hidden_size = 64
num_heads = 4
ffn_size = 128
vocab_size = 4096
[batch]
global_sequences = 4
sequence_length = 64
steps = 2
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    out = tmp_path_factory.mktemp("device") / "core.toml"
    command = [sys.executable, "-m", "fourfold", "calibrate", "--device", "cpu", "--ranks", "2", "--seconds", "2"]
    done = subprocess.run([*command, "--out", str(out), "--json"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "peaks, some" in done.stderr
    return out, json.loads(done.stdout)


def test_a_small_budget_writes_a_file_that_a_run_is_simulated_on(
    measured: tuple[Path, dict[str, object]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, document = measured
    device = load_cluster(str(out)).device
    assert document["kernels"] == device.kernels
    assert device.host_launch_seconds == 0
    assert {"fp32", "fp64"} <= set(device.peak_flops_per_second)
    assert {each["family"] for each in document["residuals"]} >= {"matmuls", "attention", "operators"}  # type: ignore[attr-defined]
    assert all(0 < each["mfu"] <= 1 for each in document["checks"])  # type: ignore[attr-defined]
    file = tmp_path / "run.toml"
    file.write_text(RUN)
    assert run(["simulate", str(file), "--cluster", str(out), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    pair = tmp_path / "pair.toml"
    pair.write_text(new_cluster(1, f"{out}:2", None, "3GB/s").text)
    assert run(["simulate", str(file), "layout.dp_shard=2", "--cluster", str(pair), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_seconds"] < alone["step_seconds"]
    assert run(["plan", str(file), "--cluster", str(pair)]) == 0


def test_every_figure_of_the_file_is_explained(measured: tuple[Path, dict[str, object]]) -> None:
    out, _ = measured
    lines = out.read_text().splitlines()
    figures = [index for index, line in enumerate(lines) if re.match(r"(?!name|source)[a-z_]+ = ", line)]
    tables = [index for index, line in enumerate(lines) if line.startswith("[")]
    named = set(tomllib.loads(out.read_text())["peak_flops_per_second"])
    assert len(figures) > 12
    for index in [*figures, *tables]:
        word = lines[index].split(" ")[0]
        assert lines[index - 1].startswith("# ") or word in named or word == "[kernels]", lines[index]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--device", "gpu"], "--device gpu: allowed: cuda, cpu; a value that works: --device cpu"),
        (["--device", "cpu", "--ranks", "1,2"], "--ranks 1,2 with --device cpu"),
        (["--device", "cuda", "--ranks", "2"], "leave it out: a GPU is one rank's"),
        (["--device", "cpu", "--seconds", "0"], "--seconds 0"),
        (["--device", "cpu", "--dtype", "fp8"], "--dtype fp8"),
        (["--device", "cpu", "--out", "machine.json"], "machine.json"),
    ],
)
def test_mistakes_say_what_works(
    options: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["calibrate", *options]) == 2
    assert named in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_machine_without_cuda_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert run(["calibrate", "--device", "cuda"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "finds no CUDA device here; a value that works: --device cpu" in lines[0]


@pytest.mark.parametrize("device", [["--device", "cpu"], []])
def test_a_file_that_is_there_stays(device: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "here.toml"
    out.write_text("before")
    assert run(["calibrate", *device, "--out", str(out)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert out.read_text() == "before"


@pytest.mark.rest
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_nothing_is_written(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "fourfold", "calibrate", "--device", "cpu", "--seconds", "120"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "here.toml")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "some" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(timeout=30) == 128 + number
        assert "Traceback" not in process.stderr.read()
        assert not list(tmp_path.iterdir())
    finally:
        process.kill()
        process.wait()
