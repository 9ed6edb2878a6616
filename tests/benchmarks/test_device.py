"""The parts of `benchmarks/device.sh` run every line on a CPU too, on tiny shapes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("torch")
CUT_OFF = """
import sys, time
from device_record import figure, known
for name in ("first", "second"):
    if name not in known():
        figure(name, name + " is measured", value=len(known()))
        if name == "first":
            time.sleep(600)
"""


def _part(*arguments: str, script: str = "device.py") -> str:
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT, ROOT / "benchmarks")))
    command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def test_every_kernel_is_timed() -> None:
    lines = _part("kernels").splitlines()
    assert len(lines) == 7
    assert all("TFLOP/s" in line for line in lines)


def test_every_piece_stands_beside_other_ways_to_compute_it() -> None:
    """Each is correct; liger-kernel may be missing, and Triton needs a GPU."""
    lines = _part(script="device_pieces.py").splitlines()
    timed = dict(line.split(": ", 1) for line in lines if not line.startswith("unmeasured: "))
    assert len(timed) == 11
    for name, times in timed.items():
        assert " us" in times
        assert ("torch.compile" in times) == (name != "grouped matmul")
    assert "F.rms_norm" in timed["RMSNorm"]
    assert "_grouped_mm" in timed["grouped matmul"]
    assert "foreach" in timed["AdamW"]
    missing = [line for line in lines if line.startswith("unmeasured: ")]
    assert all(re.search("by (liger-kernel|Triton): ImportError", line) for line in missing), missing


def test_steps_stand_beside_their_prediction_and_plain_torch(tmp_path: Path) -> None:
    """Only what needs a device or a C++ compiler may be missing."""
    device = tmp_path / "device.toml"
    device.write_text((ROOT / "src/fourfold/hardware/devices/h100-sxm.toml").read_text())
    out = _part("steps", "250", str(device))
    ours = [line for line in out.splitlines() if re.match(r"tiny(, cut with \d+ of 64 blocks)?: ", line)]
    assert len(ours) == 2
    assert all(", predicted " in line and "not predicted" not in line for line in ours)
    assert out.count("plain torch, eager: ") == 2
    missing = [line for line in out.splitlines() if line.startswith("unmeasured: ")]
    assert all("1B" in line or "8 bytes" in line or "plain_compiled" in line for line in missing), missing


def _parts(out: Path, *commands: tuple[str, int, str], identity: str = "one") -> dict[str, Any]:
    """Runs parts (name, seconds, script) as the driver does; its record."""
    code = f"""
import json, sys
from pathlib import Path
from device_all import Part, Record, run
out = Path({str(out)!r})
record = Record(out, {{"tree": {identity!r}}})
for name, seconds, script in {list(commands)!r}:
    if not record.passed(name):
        run(Part(name, name, seconds, (script,)), seconds, record)
"""
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT, ROOT / "benchmarks")))
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    found: dict[str, Any] = json.loads((out / "device.json").read_text())
    parts: dict[str, Any] = found["parts"]
    return parts


def test_a_part_that_was_cut_off_goes_on_where_it_stopped(tmp_path: Path) -> None:
    script, fails = tmp_path / "part.py", tmp_path / "fails.py"
    script.write_text(CUT_OFF)
    fails.write_text("raise SystemExit(3)")
    parts = _parts(tmp_path, ("part", 3, str(script)), ("fails", 30, str(fails)))
    assert [each["status"] for each in parts.values()] == ["cut", "failed"]
    assert parts["part"]["figures"] == [{"name": "first", "text": "first is measured", "value": 0}]
    parts = _parts(tmp_path, ("part", 30, str(script)))
    assert parts["part"]["status"] == "passed"
    assert [each["value"] for each in parts["part"]["figures"]] == [0, 1]  # the first was not measured again
    parts = _parts(tmp_path, ("fails", 30, str(fails)), identity="another")
    assert list(parts) == ["fails"]  # figures of another tree or machine do not stand beside these


def test_every_part_is_a_command_that_exists(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""}
    script = ["bash", str(ROOT / "benchmarks/device.sh"), "--out", str(tmp_path)]
    listed = subprocess.run([*script, "--list"], env=environment, capture_output=True, text=True, timeout=60)
    assert listed.returncode == 0, listed.stderr
    assert len(listed.stdout.splitlines()) == 12
    run = subprocess.run(
        [*script, "--only", "machine", "graphs", "memory"], env=environment, capture_output=True, text=True, timeout=200
    )
    assert run.returncode == 0, run.stdout + run.stderr
    record = json.loads((tmp_path / "device.json").read_text())
    assert {name: each["status"] for name, each in record["parts"].items()} == dict.fromkeys(
        ("machine", "graphs", "memory"), "passed"
    )
    assert (
        "no such part"
        in subprocess.run([*script, "--only", "x"], env=environment, capture_output=True, text=True).stderr
    )
