"""Narrow optimizer states: the loss of a run beside that of fp32 states, and the time of an update.

    python benchmarks/narrow_states.py loss [--steps 2000] [--beta2 0.999]     one after the other: the same run in four formats
    python benchmarks/narrow_states.py update [--pairs 7]                      alternating pairs of one update of 8 M parameters

`loss` trains a Llama of 2 layers of 64 on the standard library's sources, on one rank, and prints the mean loss of the last
hundred steps and the validation loss. `update` counts seconds of one thread's processor, on AdamW.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from fourfold.config.optimizers import OptimizerSection
from fourfold.layout import FlatLayout, LocalParameter
from fourfold.model import halves
from fourfold.model.spec import ParameterSpec
from fourfold.runtime.narrow import NarrowShard
from fourfold.runtime.optimizer import ShardOptimizer

STATES = ("optimizer.state_dtype=bf16",)
BF16 = ("precision.compute=bf16",)
RUNS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "fp32, states bf16": STATES,
    "bf16, master fp32": BF16,
    "bf16, master in halves, states bf16": (*BF16, "precision.master=split", *STATES),
}
RUN = """
[model]
num_layers = 2
hidden_size = 64
num_heads = 4
num_kv_heads = 2
ffn_size = 192
[data]
corpus = "stdlib"
tokenizer = "bytes"
[batch]
global_sequences = 8
sequence_length = 128
steps = {steps}
[optimizer]
lr = 3e-3
betas = [0.9, {beta2}]
warmup_steps = 50
[run]
evaluate_every = {steps}
evaluate_sequences = 64
"""
LAST = 100
NUMEL = 1 << 23


def final_losses(options: tuple[str, ...], steps: int, beta2: float) -> tuple[float, float]:
    """(mean training loss of the last steps, validation loss) of a run."""
    with tempfile.TemporaryDirectory() as folder:
        run, out = Path(folder, "run.toml"), Path(folder, "out")
        run.write_text(RUN.format(steps=steps, beta2=beta2))
        command = [sys.executable, "-m", "fourfold", "train", str(run), *options, "--out", str(out), "--ranks", "1"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(options)} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return statistics.mean(row["loss"] for row in rows[-LAST:]), rows[-1]["validation_loss"]


def optimizer(formats: str) -> ShardOptimizer:
    """AdamW on one parameter: `fp32`, `states` (in bf16), or `halves` (and master weights too)."""
    flat_parameter = (LocalParameter(ParameterSpec("w", (NUMEL,), 1.0, True, None)),)
    flat = FlatLayout("u", "dense", flat_parameter, 0, NUMEL, 1, 0, (), ())
    stated: dict[str, Any] = {"name": "adamw", **({} if formats == "fp32" else {"state_dtype": "bf16"})}
    section, master, weights = OptimizerSection.model_validate(stated), torch.randn(NUMEL), None
    if formats == "halves":
        weights, remainders = torch.empty(NUMEL, dtype=torch.bfloat16), torch.empty(NUMEL, dtype=torch.int16)
        halves.split_halves(master, weights, remainders)
        master = remainders
    narrow = None if formats == "fp32" else NarrowShard(flat, 0, {}, torch.float32, 1 << 18, weights)
    return ShardOptimizer(section, master, [(0, NUMEL, True, 1.0)], 0, narrow)


def update_seconds(of: ShardOptimizer, gradient: torch.Tensor, number: int) -> float:
    """Seconds of one update, of this thread's processor, which are the same while others compute beside it."""
    begun = time.process_time()
    of.update(gradient, 1e-3, number, 1.0)
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["loss", "update"])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--beta2", type=float, default=0.999)
    parser.add_argument("--pairs", type=int, default=7)
    given = parser.parse_args()
    if given.what == "loss":
        for name, options in RUNS.items():
            train, validation = final_losses(options, given.steps, given.beta2)
            print(f"{name:38} loss of the last {LAST} steps {train:.4f}, validation {validation:.4f}", flush=True)
        return
    torch.manual_seed(0)
    torch.set_num_threads(1)
    gradient, kinds = torch.randn(NUMEL), {name: optimizer(name) for name in ("fp32", "states", "halves")}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(given.pairs + 2):
        for name, each in kinds.items():
            found[name].append(update_seconds(each, gradient.clone(), number))
    full = found["fp32"][2:]
    for name, seconds in found.items():
        ratio = statistics.median(a / b for a, b in zip(seconds[2:], full, strict=True))
        print(f"{name:8} {statistics.median(seconds[2:]) * 1e3:7.1f} ms, {ratio:.2f} of fp32's")


if __name__ == "__main__":
    main()
