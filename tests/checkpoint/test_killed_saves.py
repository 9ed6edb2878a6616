"""A save whose ranks are killed before any of its calls to the file system leaves a complete checkpoint: the old or the new one."""

import itertools
import os
import shutil
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from fourfold.checkpoint import latest_checkpoint
from tests.checkpoint.ranks import ROLES, Run
from tests.support.forking import forking_context

CALLS = {"open", "write", "fsync", "rename", "mkdir", "unlink", "rmdir"}


def save_until_killed(root: Path, number: int) -> None:
    """Two ranks save step 2, of which step 1 goes. SIGKILL ends both before call `number` of all, from 0. Where there are fewer,
    the file `calls` beside the folder says which there were."""
    run, count = Run(2, seed=2), itertools.count()
    seen: set[str] = set()

    def look(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in CALLS:
            seen.add(called.__name__)
            if next(count) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(look)  # of the threads that are started from here on
    assert run.save(root, 2, keep=1) == [root / "step-000002"] * 2
    root.with_name("calls").write_text(" ".join(seen))


@pytest.mark.rest
def test_killed_before_every_call(tmp_path: Path) -> None:
    base, found = tmp_path / "base", []
    Run(2, seed=1).save(base, 1)
    for number in itertools.count():
        root = tmp_path / str(number) / "checkpoints"
        shutil.copytree(base, root)
        process = forking_context().Process(target=save_until_killed, args=(root, number))
        process.start()
        process.join()
        check_complete(root)
        found.append(latest_checkpoint(root))
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert set((tmp_path / str(number) / "calls").read_text().split()) == CALLS
    steps = [path.name for path in found if path is not None]
    assert steps == sorted(steps), "from the rename on the new one, before it the old one"
    assert (steps[0], steps[-1]) == ("step-000001", "step-000002")
    assert number > 50


def check_complete(root: Path) -> None:
    """Every rank loads the newest checkpoint, and all of it is of the run that saved that step."""
    latest = latest_checkpoint(root)
    assert latest is not None
    step = int(latest.name.removeprefix("step-"))
    run = Run(2, seed=step)
    for rank in range(2):
        loaded, saved = run.shards(rank, empty=True), run.shards(rank)
        assert run.load(latest, loaded) == {"step": step}
        for unit, shard in saved.items():
            assert all(torch.equal(loaded[unit].tensors[role], shard.tensors[role]) for role in ROLES)
