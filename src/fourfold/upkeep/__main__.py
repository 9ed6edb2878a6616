"""The process beside a run: `python -m fourfold.upkeep RUN`, until its standard input ends."""

import fcntl
import os
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from fourfold.checkpoint import checkpoints, read_manifest
from fourfold.checkpoint.folders import prune
from fourfold.checkpoint.waiting import best_step, retention_for, waits
from fourfold.config import RunConfig, RunFailure, load_run
from fourfold.config.stages import course_of
from fourfold.launch.run_folder import RunFolder
from fourfold.upkeep.copying import Copying
from fourfold.upkeep.exporting import Exporting
from fourfold.upkeep.work import CheckpointWork, Log

LOCK = ".upkeep.lock"


def main(out: Path) -> None:
    """Does the work of the run in `out`."""
    os.nice(5)
    with open(out / LOCK, "a") as lock:
        with suppress(OSError):  # one of the launch before may still be at work; a file system may have no locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        folder, config = RunFolder(out), load_run(out / "run.toml", as_written=True)
        ends, closing, log = [stage.end for stage in course_of(config).stages], threading.Event(), Log(out)
        works: list[CheckpointWork] = []
        if config.checkpoint.copy_to is not None:
            works.append(Copying(folder, config, ends, closing, log))
        if config.checkpoint.export_every_steps is not None or config.checkpoint.export_stage_ends:
            works.append(Exporting(folder, config, ends, closing, log))
        threads = [threading.Thread(target=work.run) for work in works]
        for thread in threads:
            thread.start()
        sys.stdin.buffer.read()
        closing.set()
        for thread in threads:
            thread.join()
        for work in works:
            work.end()
        delete_waited(folder, config, ends)


def delete_waited(folder: RunFolder, config: RunConfig, ends: Collection[int]) -> None:
    """Deletes checkpoints that no save will delete any more, since they waited at the last one."""
    with suppress(RunFailure, OSError):
        found = checkpoints(folder.checkpoint_root(config))
        if found:
            best = best_step(read_manifest(found[-1]).info)
            prune(
                found[0].parent,
                retention_for(config.checkpoint, ends, best),
                found[-1],
                waits(config.checkpoint, ends, folder.path),
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
