"""All of `device.sh`: one part after the other, each a process with a limit of its own, and one JSON of whatever they found.

    bash benchmarks/device.sh [--minutes 10] [--out DIR] [--only PART ...] [--list]

A part that fails or hangs does not stop the others. The record is `DIR/device.json`, written anew after each part. Called again on
the same tree and machine, it goes on where it stopped: parts that passed are left out, and so is each figure that a part had taken
before it was cut off. Without a CUDA device the same code runs on tiny shapes. Exit code 1 where a part failed.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from device_record import FIGURES, read_figures

ROOT = Path(__file__).parents[1]
LEAST_SECONDS = 5
TAIL = 20
FOURFOLD = ("cyclopts", "fsspec", "numpy", "pydantic", "rich", "tomli_w")
TRAINING = (*FOURFOLD, "tokenizers", "safetensors", "xxhash", "zstandard")
TESTING = (*TRAINING, "pytest", "hypothesis", "transformers")


@dataclass(frozen=True)
class Part:
    """A part, its limit in seconds, its command after the interpreter, and the packages that it needs."""

    name: str
    title: str
    seconds: int
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()


def parts(folder: Path, cuda: int) -> list[Part]:
    """In order of what a first hour on a device needs to know."""
    device = str(folder / "this-device.toml")
    own, runs = "benchmarks/device.py", "benchmarks/device_runs.py"
    calibrate = ("-m", "fourfold", "calibrate", "--out", device, "--device", "cuda" if cuda else "cpu")
    rehearse = ("-m", "fourfold", "train", "preset:llama3.1-8b-128", "--rehearse")
    return [
        Part("machine", "the machine", 30, (own, "machine")),
        Part(
            "tests", "tests on a device: parity of kernels, of one rank, of every axis", 200, (runs, "tests"), TESTING
        ),
        Part("kill", "a run, its rank killed, and the same run undisturbed", 90, (runs, "kill"), TRAINING),
        Part("graphs", "a run whose steps a CUDA graph replays", 60, (runs, "graphs"), TRAINING),
        Part("memory", "a run that runs out of memory", 60, (runs, "memory"), TRAINING),
        Part("ways", "runs that take other ways through the runtime", 120, (runs, "ways"), TRAINING),
        Part("calibrate", "this device as a file", 100, (*calibrate, "--seconds", "50" if cuda else "10"), FOURFOLD),
        Part("steps", "steps beside predictions and plain torch", 240, (own, "steps", "230", device), FOURFOLD),
        Part("kernels", "kernels of an 8B Llama", 60, (own, "kernels"), FOURFOLD),
        Part("pieces", "memory-bound pieces beside other ways", 60, ("benchmarks/device_pieces.py",), FOURFOLD),
        Part("rehearsal", "rehearsal of a run of 128 devices", 60, rehearse, FOURFOLD),
        Part("rehearsals", "rehearsals of small layouts", 120, ("-m", "pytest", "-q", "tests/rehearse"), TESTING),
    ]


class Record:
    """`device.json`: what tree and machine it is of, and by part how it ended and what it found."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self._folder, self._path = folder, folder / "device.json"
        earlier = _read(self._path)
        same = earlier.get("identity") == identity
        self.parts: dict[str, Any] = earlier["parts"] if same else {}
        self._values = {"identity": identity, "begun": earlier["begun"] if same else _now()}
        if not same:
            for path in folder.glob("*.figures"):
                path.unlink()

    def figures(self, part: str) -> Path:
        """The file to which a part appends."""
        return self._folder / f"{part}.figures"

    def passed(self, part: str) -> bool:
        return bool(self.parts.get(part, {}).get("status") == "passed")

    def write(self, part: str, **values: Any) -> None:
        """Whole or not at all."""
        latest = {each["name"]: each for each in read_figures(self.figures(part))}
        self.parts[part] = {**values, "figures": list(latest.values())}
        text = json.dumps({**self._values, "written": _now(), "parts": self.parts}, indent=1)
        beside = self._path.with_suffix(".new")
        beside.write_text(text + "\n")
        beside.replace(self._path)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and {"identity", "begun", "parts"} <= set(found) else {}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def tree() -> str:
    """A digest of what the parts run: a change of it makes earlier figures another tree's."""
    found = sha256()
    for folder in ("src", "benchmarks", "tests"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def run(part: Part, limit: float, record: Record) -> str:
    """`passed`, `failed` or `cut`, after the part's process and all that it started have ended."""
    record.write(part.name, status="cut", seconds=None, output=[])  # unless this process lives to say otherwise
    environment = {**os.environ, FIGURES: str(record.figures(part.name))}
    begun, tail, cut = time.monotonic(), deque[str](maxlen=TAIL), threading.Event()
    process = subprocess.Popen(
        [sys.executable, "-u", *part.command], cwd=ROOT, env=environment, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None

    def stop() -> None:
        cut.set()
        _kill(process)

    timer = threading.Timer(limit, stop)
    timer.start()
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            tail.append(line.rstrip("\n"))
        process.wait()
    finally:
        timer.cancel()
        _kill(process)  # what it started and left
    status = "cut" if cut.is_set() else "passed" if process.returncode == 0 else "failed"
    record.write(part.name, status=status, seconds=round(time.monotonic() - begun, 1), output=list(tail))
    return status


def _kill(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def identity() -> dict[str, Any]:
    """The tree and the machine whose figures may stand in one record."""
    import torch

    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    python = ".".join(map(str, sys.version_info[:3]))
    return {"tree": tree(), "python": python, "torch": torch.__version__, "host": platform.node(), "devices": devices}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all parts of this call together")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "device-results"))
    parser.add_argument("--only", nargs="+", metavar="PART", default=[])
    parser.add_argument("--list", action="store_true", help="name the parts")
    options = parser.parse_args()
    begun = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    folder = options.out.resolve()
    found = identity()
    every = parts(folder, len(found["devices"]))
    if options.list:
        print("\n".join(f"{part.name:<12} {part.seconds:4} s  {part.title}" for part in every))
        return 0
    unknown = sorted(set(options.only) - {part.name for part in every})
    if unknown:
        parser.error(f"--only {unknown[0]}: no such part; one of {', '.join(part.name for part in every)}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    record = Record(folder, found)
    left_out, ends = [], dict[str, str]()
    for part in every:
        left = 60 * options.minutes - (time.monotonic() - begun)
        missing = [name for name in part.needs if find_spec(name) is None]
        if options.only and part.name not in options.only:
            continue
        if record.passed(part.name):
            left_out.append(part.name)
        elif missing:
            why = f"not installed: {', '.join(missing)}"
            print(f"unmeasured: {part.title}: {why}", flush=True)
            record.write(part.name, status="unmeasured", why=why)
        elif left < LEAST_SECONDS:
            print(f"unmeasured: {part.title}: the {options.minutes:g} minutes are used up; call it again", flush=True)
        else:
            print(f"\n== {part.name}: {part.title}", flush=True)
            ends[part.name] = run(part, min(part.seconds, left), record)
            print(f"-- {ends[part.name]}, {record.parts[part.name]['seconds']} s", flush=True)
    if left_out:
        print(f"\npassed in an earlier call on this tree and machine: {', '.join(left_out)}")
    words = ", ".join(f"{name} {end}" for name, end in ends.items() if end != "passed")
    print(f"\n{time.monotonic() - begun:.0f} s; {words or 'all passed'}; {folder / 'device.json'}")
    return int("failed" in ends.values())


if __name__ == "__main__":
    sys.exit(main())
