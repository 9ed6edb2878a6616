"""`benchmarks/fused.py` counts what the recorder counts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytest.importorskip("torch")


def test_the_counts_of_pieces() -> None:
    """An 8B Llama's norm moves 28 bytes for each of 4,096 x 4,096 numbers, 4 in one kernel; the update is one kernel already."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "benchmarks")))}
    command = [sys.executable, str(ROOT / "benchmarks/fused.py"), "count"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr[-2000:]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in result.stdout.splitlines()]
    table = {row[0]: row[1:] for row in rows if len(row) == 7}
    assert len(table) == 9
    norm = table["RMSNorm"]
    assert norm[1] == "65"
    assert float(norm[2]) == pytest.approx(28 * 4096**2 / 1e6, rel=1e-3)
    assert float(norm[3]) == pytest.approx(4 * 4096**2 / 1e6, rel=1e-3)
    assert table["RoPE"][0] == "4"
    assert table["AdamW of an eighth"][2] == table["AdamW of an eighth"][3]
    assert all(float(row[3]) <= float(row[2]) for row in list(table.values())[1:])
