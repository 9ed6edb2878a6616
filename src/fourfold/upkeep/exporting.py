"""Hugging Face folders of a run's checkpoints, in `exports/` of its folder: what `fourfold export` writes, which writes them."""

import os
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fourfold.checkpoint.folders import Retention, remove_tree
from fourfold.checkpoint.waiting import is_exported
from fourfold.config import RunConfig, RunFailure
from fourfold.config.whole_file import write_whole
from fourfold.launch.run_folder import RunFolder
from fourfold.upkeep.work import LAST_TRIES, CheckpointWork, Log

EXPORTS = "exports"
_SOURCE = ".save"
"""The file in an export that names the save that it was made of."""


class Exporting(CheckpointWork):
    """Oldest first: each is asked for."""

    name = "export"

    def __init__(
        self, folder: RunFolder, config: RunConfig, ends: Collection[int], closing: threading.Event, log: Log
    ) -> None:
        super().__init__(folder, config, ends, closing, log)
        self._given_up: dict[int, str] = {}
        always = frozenset(ends) if self.section.export_stage_ends else frozenset[int]()
        self._retention = Retention(self.section.export_keep, steps=always)

    def due(self, saved: dict[int, Path]) -> int | None:
        steps = [step for step in saved if is_exported(self.section, self.ends, step)]
        done = {step: found for step in steps if (found := self._made_of(step))} | self._given_up
        late = self._retention.to_delete(steps)
        done |= {step: self.attempt(saved[step]) or "" for step in late}
        self.log.record(exported=done)
        return min((step for step in steps if done.get(step) != self.attempt(saved[step])), default=None)

    def do(self, step: int, path: Path) -> dict[str, Any]:
        name, out, dtype = self.attempt(path), self._place(step), self.section.export_dtype
        if out.exists():  # of a step that the run went back from
            remove_tree(out)
        command = [
            sys.executable,
            "-m",
            "fourfold",
            "export",
            str(self.folder.path),
            "--step",
            str(step),
            "--out",
            str(out),
        ]
        hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        ran = subprocess.run(
            [*command, "--dtype", dtype, "--trust"], env={**os.environ, **hidden}, capture_output=True, text=True
        )
        if ran.returncode:
            if self.tries + 1 >= LAST_TRIES:
                self._given_up[step] = name or ""
            raise RunFailure(ran.stderr.strip().removeprefix("error: ")[-500:] or f"exit code {ran.returncode}")
        write_whole(out / _SOURCE, f"{name}\n")
        newest = max(self.folder.checkpoints_on_disk(self.config), default=step)
        later = [each for each in self._exported() if each > newest]  # the run went back from them
        for old in [*later, *self._retention.to_delete([each for each in self._exported() if each <= newest])]:
            remove_tree(self._place(old))
        return {"to": f"{EXPORTS}/{out.name}", "dtype": dtype}

    def _place(self, step: int) -> Path:
        return self.folder.path / EXPORTS / f"step-{step:06d}"

    def _made_of(self, step: int) -> str | None:
        try:
            return (self._place(step) / _SOURCE).read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    def _exported(self) -> list[int]:
        names = (path.name.removeprefix("step-") for path in (self.folder.path / EXPORTS).glob("step-*"))
        return sorted(int(name) for name in names if name.isdecimal())
