"""The parts of `benchmarks/device.sh` run every line on a CPU too, on tiny shapes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("torch")


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
