"""Parts of `device.sh` that run the product itself: `python benchmarks/device_runs.py tests | kill | graphs | memory | ways`.

Each run is a `fourfold train` of this machine's Python standard library on one rank a device, on a CPU on two small ones.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import tomli_w
import torch

from device_record import figure, unmeasured

ROOT = Path(__file__).parents[1]
ON_CUDA = torch.cuda.is_available()
RANKS = torch.cuda.device_count() if ON_CUDA else 2
STEPS, KILLED_AFTER, SAVED_EVERY = 40, 15, 10
SMALL = ("data.tokenizer=bytes", "run.sample_tokens=0", f"batch.steps={STEPS}", f"checkpoint.every_steps={SAVED_EVERY}")
TINY = ("model.num_layers=2", "model.hidden_size=64", "batch.sequence_length=64", "run.threads_per_rank=1")
GUARD_SECONDS = 80.0
LEFT_FREE_BYTES = 2 * 10**9


class Outcomes:
    """A plugin of pytest that counts outcomes; a failure is a figure the moment it is known."""

    def __init__(self) -> None:
        self.counts = Counter[str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:
            self.counts[report.outcome] += 1
        if report.failed:
            figure(report.nodeid, f"FAILED {report.nodeid}", outcome="failed", error=str(report.longrepr)[-2000:])


def tests() -> int:
    """Tests marked `gpu`. On a machine without a device they are collected and skipped."""
    import pytest

    marked = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    outcomes = Outcomes()
    code = pytest.main(["-q", "-p", "no:cacheprovider", "-m", "gpu", *marked], plugins=[outcomes])
    counts = dict(outcomes.counts)
    figure("tests on a device", ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) or "none", **counts)
    if not ON_CUDA:
        unmeasured("parity, memory and graphs on a device", "no CUDA device; their tests were collected and skipped")
    if ON_CUDA and RANKS == 1:
        unmeasured("collectives over NCCL between devices", "there is one device: groups of several ranks go over gloo")
    return int(code)


def train(out: Path, *changes: str, run: Path = ROOT / "examples/stdlib.toml") -> "subprocess.Popen[str]":
    """A run, started; what it prints goes to a file beside its folder."""
    command = [sys.executable, "-m", "fourfold", "train", str(run), *SMALL, *changes]
    if not ON_CUDA:
        command += TINY
    with open(out.with_suffix(".txt"), "w") as file:
        return subprocess.Popen(
            [*command, "--ranks", str(RANKS), "--out", str(out)], stdout=file, stderr=subprocess.STDOUT, text=True
        )


def losses(out: Path) -> list[float]:
    """By step; the last attempt at each counts."""
    try:
        lines = (out / "metrics.jsonl").read_text().splitlines()
    except OSError:
        return []
    found = {}
    for line in lines:
        try:
            values = json.loads(line)
        except ValueError:  # it is being written
            break
        found[values["step"]] = values["loss"]
    return [found[step] for step in sorted(found)]


def finished(process: "subprocess.Popen[str]", out: Path) -> list[float]:
    """The losses of a run that ends well. Raises `RuntimeError` with its last lines."""
    code = process.wait(GUARD_SECONDS)
    if code != 0:
        raise RuntimeError(f"exit code {code}: {_tail(out)}")
    return losses(out)


def kill() -> int:
    """SIGKILL of a rank in mid-run: the run goes on and ends as the undisturbed one."""
    from fourfold.runtime.progress import read_positions

    with tempfile.TemporaryDirectory() as folder:
        plain, killed = Path(folder) / "plain", Path(folder) / "killed"
        begun = time.monotonic()
        expected = finished(train(plain), plain)
        figure(
            "a short run",
            f"{STEPS} steps on {RANKS} ranks in {time.monotonic() - begun:.1f} s, loss {expected[-1]:.4f}",
        )
        process = train(killed)
        while len(losses(killed)) < KILLED_AFTER:
            if process.poll() is not None:
                raise RuntimeError(f"it ended before its rank could be killed: {_tail(killed)}")
            time.sleep(0.02)
        os.kill(read_positions(killed)[RANKS - 1].pid, signal.SIGKILL)
        at = time.monotonic()
        actual = finished(process, killed)
        off = max(abs(a - b) / abs(b) for a, b in zip(actual, expected, strict=True))
        events = (killed / "events.jsonl").read_text().splitlines()
        restarts = sum(json.loads(line)["event"] == "failure" for line in events)
        same = "to the bit" if actual == expected else f"but for {off:.1e}"
        figure(
            "a killed rank",
            f"rank {RANKS - 1} killed after step {KILLED_AFTER}, restarts {restarts}, ended {time.monotonic() - at:.1f} s later; "
            f"losses as undisturbed {same}",
            restarts=restarts,
            relative_difference=off,
        )
        return int(off > 1e-3 or restarts != 1)


def graphs() -> int:
    """Losses of replayed steps beside those of steps given to the device one kernel at a time."""
    if not ON_CUDA:
        unmeasured("a run whose steps a CUDA graph replays", "no CUDA device")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        by_adamw = Path(folder) / "run.toml"  # Muon takes its learning rate from the host
        values = tomllib.loads((ROOT / "examples/stdlib.toml").read_text())
        values["optimizer"] = {"name": "adamw", "lr": 1e-3, "warmup_steps": 8}
        by_adamw.write_text(tomli_w.dumps(values))
        for value in ("false", "true"):
            out = Path(folder) / value
            begun = time.monotonic()
            found[value] = finished(train(out, f"run.cuda_graphs={value}", run=by_adamw), out)
            figure(
                f"graphs {value}",
                f"run.cuda_graphs = {value}: {time.monotonic() - begun:.1f} s, loss {found[value][-1]:.5f}",
            )
        off = max(abs(a - b) / abs(b) for a, b in zip(found["true"], found["false"], strict=True))
        figure("graphs, losses", f"the largest relative difference of a loss: {off:.1e}", relative_difference=off)
        return int(off > 1e-3)


def memory() -> int:
    """A run beside a process that holds the device's memory: it ends as final, and says what it lacked."""
    if not ON_CUDA:
        unmeasured("a run that runs out of memory", "no CUDA device")
        return 0
    free = torch.cuda.mem_get_info()[0]
    held = torch.empty(max(free - LEFT_FREE_BYTES, 0), dtype=torch.uint8, device="cuda")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        larger = ("batch.sequence_length=16384", "model.max_position=16384", "layout.microbatch_sequences=16")
        code = train(out, *larger).wait(GUARD_SECONDS)
        found = [line for line in _lines(out) if "out of memory" in line]
        del held
        figure("out of memory", f"exit code {code}: {' | '.join(found) or _tail(out)}", code=code)
        return int(code != 1 or not any("end the other processes on it" in line for line in found))


WAYS: dict[str, tuple[str, ...]] = {
    "as the README has it": ("data.tokenizer=bpe:4096", "run.sample_tokens=32", "run.evaluate_every=5"),
    "states and activations away": ("layout.offload=activations", "layout.offload_optimizer=true"),
    "fp8 by blocks": ("precision.gemm_dtype=fp8-block", "precision.compute=bf16", "model.ffn_size=768"),
    "deterministic": ("run.deterministic=true",),
    "deterministic again": ("run.deterministic=true",),
}
"""Runs of ten steps that take another way through the runtime."""


def ways() -> int:
    """Each ends well; two with `run.deterministic` have the same losses to the bit."""
    found, bad = {}, []
    with tempfile.TemporaryDirectory() as folder:
        for index, (name, changes) in enumerate(WAYS.items()):
            if name == "fp8 by blocks" and not ON_CUDA:
                unmeasured(name, "no CUDA device")
                continue
            out, begun = Path(folder) / str(index), time.monotonic()
            try:
                found[name] = finished(train(out, "batch.steps=10", *changes), out)
                figure(name, f"{name}: 10 steps in {time.monotonic() - begun:.1f} s, loss {found[name][-1]:.5f}")
            except RuntimeError as error:
                bad.append(name)
                figure(name, f"{name}: {error}", failed=True)
        same = found.get("deterministic") == found.get("deterministic again")
        figure(
            "deterministic, losses", "of two runs: " + ("the same to the bit" if same else "not the same"), same=same
        )
    return int(bool(bad) or not same)


def _lines(out: Path) -> list[str]:
    return out.with_suffix(".txt").read_text().splitlines()


def _tail(out: Path) -> str:
    return " | ".join(_lines(out)[-4:])[-800:]


PARTS = {"tests": tests, "kill": kill, "graphs": graphs, "memory": memory, "ways": ways}

if __name__ == "__main__":
    sys.exit(PARTS[sys.argv[1]]())
