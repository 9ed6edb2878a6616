"""How much a device's file buys: whole steps on this CPU beside predictions with the file and with a datasheet's two figures.

    fourfold calibrate --device cpu --ranks 4 --out core.toml
    python benchmarks/device_file.py core.toml --peak 112e9 --bandwidth 25.6e9 [--steps 9] [--markdown FILE]

`core.toml` is of a rank of one thread (`--ranks 4` on 4 cores). `--peak`, `--bandwidth`: of the datasheet. Every rank runs the
trainer's own executor on random tokens. Compared is what a rank computes in a step. Measured: the time that its thread ran, the
median of the slower rank's, which other programs on the machine lengthen little. Predicted: the step without exposed communication
and bubble. Links are no part of a device's file; `closed_loop.py` compares steps by the clock.
"""

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from closed_loop import MODELS, dp, pp, run_table, tp, words
from fourfold.calibrate.ranks import Ranks
from fourfold.calibrate.steps import StepRunner, table_spec
from fourfold.config import parse_run
from fourfold.cost.phase import KINDS
from fourfold.hardware import Cluster, Device, Level, load_cluster
from fourfold.simulate.run_prices import prices_for
from fourfold.simulate.step import simulate

CASES: list[tuple[str, int, dict[str, Any]]] = [
    *((model, 1, dp(1, 0, 2)) for model in MODELS),
    ("3 M", 1, dp(1, 0, 2, recompute="full")),
    *((model, 2, dp(2, 0, 2)) for model in MODELS),
    ("14 M", 2, dp(2, 3, 2)),
    ("14 M", 2, pp(2, "1f1b")),
    ("14 M", 2, tp(2)),
]
COMPUTING = (*KINDS.values(), "recomputation", "optimizer", "norm and other sums")
HEAD = "\n".join(
    [
        "| parameters | ranks | layout | measured ms | with the file | error | from the datasheet | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
)


def measure(rank: int, device: torch.device, table: dict[str, Any], ranks: int, steps: int) -> float:
    """Seconds that the thread of this rank ran in a step."""
    runner = StepRunner(table, ranks, rank, device, time.thread_time)
    runner.step()
    taken = []
    for _ in range(steps):
        dist.barrier()
        taken.append(runner.step())
    return median(taken)


def predict(device: Device, table: dict[str, Any], ranks: int) -> float:
    """Seconds that a rank computes in a step; the link between ranks does not matter to it."""
    spec = table_spec(table, ranks, "cpu")
    cluster = Cluster("this", "this", "measured", 2, device=device, levels=(Level("loopback", "switch", 2, 1e12, 0.0),))
    spent = simulate(spec, prices_for(parse_run(table), spec, cluster)).spent
    return max(sum(seconds for kind, seconds in each.items() if kind in COMPUTING) for each in spent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--peak", type=float, required=True)
    parser.add_argument("--bandwidth", type=float, required=True)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    measured = load_cluster(options.file).device
    datasheet = replace(
        measured,
        memory_bytes_per_second=options.bandwidth,
        peak_flops_per_second={"fp32": options.peak},
        kernels={},
        host_launch_seconds=None,
    )
    lines, errors = [HEAD], {"with the file": list[float](), "from the datasheet": list[float]()}
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}\n{HEAD}", flush=True)
    for ranks in (1, 2):
        with Ranks(ranks, 1) as group:
            for model, _, layout in (case for case in CASES if case[1] == ranks):
                table = run_table(model, layout)
                seconds = max(group.run(measure, table=table, ranks=ranks, steps=options.steps))
                found = [predict(each, table, ranks) for each in (measured, datasheet)]
                off = [each / seconds - 1 for each in found]
                for name, each in zip(errors, off, strict=True):
                    errors[name].append(abs(each))
                figures = " | ".join(f"{1e3 * a:.1f} | {100 * b:+.1f} %" for a, b in zip(found, off, strict=True))
                lines.append(f"| {model} | {ranks} | {words(layout)} | {1e3 * seconds:.1f} | {figures} |")
                print(lines[-1], flush=True)
    several = [f"{name}: {100 * median(each):.1f} %" for name, each in errors.items()]
    lines += [
        "",
        f"Median error of {len(CASES)} steps {', '.join(several)}.",
    ]
    print(lines[-1])
    if options.markdown:
        options.markdown.write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
