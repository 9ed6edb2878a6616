"""The commands with real ranks: train, interrupt, sample, export, import, go on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fourfold.report.page_file import is_built
from tests.support.waiting import until

pytest.importorskip("torch")
FOURFOLD = (sys.executable, "-m", "fourfold")


def read_lines(path: Path) -> list[dict]:
    """Whole lines alone: the last may be being written."""
    complete = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in complete.splitlines()]


def test_from_a_run_file_to_a_model_that_transformers_reads(here: Path, fourfold) -> None:
    def printed(*arguments: str) -> str:
        done = fourfold(*arguments)
        assert done.code == 0, done.err
        return done.out

    command = [*FOURFOLD, "train", "run.toml", "layout.zero=2", "run.sample_tokens=8", "run.track_memory=true"]
    done = subprocess.run([*command, "--ranks", "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    output = done.stdout
    assert "validation loss" in output
    assert "unigram loss" in output
    assert "A sample that the model wrote:" in output
    assert len(read_lines(here / "runs/run/metrics.jsonl")) == 3
    if is_built():
        assert '"loss"' in (here / "runs/run/report.html").read_text()
    report = json.loads(printed("report", "runs/run", "--cluster", "dgx-h100:8", "--json"))
    assert [rank["sent_bytes_equal"] for rank in report["ranks"]] == [True, True]
    for rank in report["ranks"]:
        assert rank["measured_peak_bytes"] == pytest.approx(rank["predicted_peak_bytes"], rel=0.05)
        assert sum(kind["measured_seconds"] for kind in rank["kinds"]) == pytest.approx(
            rank["measured_step_seconds"], rel=0.5
        )
    assert len(printed("sample", "runs/run", "--prompt", "The ", "--tokens", "5")) > 4
    printed("export", "runs/run", "--out", "hf")
    printed("import", "hf", "--out", "more.toml", "--corpus", "texts")
    assert "2 blocks, hidden 32" in printed("show", "more.toml")
    places = printed("show", "runs/run", "--progress").splitlines()
    assert [line.partition(":")[0] for line in places] == ["rank 0", "rank 1"]


def test_the_commands_that_a_run_ends_with_work_as_printed(here: Path) -> None:
    """In the shell that gave the command, with no `fourfold` on its PATH: as after `make train` in a clone."""
    folder = here / ".venv/bin"
    folder.mkdir(parents=True)
    (folder / "fourfold").write_text(
        f"#!{sys.executable}\nimport sys\nfrom fourfold.cli import main\nsys.exit(main())\n"
    )
    (folder / "fourfold").chmod(0o755)
    environment = {**os.environ, "PATH": os.defpath}

    def shell(line: str) -> str:
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    printed = shell(".venv/bin/fourfold train run.toml run.sample_tokens=4 --ranks 2").splitlines()
    end = printed[printed.index("Try next:") :]
    commands = [line.strip() for line in end if line.startswith("  ") and not line.startswith("      ")]
    assert len(commands) == 3
    assert all(command.startswith(".venv/bin/fourfold ") for command in commands)
    for command in commands:
        assert shell(command)
    named = {line.split()[0]: line.split()[-1] for line in end if line.startswith("run folder")}
    assert (here / named["run"] / "metrics.jsonl").is_file()
    assert end[-1].startswith("report  ")
    assert "<html" in (here / end[-1].split()[1]).read_text()[:200]


def test_ctrl_c_saves_and_the_same_command_goes_on(here: Path) -> None:
    command = [*FOURFOLD, "train", "run.toml", "batch.steps=1000000", "--ranks", "2"]
    metrics = here / "runs/run/metrics.jsonl"

    def interrupt_past(steps: int) -> tuple[int, str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            until(lambda: len(read_lines(metrics)) >= steps, process)
            os.kill(process.pid, signal.SIGINT)
            output, _ = process.communicate()
        finally:
            process.kill()
        return process.returncode, output

    code, output = interrupt_past(5)
    assert code == 130, output
    saved = len(read_lines(metrics))
    assert f"the same command goes on from step {saved}" in output
    code, output = interrupt_past(saved + 5)
    assert code == 130, output
    assert f"resumed at step {saved}" in output
    assert [row["step"] for row in read_lines(metrics)] == list(range(len(read_lines(metrics))))
