"""Faults inside a rank, for ranks that are started with this folder on PYTHONPATH.

FOURFOLD_TEST_FAULT = WHAT:RANK:STEP:TIMES, where the first TIMES times that RANK comes to STEP it does WHAT; the counter is a file
in the folder FOURFOLD_TEST_COUNTER. `device:NUMBER:::` is a device that does not work while the file `broken` is there.
"""

import os
import sys
import time
from pathlib import Path

what, rank, step, times = (os.environ.get("FOURFOLD_TEST_FAULT") or ":::").split(":")


def is_due(at: int) -> bool:
    if os.environ.get("RANK") != rank or at != int(step):
        return False
    counter = Path(os.environ["FOURFOLD_TEST_COUNTER"]) / f"{what}-{rank}"
    with open(counter, "a+b") as file:
        file.write(b"x")
        return file.tell() <= int(times)


def fail() -> None:
    match what:
        case "exit":
            sys.exit(0)
        case "leave":
            os._exit(0)
        case "error":
            raise KeyError("a defect in the data reader")
        case "sleep":
            time.sleep(1e6)
        case "loop":
            while True:
                pass


def install() -> None:
    from fourfold.data.batches import GlobalBatches
    from fourfold.runtime.compute import SegmentRunner
    from fourfold.runtime.executor import Executor
    from fourfold.train import session

    read, clip, backward, run = GlobalBatches.batch, Executor._clip_norm, SegmentRunner.backward, Executor.run
    here, choose = [-1], session.choose_device

    def choose_device(section):
        broken = what == "device" and (Path(os.environ["FOURFOLD_TEST_COUNTER"]) / "broken").exists()
        if broken and os.environ.get("LOCAL_RANK") == rank:
            raise RuntimeError(f"device {rank} does not answer")
        return choose(section)

    def batch(self, at, rows):
        here[0] = at
        if what == "slow" and os.environ.get("RANK") == rank:
            time.sleep(0.05)
        elif what in ("exit", "leave", "error", "sleep") and is_due(at):
            fail()
        return read(self, at, rows)

    def clip_norm(self, instruction):
        if what == "loop" and is_due(here[0]):
            fail()
        if what == "skip" and is_due(here[0]):
            self._norm, self._scale = 1.0, 1.0
            return
        clip(self, instruction)

    def spoilt_backward(self, instruction):
        backward(self, instruction)
        if what in ("gradient", "nan") and instruction.short == "B b1 m0" and is_due(here[0]):
            spoil(self._units["b1"].grad, what == "nan")

    def spoilt_run(self, program, *rest):
        if what in ("parameter", "state") and program.kind == "train" and is_due(here[0]):
            unit = self.units["b1"]
            spoil(unit.params if what == "parameter" else unit.optimizer.state["exp_avg"], False)
        return run(self, program, *rest)

    GlobalBatches.batch, Executor._clip_norm, SegmentRunner.backward = batch, clip_norm, spoilt_backward
    Executor.run, session.choose_device = spoilt_run, choose_device


def spoil(tensor, to_nan: bool) -> None:
    """Flips one bit of the fourth element, or makes it NaN."""
    import torch

    if to_nan:
        tensor[3] = torch.nan
    else:
        tensor[3:4].view(torch.int32).bitwise_xor_(1 << 20)


if what and "fourfold.train.fork_server" in sys.orig_argv:
    install()
