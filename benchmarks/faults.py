"""Recovery on this machine, with real ranks and real signals: kill to next step, detection, hangs of four kinds, a kill storm; and
runs without a fault on a loaded machine, of which no rank may be said to have failed.

python benchmarks/faults.py [--kills 10] [--memory-kills 10] [--stops 10] [--hangs 100] [--storm-steps 2000] [--mean 5] [--ranks 2]
                            [--regular-steps 400] [--every 100]
                            [--clean-minutes 0] [--load 4]
"""

import argparse
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from fourfold.runtime.progress import TRAINING
from tests.support.hangs_in_turn import CAUSES, hang_in_turn
from tests.support.supervised import Supervised, left_by, read_lines, write_run

FOR_EVER = "batch.steps=1000000"
CLEAN = (
    (2, ("layout.zero=1",)),
    (4, ("layout.zero=3",)),
    (4, ("layout.tp=2", "layout.zero=2")),
    (4, ("layout.pp=2", "layout.zero=1", "layout.microbatch_sequences=1")),
    (3, ("layout.zero=0", "faults.checksum_every_steps=5", "faults.replay_every_steps=5")),
    (2, ("layout.cp=2", "layout.zero=1")),
    (2, ("layout.zero=2", "model.hidden_size=512", "model.ffn_size=1376", "batch.sequence_length=256")),
    (4, ("layout.zero=3", "model.hidden_size=512", "model.ffn_size=1376", "checkpoint.every_steps=2")),
)
"""Ranks and layouts of the runs without a fault; the last two with instructions that take long on a loaded machine."""
LARGE = ("model.hidden_size=256", "model.ffn_size=688", "model.num_layers=4", "batch.sequence_length=256")
CLEAN_SECONDS = 90.0


def server_of(run: Supervised) -> int:
    """The process that forks ranks."""
    return int(Path(f"/proc/{run.pids[0]}/stat").read_text().rpartition(")")[2].split()[1])


def beginnings(run: Supervised) -> list[dict]:
    """The events with which ranks begin to train."""
    return run.events("start") + run.events("resume")


def seconds_to_next_step(run: Supervised, kill: Callable[[], None]) -> float:
    """From a kill until all ranks have finished a step after it."""
    before = len(beginnings(run))
    kill()
    begun = time.monotonic()
    run.wait_until(lambda: len(beginnings(run)) > before, 120)
    resumed = beginnings(run)[-1]["step"]
    run.wait_until(lambda: run.pids and all(p.kind == TRAINING and p.step > resumed for p in run.positions), 120)
    return time.monotonic() - begun


def recoveries(run_file: Path, out: Path, kills: int, ranks: int, cold: bool, *changes: str) -> list[float]:
    found = []
    with Supervised(run_file, out, FOR_EVER, "faults.restarts=1000", *changes, ranks=ranks) as run:
        run.wait_for_step(10)
        for kill in range(kills):
            victim = server_of(run) if cold else run.pids[kill % ranks]
            found.append(seconds_to_next_step(run, lambda victim=victim: os.kill(victim, signal.SIGKILL)))
            run.wait_for_step(beginnings(run)[-1]["step"] + random.randrange(6, 14))
    return found


def from_memory(run_file: Path, out: Path, kills: int, ranks: int) -> None:
    """Kills of a run that copies its state to memory after every step, and to disk never."""
    keys = ("checkpoint.memory_every_steps=1", "checkpoint.every_steps=1000000")
    seconds = recoveries(run_file, out, kills, ranks, False, *keys)
    events = [row for row in read_lines(out / "events.jsonl") if row["event"] in ("failure", "resume")]
    pairs = [(a, b) for a, b in itertools.pairwise(events) if (a["event"], b["event"]) == ("failure", "resume")]
    lost = [failed["step"] - resumed["step"] for failed, resumed in pairs]
    sources = sorted({resumed["source"] for _, resumed in pairs})
    copies = [row["memory_copy_seconds"] for row in read_lines(out / "metrics.jsonl")]
    print(
        f"kill to next finished step, from {', '.join(sources)}: {spread(seconds)}; steps lost: {max(lost)} at most; a copy held "
        f"training up for {1000 * statistics.median(copies):.1f} ms in the median of {len(copies)}",
        flush=True,
    )


def detections(run_file: Path, out: Path, times: int, ranks: int) -> tuple[list[float], int]:
    """Seconds from SIGSTOP to the event that names the rank, and how often it named the right one."""
    found, right = [], 0
    with Supervised(run_file, out, FOR_EVER, "faults.restarts=1000", ranks=ranks) as run:
        run.wait_for_step(10)
        for number in range(times):
            rank, begins = number % ranks, len(beginnings(run))
            run.signal_rank(rank, signal.SIGSTOP)
            begun = time.time()
            run.wait_until(lambda number=number: len(run.events("failure")) > number, 120)
            event = run.events("failure")[-1]
            found.append(event["time"] - begun)
            right += event["rank"] == rank and bool(event.get("instruction") or "step" in event)
            run.wait_until(lambda begins=begins: len(beginnings(run)) > begins, 120)
            run.wait_for_step(beginnings(run)[-1]["step"] + 6)
    return found, right


def hangs(run_file: Path, out: Path, times: int, ranks: int) -> None:
    """Ranks that hang in four ways in turn: how each kind was named, and how soon."""
    named = hang_in_turn(run_file, out, times, ranks)
    for kind, cause in CAUSES.items():
        own = [each for each in named if each.kind == kind]
        seconds = [each.seconds for each in own]
        soon = sum(each < 5 for each in seconds)
        print(
            f"{cause}: right in {sum(e.right for e in own)} of {len(own)}; {spread(seconds)}, {soon} within 5 s",
            flush=True,
        )


def storm(run_file: Path, folder: Path, steps: int, mean: float, ranks: int) -> None:
    """A run without and under kills at random times, `mean` seconds apart."""
    times = []
    for name in ("undisturbed", "storm"):
        begun, draw = time.monotonic(), random.Random(0)
        with Supervised(run_file, folder / name, f"batch.steps={steps}", "faults.restarts=1000", ranks=ranks) as run:
            while name == "storm" and run.process.poll() is None:
                time.sleep(draw.expovariate(1 / mean))
                if run.process.poll() is None and (pids := run.pids):
                    os.kill(draw.choice(pids), signal.SIGKILL)
            assert run.finish(3600) == 0, run.printed
            times.append(time.monotonic() - begun)
            kills = len(run.events("failure"))
    equal = left_by(folder / "undisturbed") == left_by(folder / "storm")
    line = next(
        (line for line in run_lines(folder / "storm.txt") if line.startswith("goodput")), "goodput not reported"
    )
    print(
        f"storm: {steps} steps, {kills} kills, equal to the bit: {equal}; {times[0]:.1f} s undisturbed, {times[1]:.1f} s; {line}"
    )


def regular(run_file: Path, folder: Path, steps: int, every: int, ranks: int) -> None:
    """A run twice, without a fault and with a kill every so many steps: the time to finish. Its steps take some tenths of a
    second, which leave a restart its share; the shorter a step, the larger that is."""
    changes = (*LARGE, f"batch.steps={steps}", "faults.restarts=1000")
    times = []
    for name in ("regular-undisturbed", "regular-killed"):
        begun = time.monotonic()
        with Supervised(run_file, folder / name, *changes, ranks=ranks) as run:
            for number, step in enumerate(range(every // 2, steps, every) if name == "regular-killed" else ()):
                run.wait_for_step(step, 3600)
                run.kill_rank(number % ranks)
            assert run.finish(3600) == 0, run.printed
            times.append(time.monotonic() - begun)
            kills = len(run.events("failure"))
    equal = left_by(folder / "regular-undisturbed") == left_by(folder / "regular-killed")
    print(
        f"a kill every {every} steps: {steps} steps of {times[0] / steps:.2f} s, {kills} kills, equal to the bit: {equal}; "
        f"{times[0]:.1f} s undisturbed, {times[1]:.1f} s: {times[1] / times[0]:.3f} x",
        flush=True,
    )


def clean(run_file: Path, folder: Path, minutes: float, load: int) -> None:
    """Runs without a fault, one after another beside `load` processes that compute, and what was said of them."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: sum(range(1000))"]) for _ in range(load)]
    begun, runs, steps, slow, loads, verdicts = time.monotonic(), 0, 0, 0, [], []
    try:
        while time.monotonic() - begun < 60 * minutes:
            ranks, changes = CLEAN[runs % len(CLEAN)]
            with Supervised(
                run_file, folder / f"clean-{runs}", FOR_EVER, *changes, "run.evaluate_every=20", ranks=ranks
            ) as run:
                run.wait_for_step(0, 600)
                until = time.monotonic() + CLEAN_SECONDS
                while run.process.poll() is None and time.monotonic() < until:
                    time.sleep(1)
                loads.append(os.getloadavg()[0])
                steps += max((place.step for place in run.positions), default=0)
                run.process.terminate()
                run.finish()
                slow += len(run.events("straggler"))
                verdicts += [f"{changes}: {event['message']}" for event in run.events("failure")]
            runs += 1
    finally:
        for process in busy:
            process.kill()
    print(
        f"{(time.monotonic() - begun) / 60:.0f} minutes without a fault: {runs} runs, {steps} steps, load average "
        f"{min(loads):.1f} to {max(loads):.1f}: {len(verdicts)} false verdicts, {slow} ranks flagged as slow",
        *verdicts,
        sep="\n",
        flush=True,
    )


def run_lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def spread(values: list[float]) -> str:
    return f"median {statistics.median(values):.2f} s, {min(values):.2f} to {max(values):.2f} s, {len(values)} times"


def main() -> None:
    parser = argparse.ArgumentParser(description="Recovery and detection, measured. A count of 0 leaves that part out.")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--memory-kills", type=int, default=10)
    parser.add_argument("--stops", type=int, default=10)
    parser.add_argument("--hangs", type=int, default=100)
    parser.add_argument("--storm-steps", type=int, default=2000)
    parser.add_argument("--regular-steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=100, help="steps from one kill to the next of the regular ones")
    parser.add_argument("--mean", type=float, default=5.0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--clean-minutes", type=float, default=0.0)
    parser.add_argument("--load", type=int, default=4, help="processes that compute beside the runs without a fault")
    options = parser.parse_args()
    print(f"load average at the start: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_file = write_run(folder)
        if options.kills:
            warm = recoveries(run_file, folder / "warm", options.kills, options.ranks, cold=False)
            print(f"kill to next finished step, warm: {spread(warm)}", flush=True)
            cold = recoveries(run_file, folder / "cold", max(2, options.kills // 3), options.ranks, cold=True)
            print(f"kill to next finished step, cold: {spread(cold)}", flush=True)
        if options.memory_kills:
            from_memory(run_file, folder / "memory", options.memory_kills, options.ranks)
        if options.stops:
            stops, right = detections(run_file, folder / "stops", options.stops, options.ranks)
            print(f"SIGSTOP to its name: {spread(stops)}; right in {right} of {len(stops)}", flush=True)
        if options.hangs:
            hangs(run_file, folder / "hangs", options.hangs, options.ranks)
        if options.storm_steps:
            storm(run_file, folder, options.storm_steps, options.mean, options.ranks)
        if options.regular_steps:
            regular(run_file, folder, options.regular_steps, options.every, options.ranks)
        if options.clean_minutes:
            clean(run_file, folder, options.clean_minutes, options.load)


if __name__ == "__main__":
    main()
