"""A script that is run as a person would, with the trainer's launcher replaced: what it was started with."""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

LAUNCHER = '#!/bin/sh\nprintf "%s\\0" "$@" > arguments\nenv -0 > environment\n'
INPUTS = {"DATA": "/data/tokens", "TOKENIZER": "/data/tokenizer", "STEPS": "5000"}
NODE = {"NODE_RANK": "0", "MASTER_ADDR": "node0", "HOSTFILE": "hosts"}


class Launched(NamedTuple):
    """`arguments`: of the launcher. `environment`: its own. `folder`: where the script wrote its files."""

    arguments: list[str]
    environment: dict[str, str]
    folder: Path

    def after(self, program: str) -> list[str]:
        """The arguments of the program that is launched."""
        return self.arguments[self.arguments.index(program) + 1 :]


def launched(text: str, folder: Path, **more: str) -> Launched:
    """Runs the script in an empty folder, with its variables filled in. Raises where bash does."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    for name in ("torchrun", "deepspeed"):
        (programs / name).write_text(LAUNCHER)
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", **INPUTS, **NODE, **more}
    subprocess.run(["bash", "-c", text], cwd=folder, env=environment, check=True, capture_output=True, text=True)
    arguments = (folder / "arguments").read_bytes().decode().split("\0")[:-1]
    pairs = (line.partition("=") for line in (folder / "environment").read_bytes().decode().split("\0") if line)
    return Launched(arguments, {name: value for name, _, value in pairs}, folder)
