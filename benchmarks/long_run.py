"""Seconds and memory of what reads a run of a million steps: report, the run's document of explore, and the start of a resumed one.

    python benchmarks/long_run.py RUN [--steps 1020000] [--folder DIR] [--source OTHER/src] [--only report]

RUN is the folder of a short run that has finished. Its metrics and events are repeated into a copy, with steps and times that go on
rising, and with spikes. Every reader is a process of its own, and prints seconds on the clock, seconds of a processor, and the
largest memory that it had.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import fourfold

SPIKE_EVERY, SPIKE = 250_007, 60.0
READERS = {
    "report": "from fourfold.__main__ import main; main(['report', FOLDER, '--out', FOLDER + '/page.html'])",
    "explore": (
        "from pathlib import Path; from fourfold.api.run_feed import RunFeed; import json\n"
        "feed = RunFeed(Path(FOLDER)); feed.refresh(); print(len(json.dumps(feed.document())))"
    ),
    "explore, its first answer": (
        "from pathlib import Path; from fourfold.api.run_feed import RunFeed; import json\n"
        "feed = RunFeed(Path(FOLDER)); feed.refresh(16); print(len(json.dumps(feed.document())))"
    ),
    "explore, looked at again": (
        "from pathlib import Path; from fourfold.api.run_feed import RunFeed; import json, time\n"
        "feed = RunFeed(Path(FOLDER)); feed.refresh(); begun = time.perf_counter(); feed.refresh()\n"
        "feed.document(10_000, 60_000); print(time.perf_counter() - begun)"
    ),
    "resume: what the launcher reads": (
        "from pathlib import Path; from fourfold.launch.run_folder import RunFolder\n"
        "folder = RunFolder(Path(FOLDER)); print(folder.steps_done(), folder.finished_step())"
    ),
    "resume: what rank 0 drops": (
        "from pathlib import Path; from fourfold.train.metrics import truncate_after\n"
        "truncate_after(Path(FOLDER) / 'metrics.jsonl', STEPS - 500)"
    ),
    "resume: the display": (
        "from pathlib import Path; from fourfold.report.run_state import RunInfo, RunState\n"
        "state = RunState(RunInfo('long', Path(FOLDER), '', '', STEPS, None, None, 0)); state.refresh(); print(state.step)"
    ),
    "validate": (
        "from fourfold.__main__ import main; main(['validate', FOLDER, '--cluster', 'dgx-h100:8', '--json'])"
    ),
    "compare": "from fourfold.__main__ import main; main(['compare', FOLDER, FOLDER])",
}  # fmt: skip


def lengthen(short: Path, long: Path, steps: int) -> None:
    """Copies a run's folder and repeats its metrics until it has so many steps, and its saves and evaluations with them."""
    shutil.copytree(short, long, dirs_exist_ok=True)
    rows = [json.loads(line) for line in (short / "metrics.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in (short / "events.jsonl").read_text().splitlines()]
    first = [event for event in events if event["event"] not in ("save", "evaluate", "finish", "sample")]
    saves = [event for event in events if event["event"] in ("save", "evaluate")][:2]
    ends = [event for event in events if event["event"] in ("finish", "sample")]
    begun, tokens = first[-1]["time"], rows[-1]["tokens"] // len(rows)
    with open(long / "metrics.jsonl", "w") as metrics, open(long / "events.jsonl", "w") as out:
        for event in first:
            out.write(json.dumps(event) + "\n")
        for step in range(steps):
            row = rows[step % len(rows)]
            loss = SPIKE + step / steps if step % SPIKE_EVERY == SPIKE_EVERY - 1 else row["loss"]
            metrics.write(json.dumps({**row, "step": step, "tokens": tokens * (step + 1), "loss": loss}) + "\n")
            if step % 500 == 499:
                for event in saves:
                    out.write(json.dumps({**event, "step": step + 1, "time": begun + step * 0.05}) + "\n")
        for event in ends:
            out.write(json.dumps({**event, "step": steps, "time": begun + steps * 0.05}) + "\n")
    text = (long / "run.toml").read_text()
    (long / "run.toml").write_text(text.replace(f"steps = {len(rows)}\n", f"steps = {steps}\n", 1))


def measured(code: str, source: Path) -> tuple[float, float, float, str]:
    """Seconds on the clock, of a processor, and the largest memory in MB, of Python with this code; the last line that it said."""
    wrapped = (
        "import resource, time; begun = time.perf_counter()\n"
        f"try:\n{''.join(f'    {line}{chr(10)}' for line in code.splitlines())}"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "print(); print(time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", wrapped],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return 0.0, 0.0, 0.0, f"failed: {done.stderr.strip().splitlines()[-1]}"
    *lines, figures = done.stdout.rstrip().splitlines()
    clock, processor, memory = map(float, figures.split())
    return clock, processor, memory, next((line for line in reversed(lines) if line), "")[:60]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=1_020_000)
    parser.add_argument("--folder", type=Path, help="where the long run is made, or was made before")
    parser.add_argument("--source", type=Path, default=Path(fourfold.__file__).parents[1])
    parser.add_argument("--only", default="", help="readers whose name begins with this")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp())
    if not (folder / "metrics.jsonl").exists():
        lengthen(asked.run, folder, asked.steps)
    print(f"{asked.steps:,} steps, {(folder / 'metrics.jsonl').stat().st_size / 1e6:.0f} MB of metrics, {asked.source}")
    print(f"{'':36}{'clock s':>9}{'cpu s':>9}{'RSS MB':>9}")
    for name, code in READERS.items():
        if not name.startswith(asked.only):
            continue
        text = code.replace("FOLDER", repr(str(folder))).replace("STEPS", str(asked.steps))
        clock, processor, memory, last = measured(text, asked.source)
        print(f"{name:36}{clock:9.2f}{processor:9.2f}{memory:9.0f}  {last}", flush=True)
    if (page := folder / "page.html").exists():
        print(f"page: {page.stat().st_size / 1e6:.2f} MB")
    print(f"this process had {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
