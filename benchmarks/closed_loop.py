"""The closed loop: real steps of many layouts on this machine beside what `fourfold simulate` says on the calibrated cluster.

    fourfold calibrate --out this-machine.toml
    python benchmarks/closed_loop.py this-machine.toml [--only TEXT] [--steps 7] [--markdown FILE] [--json FILE]

Every rank runs the trainer's own executor on random tokens. A step's time is the median over steps of the slowest rank's; bytes
are what each rank's groups counted in a step, and must equal the program's; memory is the peak of live tensors of a tracked step.
"""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.distributed as dist

from fourfold.calibrate.ranks import Ranks
from fourfold.calibrate.steps import StepRunner, table_spec
from fourfold.config import parse_run
from fourfold.hardware import Cluster, load_cluster
from fourfold.program import lower_pipeline, memory_peak
from fourfold.program.schedule import find_schedule
from fourfold.runtime.clock import StepClock
from fourfold.simulate.run_prices import prices_for
from fourfold.simulate.step import simulate

MODELS = {
    "3 M": {
        "num_layers": 4,
        "hidden_size": 192,
        "num_heads": 6,
        "num_kv_heads": 2,
        "ffn_size": 512,
        "vocab_size": 4096,
    },
    "14 M": {"num_layers": 6, "hidden_size": 384, "num_heads": 6, "ffn_size": 1024, "vocab_size": 4096},
    "50 M": {"num_layers": 8, "hidden_size": 640, "num_heads": 10, "ffn_size": 1728, "vocab_size": 8192},
}
BATCHES = {"3 M": (8, 256), "14 M": (8, 128), "50 M": (4, 128)}
"""Sequences of the global batch, tokens of a sequence."""


def pp(degree: int, schedule: str, **rest: Any) -> dict[str, Any]:
    stages = find_schedule(schedule).min_virtual_stages
    return {"pp": degree, "schedule": schedule, "virtual_stages": stages, "microbatch_sequences": 1, **rest}


def tp(degree: int, sequence: bool = True, **rest: Any) -> dict[str, Any]:
    return {"tp": degree, "sequence_parallel": sequence, "microbatch_sequences": 2, **rest}


def dp(degree: int, zero: int, size: int = 2, **rest: Any) -> dict[str, Any]:
    return {"dp_shard": degree, "zero": zero, "microbatch_sequences": size, **rest}


def cp(degree: int, method: str, **rest: Any) -> dict[str, Any]:
    return {"cp": degree, "cp_method": method, "zero": 3, "microbatch_sequences": 2, **rest}


FULL = {"recompute": "full"}
SELECTIVE = {"recompute": "selective"}
CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("3 M", 1, dp(1, 0, 1)),
    ("3 M", 1, dp(1, 0, 4)),
    ("3 M", 1, dp(1, 0, 2, **FULL)),
    ("14 M", 1, dp(1, 0, 2)),
    ("50 M", 1, dp(1, 0, 2, **SELECTIVE)),
    *(("3 M", 2, dp(2, zero, 1 + zero // 2)) for zero in range(4)),
    ("3 M", 2, pp(2, "gpipe")),
    ("3 M", 2, pp(2, "1f1b")),
    ("3 M", 2, pp(2, "interleaved_1f1b")),
    ("3 M", 2, pp(2, "zb_v")),
    ("3 M", 2, tp(2, False)),
    ("3 M", 2, tp(2)),
    ("3 M", 2, cp(2, "ring")),
    ("3 M", 2, cp(2, "all_gather")),
    ("14 M", 2, dp(2, 0)),
    ("14 M", 2, dp(2, 3, 2, **FULL)),
    ("14 M", 2, pp(2, "1f1b", **FULL)),
    ("14 M", 2, tp(2)),
    ("14 M", 2, cp(2, "ring")),
    ("50 M", 2, dp(2, 2)),
    ("50 M", 2, pp(2, "1f1b")),
    ("3 M", 4, dp(4, 3)),
    ("3 M", 4, dp(4, 1)),
    ("3 M", 4, pp(4, "1f1b")),
    ("3 M", 4, tp(2, dp_shard=2, zero=3)),
    ("3 M", 4, cp(2, "all_gather", tp=2, sequence_parallel=True)),
    ("14 M", 4, dp(2, 2, dp_replicate=2)),
    ("14 M", 4, pp(2, "1f1b", dp_shard=2, zero=2)),
    ("14 M", 4, pp(4, "gpipe")),
    ("14 M", 4, pp(2, "zb_v", tp=2)),
    ("50 M", 4, tp(2, pp=2, schedule="1f1b", microbatch_sequences=1)),
    ("50 M", 4, dp(4, 3, 1, **FULL)),
]


def run_table(model: str, layout: dict[str, Any]) -> dict[str, Any]:
    rows, length = BATCHES[model]
    return {
        "model": MODELS[model],
        "batch": {"global_sequences": rows, "sequence_length": length, "steps": 1},
        "layout": layout,
        "precision": {"compute": "fp32"},
    }


def words(layout: dict[str, Any]) -> str:
    """A layout in one line."""
    parts = [
        f"{axis} {layout[axis]}" for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp") if layout.get(axis, 1) > 1
    ]
    parts += [layout["schedule"]] if "schedule" in layout else []
    parts += (
        [f"ZeRO-{layout['zero']}"] if "zero" in layout and layout.get("dp_shard", 1) * layout.get("cp", 1) > 1 else []
    )
    parts += ["sp"] if layout.get("sequence_parallel") else []
    parts += [layout["cp_method"]] if "cp_method" in layout else []
    parts += [f"recompute {layout['recompute']}"] if "recompute" in layout else []
    return ", ".join([*parts, f"microbatches of {layout['microbatch_sequences']}"]) or "one rank"


def measure(
    rank: int, device: torch.device, table: dict[str, Any], ranks: int, steps: int, kinds: bool
) -> dict[str, Any]:
    """Counts and times of one rank."""
    runner = StepRunner(table, ranks, rank, device)
    before = runner.sent_bytes()
    runner.step()
    sent = {axes: value - before[axes] for axes, value in runner.sent_bytes().items()}
    runner.step()
    seconds = []
    for _ in range(steps):
        dist.barrier()
        mine = torch.tensor([runner.step()], dtype=torch.float64)
        dist.all_reduce(mine, op=dist.ReduceOp.MAX)
        seconds.append(mine.item())
    found: dict[str, float] = {}
    if kinds:
        clock = StepClock(device)
        runner.step(clock)
        found.update({name: sum(values) for name, values in runner.kind_seconds(clock).items()})
    return {"seconds": seconds, "sent": sent, "peak": runner.peak_bytes(), "kinds": found}


def predict(cluster: Cluster, table: dict[str, Any], ranks: int) -> dict[str, Any]:
    """Seconds of a step; of every rank, bytes by axes and the peak."""
    spec = table_spec(table, ranks, "cpu")
    simulation = simulate(spec, prices_for(parse_run(table), spec, cluster))
    programs = lower_pipeline(spec)
    sent, peaks = [], []
    for rank in range(ranks):
        program = programs[spec.layout.coordinates(rank)["pp"]]
        sums: dict[str, int] = defaultdict(int)
        for step in program.instructions:
            for collective in step.collectives:
                sums[collective.axes] += collective.sent_bytes
        sent.append({axes: value for axes, value in sums.items() if value})
        peaks.append(memory_peak(program).bytes)
    return {"seconds": simulation.seconds, "sent": sent, "peaks": peaks, "spent": simulation.spent}


def row(
    cluster: Cluster, group: Ranks, case: tuple[str, int, dict[str, Any]], steps: int, kinds: bool
) -> dict[str, Any]:
    model, ranks, layout = case
    table = run_table(model, layout)
    guess = predict(cluster, table, ranks)
    answers = group.run(measure, table=table, ranks=ranks, steps=steps, kinds=kinds)
    counted = [{axes: value for axes, value in answer["sent"].items() if value} for answer in answers]
    measured = median(answers[0]["seconds"])
    memory = max(abs(p / a["peak"] - 1) for p, a in zip(guess["peaks"], answers, strict=True))
    return {
        "model": model,
        "ranks": ranks,
        "layout": words(layout),
        "measured_seconds": measured,
        "spread": (min(answers[0]["seconds"]), max(answers[0]["seconds"])),
        "predicted_seconds": guess["seconds"],
        "error": guess["seconds"] / measured - 1,
        "bytes": sum(sum(each.values()) for each in counted),
        "bytes_equal": counted == guess["sent"],
        "peak_bytes": max(answer["peak"] for answer in answers),
        "memory_error": memory,
        "kinds": [answer["kinds"] for answer in answers],
        "spent": guess["spent"],
    }


def line(found: dict[str, Any]) -> str:
    return (
        f"| {found['model']} | {found['ranks']} | {found['layout']} | {1e3 * found['predicted_seconds']:.1f} | "
        f"{1e3 * found['measured_seconds']:.1f} ({1e3 * found['spread'][0]:.0f}–{1e3 * found['spread'][1]:.0f}) | "
        f"{100 * found['error']:+.1f} % | {found['bytes'] / 1e6:.2f} {'=' if found['bytes_equal'] else 'DIFFERS'} | "
        f"{found['peak_bytes'] / 1e6:.1f} | {100 * found['memory_error']:.2f} % |"
    )


HEAD = """| parameters | ranks | layout | predicted ms | measured ms (range) | error | MB sent | peak MB | error |
|---|---|---|---|---|---|---|---|---|"""


def summary(rows: list[dict[str, Any]]) -> str:
    errors = [abs(each["error"]) for each in rows]
    parts = [
        f"{len(rows)} layouts: step time median error {100 * median(errors):.1f} %, mean {100 * mean(errors):.1f} %, largest "
        f"{100 * max(errors):.1f} %; bytes equal on {sum(each['bytes_equal'] for each in rows)} of {len(rows)}; peak memory: "
        f"error {100 * max(each['memory_error'] for each in rows):.2f} %"
    ]
    for ranks in sorted({each["ranks"] for each in rows}):
        own = [abs(each["error"]) for each in rows if each["ranks"] == ranks]
        parts.append(f"{ranks} ranks ({len(own)}): median {100 * median(own):.1f} %, mean {100 * mean(own):.1f} %")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cluster")
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--kinds", action="store_true", help="time every kind of instruction too")
    options = parser.parse_args()
    cluster = load_cluster(options.cluster)
    chosen = [case for case in CASES if options.only in f"{case[0]}, {case[1]} ranks, {words(case[2])}"]
    cores, rows, begun = len(os.sched_getaffinity(0)), [], time.monotonic()
    print(HEAD, flush=True)
    for ranks in sorted({case[1] for case in chosen}):
        with Ranks(ranks, max(1, cores // ranks)) as group:
            for case in (each for each in chosen if each[1] == ranks):
                rows.append(row(cluster, group, case, options.steps, options.kinds))
                print(line(rows[-1]), flush=True)
                if options.kinds:
                    for index, kinds in enumerate(rows[-1]["kinds"]):
                        print(index, {k: round(1e3 * v, 1) for k, v in sorted(kinds.items(), key=lambda e: -e[1])[:9]})
                    print("spent", [{k: round(1e3 * v, 1) for k, v in each.items()} for each in rows[-1]["spent"]])
                left = (time.monotonic() - begun) / len(rows) * (len(chosen) - len(rows))
                print(f"{len(rows)} of {len(chosen)}, {left:.0f} s left", file=sys.stderr, flush=True)
    summary_lines = summary(rows)
    print(summary_lines)
    if options.markdown:
        options.markdown.write_text("\n".join([HEAD, *map(line, rows), "", summary_lines, ""]))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
