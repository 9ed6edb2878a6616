"""A run's folder as a small real run on two ranks leaves it: what commands read that look at a run of somebody else's."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.supervised import write_run

LOOKS: dict[str, list[str]] = {
    "doctor": ["doctor", "run"],
    "report": ["report", "run"],
    "compare": ["compare", "run", "run"],
    "show": ["show", "run"],
    "simulate": ["simulate", "run", "--cluster", "dgx-h100:2"],
    "plan": ["plan", "run/run.toml", "--cluster", "dgx-h100:2"],
    "job": ["job", "run/run.toml", "--as", "slurm", "--nodes", "1", "--devices-per-node", "2"],
    "validate": ["validate", "run", "--cluster", "dgx-h100:2"],
    "fit": ["fit", "run", "--cluster", "dgx-h100:2"],
    "export": ["export", "run", "--out", "exported"],
}
"""Command lines that look at the run of a folder `run`, and compile it."""


def leave_run(folder: Path, *changes: str) -> Path:
    """Trains ten steps of a run below `folder`, and returns the folder that it leaves."""
    run_file, out = write_run(folder, steps=10), folder / "run"
    command = [sys.executable, "-m", "fourfold", "train", str(run_file), *changes, "--ranks", "2", "--out", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out
