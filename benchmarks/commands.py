"""Processor seconds of the planning commands, and of another version of them in alternation.

    python benchmarks/commands.py [--against OTHER/src] [--pairs 3] [--only simulate] [--core 0] [--markdown FILE]

Every turn is a whole command in a process of its own on one core, and counts user and system time, which others on the machine
change less than the time on the clock. Sources are compiled before.
"""

import argparse
import compileall
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import fourfold

ASKED = ["--sequence-length", "8192", "--batch-tokens", "16M"]
COMMANDS = {
    "simulate, 405B on 8,192": ["simulate", "preset:llama3-405b-8k", "--cluster", "h100-24576"],
    "simulate, DeepSeek-V3 on 2,048": ["simulate", "preset:deepseek-v3-2k", "--cluster", "h800-2048"],
    "plan, 405B on 1,024": ["plan", "--model", "llama3-405b", "--cluster", "dgx-h100:1024", *ASKED],
    "plan, 405B on 24,576": ["plan", "--model", "llama3-405b", "--cluster", "h100-24576", *ASKED],
    "plan, 405B on 24,576, its preset": ["plan", "preset:llama3-405b-8k", "--cluster", "h100-24576"],
    "plan, 405B on 98,304": ["plan", "--model", "llama3-405b", "--cluster", "dgx-h100:98304", *ASKED],
    "plan, DeepSeek-V3 on 2,048": [
        *("plan", "--model", "deepseek-v3", "--cluster", "h800-2048"),
        *("--sequence-length", "4096", "--batch-sequences", "15360"),
    ],
}


def processor_seconds(source: Path, arguments: list[str]) -> float:
    """User and system seconds of a command with the package in `source`. 1 is an answer too: it does not fit."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "fourfold", *arguments, "--json"],
        env={**environment, "PYTHONPATH": str(source)},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        sys.exit(f"failed: fourfold {' '.join(arguments)}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def words(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.3g} ({min(seconds):.3g}–{max(seconds):.3g})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the src folder of another version")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--only", default="", help="commands whose name begins with this")
    parser.add_argument("--core", type=int)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0)) if options.core is None else options.core})
    sources = [Path(fourfold.__file__).parents[1], *([options.against.resolve()] if options.against else [])]
    for source in sources:
        compileall.compile_dir(source, quiet=1)
    rows = ["| | s |" + (" s, other version | share |" if options.against else ""), "|---" * (2 * len(sources)) + "|"]
    print("\n".join(rows), flush=True)
    for name, arguments in COMMANDS.items():
        if not name.startswith(options.only):
            continue
        taken: list[list[float]] = [[] for _ in sources]
        for pair in range(options.pairs):
            for side in range(len(sources)) if pair % 2 == 0 else reversed(range(len(sources))):
                taken[side].append(processor_seconds(sources[side], arguments))
        cells = [words(each) for each in taken]
        if options.against:
            cells.append(f"{statistics.median(a / b for a, b in zip(*taken, strict=True)):.2f}")
        rows.append(f"| {name} | {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    if options.markdown:
        options.markdown.write_text("\n".join([*rows, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
