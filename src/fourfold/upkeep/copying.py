"""Copies of a run's checkpoints and of the files of its folder, at `checkpoint.copy_to`."""

import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from fourfold.checkpoint import KEPT, read_manifest
from fourfold.checkpoint.copies import RUN, copy_checkpoint, copy_text_files, write_text
from fourfold.checkpoint.folders import MANIFEST, checkpoints, remove_checkpoint, step_folder, step_of
from fourfold.checkpoint.tensor_file import DamagedCheckpoint
from fourfold.checkpoint.waiting import best_step, retention_for
from fourfold.config import RunConfig
from fourfold.config.remote_path import place
from fourfold.data import skipped
from fourfold.launch.copied import RUN_FILES
from fourfold.launch.run_folder import RunFolder
from fourfold.rendezvous.ownership import still_own
from fourfold.upkeep.work import CheckpointWork, Log


class Copying(CheckpointWork):
    """Newest first, so that the latest state is elsewhere as soon as can be."""

    name = "copy"

    def __init__(
        self, folder: RunFolder, config: RunConfig, ends: Collection[int], closing: threading.Event, log: Log
    ) -> None:
        super().__init__(folder, config, ends, closing, log)
        self._root = place(config.checkpoint.copy_to or "")
        self._done: dict[int, str] | None = None
        self._damaged: set[str] = set()
        self._arrived: set[tuple[str, str]] = set()
        self._rollbacks: int | None = None
        self._waited: set[int] = set()

    def due(self, saved: dict[int, Path]) -> int | None:
        if not saved:
            return None
        if self._done is None:
            self._done = {step: found for step in saved if (found := self.attempt(step_folder(self._root, step)))}
        self._done = {step: name for step, name in self._done.items() if step in saved}
        stay = saved.keys() - set() if self.section.copy_all else self._staying(saved)
        left = [step for step in stay if (name := self.attempt(saved[step])) and not self._has(step, name)]
        self._tell_missed(saved, set(left))
        self.log.record(copied=self._done)
        return max(left, default=None)

    def do(self, step: int, path: Path) -> dict[str, Any]:
        self._copy_run_files()
        name, target = self.attempt(path), step_folder(self._root, step)
        try:
            size = copy_checkpoint(path, target, self._arrived, lambda: still_own(self._root, self.folder.path))
        except DamagedCheckpoint as error:
            if (path / MANIFEST).is_file():
                self._damaged.add(name or "")
                raise
            raise OSError(f"it was deleted before it was copied ({error.problem})") from None
        self._arrived.clear()
        self._done = {**(self._done or {}), step: name or ""}
        self.log.record(copied=self._done)
        if step == max(self.folder.checkpoints_on_disk(self.config), default=step):
            self._forget_after(step)
        self._prune(path)
        return {"to": str(target), "size_bytes": size}

    def end(self) -> None:
        """The last words of the run go with its copies."""
        with suppress(Exception):
            if self._done:
                self._copy_run_files()

    def _has(self, step: int, name: str) -> bool:
        return name in self._damaged or (self._done or {}).get(step) == name

    def _staying(self, saved: dict[int, Path]) -> set[int]:
        gone = retention_for(self.section, self.ends, self._best(saved[max(saved)])).to_delete(sorted(saved))
        return saved.keys() - set(gone)

    def _best(self, path: Path) -> int | None:
        return best_step(read_manifest(path).info) if self.section.keep_best else None

    def _tell_missed(self, saved: dict[int, Path], left: set[int]) -> None:
        """Says which checkpoints went from the disk before they were copied."""
        stays = self.section.copy_all
        for step in sorted(self._waited - saved.keys()) if stays else ():
            if step < max(saved):
                self.log.event("copy_failed", step=step, message="it went from the disk before it was copied")
        self._waited = left

    def _copy_run_files(self) -> None:
        """Copies the files of the run's folder too: of a history in which these stand. Raises `OSError`."""
        if skipped.pending_rollback(self.folder.path) is not None:
            raise OSError("the run is going back to an earlier step")
        still_own(self._root, self.folder.path)
        self._leave_out()
        origin = [f"{KEPT}/{path.name}" for path in sorted((self.folder.path / KEPT).glob("*"))]
        copy_text_files(self.folder.path, self._root / RUN, [*RUN_FILES, *origin])

    def _leave_out(self) -> None:
        """Copies the list of data that the run left out, once those are gone that it went back from since. Raises
        `OSError`."""
        there = self._root / RUN
        if self._rollbacks is None:
            self._rollbacks = skipped.left_out_by(there).rollbacks
        now = skipped.left_out_by(self.folder.path)
        if now.rollbacks > self._rollbacks and (saved := self.folder.checkpoints_on_disk(self.config)):
            self._forget_after(max(saved))
        if now.rollbacks:
            there.mkdir(parents=True, exist_ok=True)
            write_text(there / skipped.FILE, now.model_dump_json(exclude_none=True) + "\n")
        self._rollbacks = now.rollbacks

    def _forget_after(self, step: int) -> None:
        """Removes copies of later steps than any of the run's history. Raises `OSError`."""
        for path in checkpoints(self._root):
            if (step_of(path) or 0) > step:
                remove_checkpoint(path)

    def _prune(self, newest: Path) -> None:
        """Removes copies that do not stay. Raises `OSError`."""
        if self.section.copy_all:
            return
        copied = {step_of(path) or 0: path for path in checkpoints(self._root)}
        for step in retention_for(self.section, self.ends, self._best(newest)).to_delete(sorted(copied)):
            remove_checkpoint(copied[step])
