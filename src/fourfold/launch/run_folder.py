"""A run's folder before and between its launches: made whole or not at all, locked while in use, resumed only as itself."""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fourfold.config import RunConfig, RunFailure, UserError, dump_run, load_run, num_steps
from fourfold.config.whole_file import write_whole
from fourfold.train.metrics import read_jsonl

RUN_FILE, DATA_FILE, METRICS, EVENTS, LOGS = "run.toml", "data.json", "metrics.jsonl", "events.jsonl", "logs"
_LOCK = ".lock"
_ORDER = (
    "data",
    "batch",
    "layout",
    "precision",
    "optimizer",
    "model",
    "checkpoint",
    "cluster",
    "run",
    "faults",
    "published",
)
_MAY_CHANGE = frozenset(
    (
        "batch.steps",
        "batch.tokens",
        "checkpoint.every_steps",
        "checkpoint.keep",
        "data.document_tokens",
        "faults.attempts",
        "faults.restarts",
        "faults.stall_seconds",
        "faults.straggler_ratio",
        "run.evaluate_every",
        "run.evaluate_sequences",
        "run.log",
        "run.sample_tokens",
        "run.timeout_seconds",
    )
)


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run's folder, which may not exist yet."""

    path: Path

    @property
    def run_file(self) -> Path:
        return self.path / RUN_FILE

    @property
    def data_file(self) -> Path:
        return self.path / DATA_FILE

    @property
    def metrics(self) -> Path:
        return self.path / METRICS

    @property
    def events(self) -> Path:
        return self.path / EVENTS

    def log(self, rank: int) -> Path:
        return self.path / LOGS / f"rank-{rank:05d}.log"

    def checkpoint_root(self, config: RunConfig) -> Path:
        """Where the run's checkpoints lie: `checkpoint.directory`, or the folder's own."""
        stated = config.checkpoint.directory
        return Path(stated).expanduser() if stated is not None else self.path / "checkpoints"

    def saved_steps(self, config: RunConfig) -> list[int]:
        """Steps of the complete checkpoints, rising."""
        found = self.checkpoint_root(config).glob("step-*/manifest.json")
        names = [path.parent.name.removeprefix("step-") for path in found]
        return sorted(int(name) for name in names if name.isdecimal())

    def config(self) -> RunConfig | None:
        """The config of the run that stands here; None for a folder that is new, empty or absent.

        Raises `UserError` for a folder that holds something else.
        """
        if self.run_file.is_file():
            return load_run(self.run_file)
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path}: is a file; name a new folder, for example --out {self.path}-run")
        if self.path.is_dir() and any(entry.name != _LOCK for entry in self.path.iterdir()):
            raise UserError(
                f"--out {self.path}: the folder is not empty and holds no {RUN_FILE}, so it is no run; name a new folder, "
                f"for example --out {self.path / 'run-1'}"
            )
        return None

    def require_config(self) -> RunConfig:
        """The config of the run that stands here. Raises `UserError` where none does."""
        if not self.run_file.is_file():
            raise UserError(
                f"{self.path}: holds no {RUN_FILE}; name a folder that fourfold train wrote, for example runs/tiny"
            )
        return load_run(self.run_file)

    def data(self) -> dict[str, Any]:
        """The content of `data.json`; empty where it is missing or damaged: the data are then prepared again."""
        try:
            table = json.loads(self.data_file.read_bytes())
        except (OSError, ValueError):
            return {}
        return table if isinstance(table, dict) else {}

    def steps_done(self) -> int:
        """Steps whose metrics were written; metrics count steps from 0."""
        return max((int(row.get("step", 0)) + 1 for row in read_jsonl(self.metrics)), default=0)

    def finished_step(self) -> int | None:
        """The step at which the run finished, or None while it has not (or was continued since)."""
        finished = None
        for row in read_jsonl(self.events):
            if row.get("event") in ("start", "resume"):
                finished = None
            elif row.get("event") == "finish":
                finished = int(row.get("step") or self.steps_done())
        return finished

    def write(self, config: RunConfig, data: dict[str, Any]) -> None:
        """Makes the folder with both files, or replaces them. Raises `RunFailure` when the disk does not take them."""
        texts = {RUN_FILE: dump_run(config), DATA_FILE: json.dumps(data, indent=1) + "\n"}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not self.path.is_dir() or not any(self.path.iterdir()):
                _create_at_once(self.path, texts)
                return
            for name, text in texts.items():  # data.json last: other ranks wait for it
                write_whole(self.path / name, text)
            (self.path / LOGS).mkdir(exist_ok=True)
        except OSError as error:
            raise RunFailure(
                f"--out {self.path}: the run's folder cannot be written ({error.strerror}); name one on a disk with room "
                f"that you can write, with --out"
            ) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder, which exists. Raises `UserError` where another launch does."""
        with open(self.path / _LOCK, "a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise UserError(
                    f"--out {self.path}: this run is in progress (process {lock.read().strip() or 'unknown'}); wait for it, "
                    f"or name another folder with --out"
                ) from None
            except OSError:  # a file system without locks: two launches are then the user's own affair
                yield
                return
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield


def _create_at_once(path: Path, texts: dict[str, str]) -> None:
    """Writes a folder aside and renames it into place."""
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        os.chmod(aside, 0o755)
        for name, text in texts.items():
            (aside / name).write_text(text, encoding="utf-8")
        (aside / LOGS).mkdir()
        os.rename(aside, path)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def check_same_run(path: Path, old: RunConfig, new: RunConfig) -> None:
    """Raises `UserError` naming the first key in which a repeated command differs from the run that stands in `path`."""
    for key, before, now in _differences(old, new):
        if key not in _MAY_CHANGE:
            raise UserError(
                f"--out {path}: holds another run: {key} = {_show(now)} here, {_show(before)} there; name another folder, for "
                f"example --out {path}-2{_how_to_agree(key, before, old)}"
            )
    if (steps := num_steps(new)) < num_steps(old):
        raise UserError(
            f"--out {path}: batch.steps = {steps} is fewer than the {num_steps(old)} of the run that stands there; allowed: "
            f"at least {num_steps(old)}, or another folder with --out"
        )


def _differences(old: RunConfig, new: RunConfig) -> list[tuple[str, Any, Any]]:
    before, now = (config.model_dump(mode="json") for config in (old, new))
    return [
        (f"{section}.{key}", before[section].get(key), value)
        for section in _ORDER
        for key, value in now[section].items()
        if value != before[section].get(key)
    ]


def _show(value: Any) -> str:
    return "not stated" if value is None else json.dumps(value)


def _how_to_agree(key: str, value: Any, old: RunConfig) -> str:
    if value is None or isinstance(value, (list, dict)):
        return ""
    if key == "layout.dp_shard":
        layout = old.layout
        ranks = layout.pp * layout.dp_replicate * value * layout.cp * layout.tp
        return f", or use --ranks {ranks} to go on with that run"
    return f", or state {key}={value if isinstance(value, str) else json.dumps(value)} to go on with that run"
