"""One run in which ranks hang in four ways in turn, and how each was named: a collective left out, an endless loop, a data reader
that sleeps, SIGSTOP."""

from dataclasses import dataclass
from pathlib import Path

from tests.support.supervised import Supervised

EVERY = 10
CAUSES = {"skip": "skipped", "loop": "looping", "sleep": "hung", "stop": "stopped"}


@dataclass(frozen=True)
class Named:
    """A fault, whether rank, step and cause were named rightly with an instruction, and seconds until then."""

    kind: str
    right: bool
    seconds: float
    message: str


def hang_in_turn(run_file: Path, out: Path, times: int, ranks: int = 2) -> list[Named]:
    """`times` faults. Faults are noted in the run file's folder, with the time of each."""
    fault = f"in_turn:{ranks}:{EVERY}:1"
    with Supervised(run_file, out, "batch.steps=1000000", "faults.restarts=1000", ranks=ranks, fault=fault) as run:
        run.wait_until(lambda: len(run.events("failure")) >= times, 60.0 * times)
        events = run.events("failure")
    found = []
    for number, event in enumerate(events[:times]):
        kind, rank, step = list(CAUSES)[number % 4], number // 4 % ranks, (number + 1) * EVERY
        wanted, got = (rank, step, CAUSES[kind]), (event["rank"], event["step"], event["cause"])
        mark = run_file.parent / f"{kind}-{rank}-{step}"
        seconds = event["time"] - float(mark.read_text().split()[0]) if mark.exists() else float("nan")
        found.append(Named(kind, wanted == got and bool(event.get("instruction")), seconds, event["message"]))
    return found
