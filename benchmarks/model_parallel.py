"""The model-parallel benchmark: fourfold beside torch's pipelines, tensor parallelism, context parallelism and compositions.

    python benchmarks/model_parallel.py --out runs/model_parallel.md    every row, then the cost of generality and the bubble
    python benchmarks/model_parallel.py --only tensor                   the rows whose name holds this word
    python benchmarks/model_parallel.py --only "1f1b, 2 ranks"          one row and its like

Both contenders of a row train the same Llama from the same weights on the same global batch, cut into the same microbatches,
with clipping and AdamW, on ranks of one thread each. First each runs alone for three steps: its losses and gradient norms must
equal those of one process. Then the two are timed in alternation.
"""

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from bubble import bubble_lines
from data_parallel import parity_faults, summary, versions
from generality import generality_lines
from layout_cases import Batch, LayoutCase, LayoutWork, cases
from measure import INSPECTED_STEPS, REFERENCE, Progress, compare, inspect, on_fresh_ranks
from plain_llama import Shape
from torch_context import attempt

COLUMNS = [
    "",
    "ranks",
    "tokens a step",
    "fourfold",
    "torch",
    "s/step",
    "torch s/step",
    "median of pairs (min–max)",
    "speed-up",
]
COLUMNS += ["peak MB", "torch peak MB"]


def cells(case: LayoutCase, result: dict, inspections: dict[str, dict]) -> list[str]:
    """One row of the table, in the order of COLUMNS."""
    peaks = [f"{inspections[n]['peak_bytes'] / 1e6:.0f}" if n in inspections else "-" for n in result["names"]]
    spread = f"{result['median_ratio']:.3f} ({result['min_ratio']:.3f}–{result['max_ratio']:.3f})"
    seconds = [f"{value:.3f}" for value in result["median_step_seconds"]]
    speed = f"{1 / result['median_ratio']:.2f} x"
    return [case.part, str(case.ranks), case.tokens, *result["names"], *seconds, spread, speed, *peaks]


def run_case(work: LayoutWork, progress: Progress, reference: dict | None, options: argparse.Namespace) -> dict:
    """Parity and memory of both contenders alone, then the pairs."""
    names = (work.case.label, work.case.peer_label)
    inspections = {}
    if reference is not None:
        for name in names:
            inspections[name] = on_fresh_ranks(work, partial(inspect, work, progress, name=name))
            progress.done_steps += INSPECTED_STEPS
        faults = parity_faults({REFERENCE: reference, **inspections})
        if faults:
            sys.exit(f"{work.case.name}: contenders do not train alike:\n  " + "\n  ".join(faults))
    turns = {"warmup": options.warmup, "pairs": options.pairs, "steps": options.steps}
    seconds = on_fresh_ranks(work, partial(compare, work, progress, names=names, **turns))
    progress.done_steps += 2 * (options.warmup + options.pairs * options.steps)
    return {"case": work.case.name, "inspections": inspections, **summary(names, seconds, work)}


def references(works: list[LayoutWork], progress: Progress) -> dict[tuple[int, int], dict]:
    """Results of one process on each global batch."""
    found: dict[tuple[int, int], dict] = {}
    for work in works:
        key = size(work.global_batch)
        if key not in found:
            alone = work.alone()
            found[key] = on_fresh_ranks(alone, partial(inspect, alone, progress, name=REFERENCE))
            progress.done_steps += INSPECTED_STEPS
    return found


def size(batch: Batch) -> tuple[int, int]:
    return batch.sequences, batch.length


def fragment(rows: list[list[str]], notes: list[str]) -> str:
    """The table and the notes below it, as Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in [COLUMNS, ["---"] * len(COLUMNS), *rows]] if rows else []
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]) + "\n"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7, help="timed alternations of each row")
    parser.add_argument("--steps", type=int, default=1, help="steps a contender takes in one timed turn")
    parser.add_argument("--warmup", type=int, default=2, help="untimed steps of each contender beforehand")
    parser.add_argument("--only", action="extend", nargs="+", default=[], metavar="WORD", help="part of a row's name")
    parser.add_argument("--no-inspect", action="store_true", help="skip the parity check and the memory figures")
    parser.add_argument("--no-overheads", action="store_true", help="skip the cost of generality and the bubble")
    parser.add_argument("--no-rows", action="store_true", help="these two alone")
    parser.add_argument("--num-layers", type=int, default=8, help="blocks, a multiple of 8")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and one pair: whether every row runs, no timing"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there, as Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser.parse_args()


def main() -> None:
    options = parse()
    shape = replace(Shape(), num_layers=options.num_layers, max_position=2048)
    if options.quick:
        shape = replace(shape, vocab_size=256, hidden_size=64, ffn_size=128)
        options.pairs = options.warmup = 1
    chosen = [c for c in cases(shape) if not options.only or any(word in c.name for word in options.only)]
    if not chosen:
        sys.exit("--only: no row has this in its name; there are:\n  " + "\n  ".join(c.name for c in cases(shape)))
    works = [] if options.no_rows else [LayoutWork(shape, c.ranks, global_batch=c.batch, case=c) for c in chosen]
    timed = 2 * (options.warmup + options.pairs * options.steps)
    inspected = 0 if options.no_inspect else 2 * INSPECTED_STEPS
    progress = Progress(total_steps=len(works) * (timed + inspected))
    expected = {} if options.no_inspect else references(works, progress)
    rows, results = [], []
    for index, work in enumerate(works):
        print(f"row {index + 1}/{len(works)}: {work.case.name} | {work.case.peer_label}", flush=True)
        results.append(run_case(work, progress, expected.get(size(work.global_batch)), options))
        rows.append(cells(work.case, results[-1], results[-1]["inspections"]))
        print("  " + " | ".join(rows[-1]), flush=True)
    notes = []
    if any(work.case.part == "context" for work in works):
        notes.append(f"`context_parallel` as it is, on this machine: {on_fresh_ranks(works[0], attempt)}")
    if not options.no_overheads:
        notes += [*generality_lines(), *bubble_lines(shape)]
    text = fragment(rows, notes)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)
    if options.json:
        options.json.write_text(
            json.dumps({"versions": versions(), "results": results, "notes": notes}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
