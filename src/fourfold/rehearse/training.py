"""All of a training, rehearsed in small on devices that are not there: launch, store, groups, trials of kernels, steps, saves,
evaluations, a sample, the end, and a start from the last save.

The ranks are real processes with real numbers under a real supervisor; torch says in each that it has CUDA (`fake_devices`).
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fourfold.config import UserError
from fourfold.config.run_file import dump_run
from fourfold.config.run_rows import read_rows
from fourfold.hardware import Cluster
from fourfold.launch.external import without_launcher
from fourfold.launch.host_memory import HostNeed, host_line
from fourfold.launch.resolve import ResolvedRun
from fourfold.rehearse.journal import RehearsalFault
from fourfold.rehearse.small import RESUMED_STEPS, SmallRun, small_run

DEVICES = "FOURFOLD_FAKE_DEVICES"
STOP_SECONDS = 10.0
"""Seconds that a training in small has to end its ranks after somebody stops the rehearsal."""
ON_IMPORT = Path(__file__).parent / "on_import"
_OWN = "FOURFOLD_"
"""The beginning of variables of a supervisor around this process, which are for its own ranks."""


class NoSmallRun(UserError):
    """Some size of the run in small does not divide, as those of a person's own block may."""


@dataclass(frozen=True)
class TrainingRehearsal:
    """A training in small that went well. `events`: how often each was written."""

    small: SmallRun
    events: Counter[str]
    seconds: float


def rehearse_training(resolved: ResolvedRun) -> TrainingRehearsal:
    """Trains the run in small, and once more from its last save. Raises `NoSmallRun` where there is none, and `RehearsalFault` with
    the run's own message where it fails."""
    begun, folder, is_kept = time.monotonic(), Path(tempfile.mkdtemp(prefix="fourfold-rehearsal-")), False
    try:
        try:
            small = small_run(resolved, folder)
        except UserError as error:
            raise NoSmallRun(str(error)) from error
        (folder / "run.toml").write_text(dump_run(small.config), encoding="utf-8")
        _train(folder, small.ranks)
        _train(folder, small.ranks, f"batch.steps={RESUMED_STEPS}")
        events = Counter(str(row.get("event")) for row in read_rows(folder / "run" / "events.jsonl"))
        return TrainingRehearsal(small, events, time.monotonic() - begun)
    except RehearsalFault:
        is_kept = True  # its logs tell more
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def require_host_memory(need: HostNeed, cluster: Cluster | None) -> None:
    """Raises `RehearsalFault` where a machine of the cluster has less memory than its ranks pin, as far as that is known."""
    if cluster is not None and cluster.host_memory_bytes_per_device is not None:
        available = cluster.host_devices * cluster.host_memory_bytes_per_device
        for line in host_line(need, cluster.host_devices, available, f"a machine of {cluster.key}"):
            raise RehearsalFault(line)


def _train(folder: Path, ranks: int, *changes: str) -> None:
    """One launch, in a process of its own. Raises `RehearsalFault` where it does not end well."""
    command = [sys.executable, "-m", "fourfold", "train", str(folder / "run.toml"), *changes]
    environment = {key: value for key, value in without_launcher(os.environ).items() if not key.startswith(_OWN)}
    paths = [str(ON_IMPORT), *filter(None, [environment.get("PYTHONPATH")])]
    environment |= {"PYTHONPATH": os.pathsep.join(paths), DEVICES: str(ranks), "XDG_CACHE_HOME": str(folder / "cache")}
    with open(folder / "printed", "w+", encoding="utf-8", errors="replace") as printed:
        process = subprocess.Popen(
            [*command, "--ranks", str(ranks), "--out", str(folder / "run")],
            stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait()
        except BaseException:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        if code != 0:
            printed.seek(0)
            message = _message(printed.read())
            raise RehearsalFault(
                f"a training in small of {ranks} ranks ends with exit code {code}: {message}; it is kept in {folder}"
            )


def _message(printed: str) -> str:
    """The error that a launch ended with, on one line."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    first = next((index for index, line in enumerate(lines) if line.startswith("error: ")), max(0, len(lines) - 3))
    return lines[first].removeprefix("error: ") if lines else "nothing was printed"
