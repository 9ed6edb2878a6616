"""The laws of a search's first row, over seeded requests: what is the fastest that simulation finds beside it.

python benchmarks/plan_laws.py --requests 30 --seed 0 [--budget 40] [--out laws.jsonl]

For each request, scores (seconds, and one per cent for each feature beyond the plain ones) over that of row 1:
neighbour: the best of all neighbours that are likely to fit, each simulated; constraint: row 1 of the same request with a key
stated; memory, link: row 1 of a request with less memory and with slower links, which may not be below 1; advice: each change that
the plan prints, applied to the run by `fourfold.simulate`, beside what was printed. Figures are predictions; nothing runs on a
device.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fourfold as ff
from fourfold.config import UserError
from fourfold.plan.budget import BUDGET
from fourfold.plan.moves.neighbours import neighbours
from fourfold.plan.planner import make_plan
from fourfold.plan.pricing import Priced, Pricer
from fourfold.plan.request import Request

MODELS = (
    "llama3-8b",
    "qwen2.5-7b",
    "llama3-70b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "mistral-7b",
    "llama3-405b",
    "deepseek-v3",
)
LARGE = ("llama3-405b", "deepseek-v3")
CLUSTERS = ("dgx-h100", "dgx-a100", "aws-p5")
SHARES = (0.95, 0.8, 0.7, 0.6)


def requests(number: int, seed: int, most_devices: int) -> Iterator[dict[str, Any]]:
    """Options of `fourfold.plan`."""
    draw = random.Random(seed)
    while number:
        model = draw.choice(MODELS)
        sizes = [2**k for k in range(3, 15) if 2**k <= most_devices and (2**k >= 512 or model not in LARGE)]
        if not sizes:
            continue
        devices, length = draw.choice(sizes), draw.choice((2048, 4096, 8192, 32768))
        sequences = devices * draw.choice((2, 4, 8)) * 8192 // length
        where = f"{draw.choice(CLUSTERS)}:{devices}"
        options = {
            "model": model,
            "cluster": where,
            "sequence_length": length,
            "batch_sequences": max(devices, sequences),
        }
        yield options | {"memory_share": draw.choice(SHARES)}
        number -= 1


def best_neighbour(request: Request, best: Priced) -> tuple[float, str]:
    """The least score of a neighbour that is likely to fit, over that of the best, and its words."""
    likely = max(request.likely_bytes, best.memory_bytes)
    pricer, least, words = Pricer(replace(request, memory_bytes=likely)), float("inf"), ""
    for each in neighbours(request, best.candidate):
        try:
            if pricer.bound(each, mixes=False)[0] > 1.02 * best.seconds:
                continue
        except UserError:
            continue
        priced = pricer.fitting(each, likely)
        if priced is not None and priced.score < least:
            least, words = priced.score, each.words()
    return least / best.score, words


def slower_links(cluster: Any) -> Any:
    """A copy of the cluster with half of the bandwidth of every level."""
    levels = tuple(replace(each, bytes_per_second=each.bytes_per_second / 2) for each in cluster.levels)
    return replace(cluster, levels=levels)


def advice_error(planned: Any) -> tuple[int, float]:
    """Changes that were advised, and the largest error of what was printed, relative, when they are applied; 1 where one is
    refused."""
    if planned.best is None or planned.found.advice is None:
        return 0, 0.0
    worst = 0.0
    for change in planned.found.advice.changes:
        try:
            again = ff.simulate(planned.run(), change.overrides)
            worst = max(
                worst, abs(again.step_seconds / change.seconds - 1), abs(again.memory_bytes / change.memory_bytes - 1)
            )
        except UserError as error:
            print("  refused:", " ".join(change.overrides), str(error)[:200])
            worst = 1.0
    return len(planned.found.advice.changes), worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=BUDGET)
    parser.add_argument("--most-devices", type=int, default=16384)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = []
    for number, options in enumerate(requests(asked.requests, asked.seed, asked.most_devices)):
        draw, started = random.Random(number), time.process_time()
        planned = ff.plan(**options, budget=asked.budget)
        row: dict[str, Any] = options | {"search_cpu_seconds": round(time.process_time() - started, 2)}
        best, request = planned.best, planned.request
        if best is None:
            print(number, options, "nothing fits")
            continue
        row |= {"seconds": best.seconds, "memory_bytes": best.memory_bytes, "layout": best.candidate.words()}
        row["neighbour"], row["neighbour_layout"] = best_neighbour(request, best)
        key = draw.choice(("tp", "pp", "zero", "microbatch_sequences", "outermost"))
        others = sorted(
            {getattr(each.candidate, key) for each in planned.layouts} | {getattr(best.candidate, key)}, key=str
        )
        stated = {key: draw.choice(others)}
        held = make_plan(request.fixing(stated), budget=asked.budget, keep=1).best
        row |= {"stated": stated, "constraint": held.score / best.score if held is not None else None}
        less = make_plan(
            replace(request, memory_bytes=int(0.85 * min(request.memory_bytes, request.likely_bytes))),
            budget=asked.budget,
            keep=1,
        ).best
        row["memory"] = less.score / best.score if less is not None else None
        slow = replace(request, template=replace(request.template, cluster=slower_links(request.cluster)))
        slower = make_plan(slow, budget=asked.budget, keep=1).best
        row["link"] = slower.score / best.score if slower is not None else None
        row["advised"], row["advice_error"] = advice_error(planned)
        rows.append(row)
        print(number, json.dumps(row), flush=True)
        if asked.out is not None:
            with asked.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    for law in ("neighbour", "constraint", "memory", "link"):
        least = min((row for row in rows if row[law] is not None), key=lambda row: row[law], default=None)
        if least is not None:
            print(
                f"{law}: least ratio {least[law]:.4f}: {least['model']} on {least['cluster']}, {least['sequence_length']}"
            )
    advised, worst = sum(row["advised"] for row in rows), max((row["advice_error"] for row in rows), default=0.0)
    print(f"advice: {advised} changes, largest error {worst:.2g}")


if __name__ == "__main__":
    main()
