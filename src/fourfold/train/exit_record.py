"""How a rank ended by its own account: a small file beside its log, whose room is taken when the rank begins.

An exit code alone proves nothing: a library may end the process with any, and a log may hold lines that look like the rank's last.
"""

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_BYTES = 1 << 13
_MESSAGE_CHARACTERS = 3000
"""Characters of a message that are kept; each of ours takes two bytes of JSON at most."""


@dataclass(frozen=True)
class ExitRecord:
    """The account of process `pid`. `code`: the exit code that it ends with; None while it has not come to an end of its own."""

    pid: int
    code: int | None = None
    message: str = ""


class ExitRecordFile:
    """A rank's end of it. Where the disk refuses, nothing is said."""

    def __init__(self, out: Path, rank: int) -> None:
        self._descriptor: int | None = None
        with suppress(OSError):
            path = exit_record_file(out, rank)
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            self._write(ExitRecord(os.getpid()))

    def say(self, code: int, message: str = "") -> int:
        """The process ends with this exit code, which is returned, for this reason."""
        with suppress(OSError):
            self._write(ExitRecord(os.getpid(), code, message[:_MESSAGE_CHARACTERS]))
        return code

    def _write(self, record: ExitRecord) -> None:
        if self._descriptor is not None:
            data = json.dumps(vars(record)).encode()
            if len(data) > _BYTES:
                data = json.dumps({**vars(record), "message": record.message[: _MESSAGE_CHARACTERS // 8]}).encode()
            os.pwrite(self._descriptor, data.ljust(_BYTES), 0)


def exit_record_file(out: Path, rank: int) -> Path:
    return out / "logs" / f"rank-{rank:05d}.end"


def read_exit_record(path: Path, pid: int) -> ExitRecord | None:
    """The record of process `pid`; None where it wrote none that can be read."""
    with suppress(OSError, ValueError, RecursionError), open(path, "rb") as file:
        found = json.loads(file.read(_BYTES))
        values = found if isinstance(found, dict) else {}
        code, message = values.get("code"), values.get("message")
        if values.get("pid") == pid and type(code) in (int, type(None)) and isinstance(message, str):
            return ExitRecord(pid, code, message)
    return None
