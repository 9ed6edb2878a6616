"""A run's folder before and between its launches: made whole or not at all, and locked while in use."""

import errno
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from fourfold.config import RunConfig, RunFailure, UserError, dump_run, load_run
from fourfold.config.remote_path import place
from fourfold.config.run_file import require_trust
from fourfold.config.run_rows import newest_rows
from fourfold.config.stages import STAGE, Course, Stage, course_of
from fourfold.config.whole_file import write_whole

RUN_FILE, DATA_FILE, METRICS, EVENTS, LOGS = "run.toml", "data.json", "metrics.jsonl", "events.jsonl", "logs"
LAYERS = "layers.jsonl"
_LOCK = ".lock"
_PLACES = ("directory", "start_from", "copy_to")
"""Keys of `[checkpoint]` that name a place."""
LAUNCHED = ".launched.toml"
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
STAGES = "stages"
"""The key of `data.json` that lists the data of every stage."""
COPIES = "copies"
"""The key of `data.json` that says where copies of the checkpoints are, while the disk holds none."""
FORMER_ROOTS = "former_checkpoints"
"""The key of `data.json` that lists where the run saved before."""


def usual_folder(run_file: str | os.PathLike[str]) -> Path:
    """The folder of a run that states none: runs/NAME for a run file NAME.toml."""
    return Path("runs") / Path(run_file).stem


def with_absolute_places(config: RunConfig) -> RunConfig:
    """The run with folders of checkpoints named so that they are the same ones wherever the command is repeated."""
    stated = {key: value for key in _PLACES if (value := getattr(config.checkpoint, key)) is not None}
    absolute = {
        key: value if "://" in value else str(Path(value).expanduser().absolute()) for key, value in stated.items()
    }
    return config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update=absolute)})


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
    def layers(self) -> Path:
        """Rows of the steps that measured every layer; not there where none did."""
        return self.path / LAYERS

    @property
    def events(self) -> Path:
        return self.path / EVENTS

    def log(self, rank: int) -> Path:
        return self.path / LOGS / f"rank-{rank:05d}.log"

    def checkpoint_root(self, config: RunConfig) -> Path:
        """Where the run's checkpoints lie: `checkpoint.directory`, or the folder's own."""
        stated = config.checkpoint.directory
        return place(stated) if stated is not None else self.path / "checkpoints"

    def checkpoint_roots(self, config: RunConfig) -> list[Path]:
        """The folders that hold the run's checkpoints: the one that it saves to, and those that it saved to before
        `checkpoint.directory` was changed."""
        former = self.data().get(FORMER_ROOTS)
        roots = [place(str(path)) for path in former] if isinstance(former, list) else []
        return list(dict.fromkeys((self.checkpoint_root(config), *roots)))

    def stage(self) -> int:
        """The number of the stage that the run's last launch trained, from 0."""
        number = self.data().get(STAGE, 0)
        return number if type(number) is int and number >= 0 else 0

    def stage_data(self, stage: int) -> dict[str, Any]:
        """The record in `data.json` of the data of a stage; empty where there is none."""
        table = self.data()
        stages = table.get(STAGES)
        if not isinstance(stages, list):
            return table if stage == 0 else {}
        own = stages[stage] if stage < len(stages) else {}
        return {**own, STAGE: stage} if isinstance(own, dict) else {}

    def saved_checkpoints(self, config: RunConfig) -> dict[int, Path]:
        """The complete checkpoints by step, rising, or their copies where there is none. Raises `RunFailure` where a folder of
        them cannot be looked into."""
        found, copies = self.checkpoints_on_disk(config), self.data().get(COPIES)
        return found if found or not isinstance(copies, str) else checkpoints_in([place(copies)])

    def checkpoints_on_disk(self, config: RunConfig) -> dict[int, Path]:
        """The complete checkpoints by step, rising, without copies. Raises `RunFailure` as `saved_checkpoints`."""
        return checkpoints_in(self.checkpoint_roots(config))

    def saved_steps(self, config: RunConfig) -> list[int]:
        """Steps of the complete checkpoints, rising."""
        return list(self.saved_checkpoints(config))

    def config(self) -> RunConfig | None:
        """The config of the run that stands here; None for a folder that is new, empty or absent.

        Raises `UserError` for a folder that holds something else.
        """
        if self.run_file.is_file():
            return load_run(self.run_file, as_written=True)
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path}: is a file; name a new folder, for example --out {self.path}-run")
        if self.path.is_dir() and any(entry.name != _LOCK for entry in self.path.iterdir()):
            raise UserError(
                f"--out {self.path}: the folder is not empty and holds no {RUN_FILE}, so it is no run; name a new folder, "
                f"for example --out {self.path / 'run-1'}"
            )
        return None

    def launched(self) -> RunConfig | None:
        """The config of the run that stands here as its last launch wrote it, whatever was done to the run file since; None as
        `config` has it. Raises `UserError`."""
        if (stands := self.config()) is not None and (self.path / LAUNCHED).is_file():
            with suppress(UserError):
                return load_run(self.path / LAUNCHED, as_written=True)
        return stands

    def require_config(self, trust: bool = False) -> RunConfig:
        """The config of the run that stands here. Raises `UserError` where none does, or it names Python code, unless `trust`: what
        reads a folder imports none of it unasked (`require_trust`)."""
        if not self.run_file.is_file():
            raise UserError(
                f"{self.path}: holds no {RUN_FILE}; name a folder that fourfold train wrote, for example runs/tiny"
            )
        return require_trust(load_run(self.run_file, as_written=True), trust)

    def course(self, trust: bool = False) -> tuple[Course, Stage]:
        """The course of the run that stands here, and the stage that its last launch trained. Raises `UserError` as
        `require_config` does."""
        return self._course(self.require_config(trust))

    def _course(self, config: RunConfig) -> tuple[Course, Stage]:
        course = course_of(config)
        return course, course.stages[min(self.stage(), len(course.stages) - 1)]

    def stage_config(self, trust: bool = False) -> RunConfig:
        """The run as its last launch trained it: its stage, where it has several. Raises `UserError` as `require_config` does."""
        config = self.require_config(trust)
        return self._course(config)[1].config if config.stage else config

    def data(self) -> dict[str, Any]:
        """The content of `data.json`; empty where it is missing or damaged: the data are then prepared again."""
        try:
            table = json.loads(self.data_file.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return table if isinstance(table, dict) else {}

    def steps_done(self) -> int:
        """Steps whose metrics were written; metrics count steps from 0."""
        return next((row["step"] + 1 for row in newest_rows(self.metrics) if row.get("step") is not None), 0)

    def finished_step(self) -> int | None:
        """The step at which the run finished, or None while it has not (or was continued since)."""
        for row in newest_rows(self.events):
            if row.get("event") in ("start", "resume"):
                return None
            if row.get("event") == "finish":
                return int(row.get("step") or self.steps_done())
        return None

    def write(self, config: RunConfig, data: dict[str, Any]) -> None:
        """Makes the folder with both files, or replaces them. Raises `RunFailure` when the disk does not take them."""
        texts = _texts(config, data)
        try:
            place = self._place()
            if not place.is_dir() or not any(place.iterdir()):
                _create_at_once(place, texts).close()
                return
            for name, text in texts.items():  # data.json last: other ranks wait for it
                write_whole(self.path / name, text)
            (self.path / LOGS).mkdir(exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None

    @contextmanager
    def created(self, config: RunConfig, data: dict[str, Any]) -> Iterator[None]:
        """Makes the folder of a new run with both files, and holds it from its first moment on. Raises `RunFailure` when the disk
        does not take them, and `UserError`, with the folder untouched, where another launch has made one meanwhile."""
        with ExitStack() as held:
            try:
                place = self._place()
                if place.is_dir() and any(place.iterdir()):
                    held.enter_context(self.locked())
                    if self.config() is not None:
                        raise self._in_progress("")
                    self.write(config, data)
                else:
                    held.enter_context(_create_at_once(place, _texts(config, data)))
            except OSError as error:
                raise (self._in_progress("") if error.errno in _TAKEN else self._unwritable(error)) from None
            yield

    def _place(self) -> Path:
        """The folder itself, whose parent is there: a link to a folder cannot be replaced by one. Raises `OSError`."""
        place = Path(os.path.realpath(self.path))
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def _unwritable(self, error: OSError) -> RunFailure:
        return RunFailure(
            f"--out {self.path}: the run's folder cannot be written ({error.strerror}); name one on a disk with room "
            f"that you can write, with --out"
        )

    def _in_progress(self, process: str) -> UserError:
        return UserError(
            f"--out {self.path}: this run is in progress (process {process or 'unknown'}); wait for it, "
            f"or name another folder with --out"
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the folder, which exists. Raises `UserError` where another launch does."""
        with open(self.path / _LOCK, "a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise self._in_progress(lock.read().strip()) from None
            except OSError:  # a file system without locks: two launches are then the user's own affair
                yield
                return
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield


def checkpoints_in(roots: list[Path]) -> dict[int, Path]:
    """The complete checkpoints below some folders by step, rising; of one step that of the first. Raises `RunFailure`."""
    found = {}
    for root in reversed(roots):
        try:
            manifests = list(root.glob("step-*/manifest.json"))
        except OSError as error:
            raise RunFailure(
                f"{root}: cannot be looked into ({error.strerror}); what works: the same command once it can be reached"
            ) from None
        for path in manifests:
            name = path.parent.name.removeprefix("step-")
            if name.isdecimal():
                found[int(name)] = path.parent
    return dict(sorted(found.items()))


def _texts(config: RunConfig, data: dict[str, Any]) -> dict[str, str]:
    text = dump_run(config)
    return {LAUNCHED: text, RUN_FILE: text, DATA_FILE: json.dumps(data, indent=1) + "\n"}


def _create_at_once(path: Path, texts: dict[str, str]) -> IO[str]:
    """Writes a folder aside and renames it into place; its lock, which is held. Raises `OSError`, also where a folder stands there
    that is not empty."""
    aside = path.with_name(
        f".{path.name}.{secrets.token_hex(4)}"
    )  # its mode is what the umask says, which mkdtemp does not ask
    aside.mkdir()
    try:
        for name, text in texts.items():
            (aside / name).write_text(text, encoding="utf-8")
        (aside / LOGS).mkdir()
        lock = open(aside / _LOCK, "a+")  # noqa: SIM115
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        os.rename(aside, path)
        return lock
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
