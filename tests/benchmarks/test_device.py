"""`benchmarks/device.py` runs every line on a CPU too, on tiny shapes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("torch")


def _part(*arguments: str) -> str:
    path = os.pathsep.join(map(str, (ROOT / "src", ROOT, ROOT / "benchmarks")))
    command = [sys.executable, str(ROOT / "benchmarks/device.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def test_every_kernel_is_timed() -> None:
    lines = _part("kernels").splitlines()
    assert len(lines) == 7
    assert all("TFLOP/s" in line for line in lines)


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
