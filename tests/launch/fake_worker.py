"""Stands in for a rank: `python fake_worker.py MODE[:RANK[:MESSAGE]] OUT` behaves as MODE on that rank, as `hang` on others."""

import json
import os
import signal
import sys
import time
from pathlib import Path

FINISHED, STOPPED = 0, 3


def main() -> int:
    mode, who, message = ([*sys.argv[1].split(":", 2), "", ""])[:3]
    out, rank = Path(sys.argv[2]), int(os.environ["RANK"])
    stopping: list[int] = []
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    started = out / f".pid-{rank}"
    started.write_text(str(os.getpid()))
    started.rename(out / f"pid-{rank}")  # whoever sees the file sees the number
    keys = ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "FOURFOLD_PARENT")
    print(json.dumps({key: os.environ.get(key) for key in keys}), flush=True)
    if mode == "finish":
        return _finish(out, rank, int(who or 3))
    if who and int(who) == rank:
        _wait_for_all(out)
        return _misbehave(mode, message)
    while not stopping:
        time.sleep(0.01)
    if mode in ("fail", "mistake", "die", "mute"):
        print(f"error: rank {rank}: [gloo] Connection closed by peer [127.0.0.1]:4242", flush=True)
        return 1
    return STOPPED


def _misbehave(mode: str, message: str) -> int:
    if mode == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "mute":
        print("Traceback (most recent call last):\nKeyError: 'lost'", flush=True)
        return 1
    print(f"some output\nerror: {message}", flush=True)
    return 2 if mode == "mistake" else 1


def _wait_for_all(out: Path) -> None:
    while len(list(out.glob("pid-*"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.01)


def _finish(out: Path, rank: int, steps: int) -> int:
    if rank != 0:
        return FINISHED
    with open(out / "events.jsonl", "a") as events, open(out / "metrics.jsonl", "w") as metrics:
        _append(events, event="start", step=0)
        for step in range(steps):
            loss = 5.0 - step / steps
            values = {"tokens_per_second": 1e4, "mfu": None, "peak_memory_bytes": 1_000_000, "lr": 1e-3}
            _append(metrics, step=step, loss=loss, grad_norm=1.0, tokens=64 * (step + 1), step_seconds=0.1, **values)
        checkpoint = out / "checkpoints" / f"step-{steps:06d}"
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "manifest.json").write_text("{}")
        _append(events, event="finish", step=steps, validation_loss=2.25, sample="def f(x):\n    return x")
    return FINISHED


def _append(file, **values) -> None:
    file.write(json.dumps({"time": time.time(), **values}) + "\n")
    file.flush()


if __name__ == "__main__":
    sys.exit(main())
