"""The data-parallel benchmark: fourfold beside DDP, FSDP2 and DeepSpeed on the CPUs of this machine.

    python benchmarks/data_parallel.py                    every fourfold variant beside its peers
    python benchmarks/data_parallel.py --peers-only       every peer beside the same work without communication
    python benchmarks/data_parallel.py --only fsdp2       the pairs that fsdp2 stands in
    python benchmarks/data_parallel.py --only ddp:fsdp2   this pair, whatever the list below says
    python benchmarks/data_parallel.py --ranks 2 4        on 2 ranks, then on 4

First each contender runs alone for three steps: its losses and gradient norms must equal those of one process that trains
on all ranks' batches, and its peaks are taken, of live tensors and of the resident set. Then each pair is timed in alternation.
"""

import argparse
import json
import platform
import statistics
import sys
from functools import partial
from importlib import metadata
from pathlib import Path

from rich.console import Console
from rich.table import Table

from measure import INSPECTED_STEPS, REFERENCE, Progress, Work, compare, inspect, on_fresh_ranks
from peers import PEERS
from plain_llama import Shape

PAIRS = [
    ("fourfold_zero0", "ddp"),
    ("fourfold_zero1", "deepspeed_zero1"),
    ("fourfold_zero2", "fsdp2_zero2"),
    ("fourfold_zero2", "deepspeed_zero2"),
    ("fourfold_zero3", "fsdp2"),
    ("fourfold_zero3", "fsdp2_fused"),
    ("fourfold_zero3", "fsdp2_exchange"),
    ("fourfold_zero3", "fsdp2_exchange_fused"),
    ("fourfold_zero3", "deepspeed_zero3"),
    ("fourfold_zero0", "local"),
    ("fourfold_zero3", "local"),
]
PEER_PAIRS = [(name, "local") for name in PEERS if name != "local"]
CONTENDERS = [*(f"fourfold_zero{zero}{library}" for zero in range(4) for library in ("", "_onednn")), *PEERS]
LOSS_TOLERANCE = 1e-5
NORM_TOLERANCE = 1e-4  # relative; torch sums an fp32 norm over 1e6 elements to some 1e-5

COLUMNS = ["A", "B", "A s/step", "B s/step", "A tokens/s", "B tokens/s", "A/B of medians", "median A/B (min–max)"]
COLUMNS += ["A peak MB", "B peak MB", "A RSS MB", "B RSS MB"]


def chosen_pairs(only: list[str], peers_only: bool) -> list[tuple[str, str]]:
    """The pairs to time. An entry of `only` is a contender, or two with a colon between."""
    pairs = PEER_PAIRS if peers_only else PAIRS
    if not only:
        return pairs
    for name in (part for entry in only for part in entry.split(":")):
        if name not in CONTENDERS:
            raise SystemExit(f"--only {name}: no such contender; allowed are {', '.join(CONTENDERS)}; try --only ddp")
    exact = [(a, b) for a, _, b in (entry.partition(":") for entry in only) if b]
    return exact + [pair for pair in pairs if set(pair) & set(only)]


def parity_faults(inspections: dict[str, dict]) -> list[str]:
    """Differences from the reference; `local` has some by design."""
    reference = inspections[REFERENCE]
    faults = []
    for name in inspections.keys() - {REFERENCE, "local"}:
        for step in range(INSPECTED_STEPS):
            loss, expected = inspections[name]["losses"][step], reference["losses"][step]
            if not abs(loss - expected) <= LOSS_TOLERANCE:
                faults.append(f"{name}: loss {loss:.7f} at step {step}, one process has {expected:.7f}")
            norm, expected = inspections[name]["gradient_norms"][step], reference["gradient_norms"][step]
            if not abs(norm / expected - 1) <= NORM_TOLERANCE:
                faults.append(f"{name}: gradient norm {norm:.6f} at step {step}, one process has {expected:.6f}")
    return faults


def summary(names: tuple[str, str], seconds: list[list[float]], work: Work) -> dict:
    """The figures of one pair. A ratio below 1 means that A is faster."""
    ratios = [a / b for a, b in zip(*seconds, strict=True)]
    medians = [statistics.median(side) for side in seconds]
    return {
        "names": names,
        "step_seconds": seconds,
        "median_step_seconds": medians,
        "tokens_per_second": [work.tokens_per_step / median for median in medians],
        "ratio_of_medians": medians[0] / medians[1],
        "median_ratio": statistics.median(ratios),
        "min_ratio": min(ratios),
        "max_ratio": max(ratios),
    }


def cells(result: dict, inspections: dict[str, dict]) -> list[str]:
    """One row of the table, in the order of COLUMNS."""
    peaks = [
        f"{inspections[name][kind] / 1e6:.0f}" if name in inspections else "-"
        for kind in ("peak_bytes", "resident_bytes")
        for name in result["names"]
    ]
    spread = f"{result['median_ratio']:.3f} ({result['min_ratio']:.3f}–{result['max_ratio']:.3f})"
    return [
        *result["names"],
        *(f"{seconds:.3f}" for seconds in result["median_step_seconds"]),
        *(f"{rate:.0f}" for rate in result["tokens_per_second"]),
        f"{result['ratio_of_medians']:.3f}",
        spread,
        *peaks,
    ]


def versions() -> dict[str, str]:
    """Versions of the interpreter and of every library that took part."""
    found = {"python": platform.python_version()}
    for name in ("torch", "deepspeed"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default, shape = Work(), Shape()
    parser.add_argument("--ranks", type=int, nargs="+", default=[default.ranks])
    parser.add_argument("--pairs", type=int, default=7, help="timed alternations of each pair")
    parser.add_argument("--steps", type=int, default=2, help="steps a contender takes in one timed turn")
    parser.add_argument("--warmup", type=int, default=2, help="untimed steps of each contender beforehand")
    parser.add_argument("--only", action="extend", nargs="+", default=[], metavar="NAME|A:B")
    parser.add_argument("--peers-only", action="store_true", help="leave fourfold out")
    parser.add_argument("--processor-seconds", action="store_true", help="of a rank's threads, beside other work")
    parser.add_argument("--no-inspect", action="store_true", help="skip the parity check and the memory figures")
    parser.add_argument("--no-timing", action="store_true", help="the parity check and the memory figures alone")
    parser.add_argument("--sequences-per-rank", type=int, default=default.sequences_per_rank)
    parser.add_argument("--sequence-length", type=int, default=default.sequence_length)
    parser.add_argument("--learning-rate", type=float, default=default.learning_rate)
    parser.add_argument("--seed", type=int, default=default.seed)
    for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "ffn_size"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(shape, name))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--markdown", action="store_true", help="print the table as rows of Markdown too")
    return parser.parse_args()


def work_of(options: argparse.Namespace, ranks: int) -> Work:
    shape = Shape(
        vocab_size=options.vocab_size,
        hidden_size=options.hidden_size,
        num_layers=options.num_layers,
        num_heads=options.num_heads,
        num_kv_heads=options.num_kv_heads,
        ffn_size=options.ffn_size,
        max_position=options.sequence_length,
    )
    sizes = options.sequences_per_rank, options.sequence_length
    return Work(shape, ranks, *sizes, options.learning_rate, options.seed, options.processor_seconds)


def main() -> None:
    options = parse()
    pairs = chosen_pairs(options.only, options.peers_only)
    names = [] if options.no_inspect else [REFERENCE, *dict.fromkeys(name for pair in pairs for name in pair)]
    timed = [] if options.no_timing else pairs
    steps = len(names) * INSPECTED_STEPS + len(timed) * 2 * (options.warmup + options.pairs * options.steps)
    progress = Progress(total_steps=len(options.ranks) * steps)
    runs = [measure(options, work_of(options, ranks), names, timed, progress) for ranks in options.ranks]
    if options.json:
        document = {"versions": versions(), "options": vars(options) | {"json": str(options.json)}, "runs": runs}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


def measure(
    options: argparse.Namespace, work: Work, names: list[str], pairs: list[tuple[str, str]], progress: Progress
) -> dict:
    """Inspects the contenders, times the pairs and prints their table; the figures."""
    inspections = {}
    for index, name in enumerate(names):
        print(f"{work.ranks} ranks, alone {index + 1}/{len(names)}: {name}", flush=True)
        inspections[name] = on_fresh_ranks(work, partial(inspect, work, progress, name=name))
        progress.done_steps += INSPECTED_STEPS
    if names and (faults := parity_faults(inspections)):
        sys.exit("contenders do not train alike:\n  " + "\n  ".join(faults))

    results = []
    turns = {"warmup": options.warmup, "pairs": options.pairs, "steps": options.steps}
    for index, pair in enumerate(pairs):
        print(f"{work.ranks} ranks, pair {index + 1}/{len(pairs)}: {pair[0]} | {pair[1]}", flush=True)
        seconds = on_fresh_ranks(work, partial(compare, work, progress, names=pair, **turns))
        progress.done_steps += 2 * (options.warmup + options.pairs * options.steps)
        results.append(summary(pair, seconds, work))

    rows = [cells(result, inspections) for result in results]
    table = Table(*COLUMNS, title=f"{work.ranks} ranks, {work.tokens_per_step} tokens a step, fp32")
    for row in rows:
        table.add_row(*row)
    if rows:
        Console(width=200).print(table)
    if options.markdown:
        print("\n".join("| " + " | ".join(row) + " |" for row in [COLUMNS, ["---"] * len(COLUMNS), *rows]))
    return {"ranks": work.ranks, "inspections": inspections, "results": results}


if __name__ == "__main__":
    main()
