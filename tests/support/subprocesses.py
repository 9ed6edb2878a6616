"""Commands in the folder above `tests`, with no word of the process that runs a test."""

import os
import subprocess
from pathlib import Path


def run_without_pytest(command: list[str], extra: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The command's end with its output; raises AssertionError where it fails. `extra`: variables of the environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "TRITON_"))}
    folder = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**kept, **extra}, cwd=folder)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done
