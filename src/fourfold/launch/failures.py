"""After a rank has failed: which ranks did, why, and which of them only noticed."""

import os
import re
import signal
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fourfold.config.errors import open_files_advice
from fourfold.launch.bounded_log import read_log_end
from fourfold.train.exit_record import ExitRecord

_NOTICED = re.compile(
    r"connection (was |is )?(closed|reset|refused|lost|aborted)|(closed|reset) by peer|broken pipe|socket (is )?closed|"
    r"a connection was lost",
    re.IGNORECASE,
)
_TAIL_LINES = 6
_TAIL_BYTES = 1 << 16
_MARK, _TRACEBACK = "error: ", "Traceback (most recent call last):"
MISTAKEN, FINAL = 2, 4
"""Exit codes of a worker: a mistake in the run, and a failure that would come again."""


@dataclass(frozen=True)
class RankFailure:
    """One rank that ended badly, or was judged. `exit_code` as subprocess gives it: negative for a signal. `cause`:
    `killed` by a signal, out of `memory`, `server` (what forks ranks ended), `exit`, `left` in mid-run without a word, `log` that
    cannot be written, too few open `files`, or a watch's word. `instruction`: where, as far as it is known. `still_seconds`: how
    long the rank had stood still."""

    rank: int
    exit_code: int
    message: str
    cause: str = "exit"
    instruction: str = ""
    still_seconds: float = 0.0

    @property
    def only_noticed(self) -> bool:
        """Whether it merely lost its connection to another rank."""
        return self.cause == "exit" and bool(_NOTICED.search(self.message))

    @property
    def is_final(self) -> bool:
        """Whether ranks that are started again would meet it again: a mistake in the run, divergence, a full disk."""
        return self.is_mistake or (self.exit_code == FINAL and self.cause != "left") or self.cause in ("log", "files")

    @property
    def is_mistake(self) -> bool:
        """Whether the rank found a mistake in the run. An exit code of which the rank itself said nothing means nothing."""
        return self.exit_code == MISTAKEN and self.cause != "left"


_LESS_MEMORY = "smaller microbatches, more recompute or a higher layout.zero"
_REASONS = {
    signal.SIGBUS: "a file that it reads became shorter, or there is no room under one that it writes (the disk, /dev/shm)",
    signal.SIGSEGV: "a defect in compiled code, or bad memory",
    signal.SIGILL: "compiled code for another processor, or bad memory",
    signal.SIGFPE: "a defect in compiled code",
    signal.SIGABRT: "compiled code gave up",
}


def describe_signal(who: str, number: int, out_of_memory: bool | None, log: Path) -> str:
    """One line on a process that a signal killed. `out_of_memory`: whether the kernel killed one for want of memory at that time;
    None where it does not say."""
    try:
        name = f" ({signal.Signals(number).name})"
    except ValueError:
        name = ""
    if number == signal.SIGKILL and out_of_memory:
        return f"{who} was killed by the kernel{name}, whose memory was exhausted; what helps: {_LESS_MEMORY}"
    text = f"{who} was killed by signal {number}{name}"
    if number == signal.SIGKILL and out_of_memory is None:
        return f"{text}; the usual cause is too little memory: use {_LESS_MEMORY}"
    if number == signal.SIGKILL:
        return f"{text} from outside: memory was not exhausted, so a person, a batch system or another program did it"
    reason = _REASONS.get(signal.Signals(number)) if name else None
    return f"{text}: {reason}; its calls are in {log}" if reason else text


def describe_failure(
    rank: int,
    exit_code: int,
    log: Path,
    since: int = 0,
    out_of_memory: bool | None = None,
    record: ExitRecord | None = None,
) -> RankFailure:
    """The failure of a rank that ended with `exit_code`, in the words of its exit record, or of its log from byte `since` on where
    it is a program that has none. `out_of_memory`: as `describe_signal` has it."""
    if exit_code == -signal.SIGABRT and (cure := open_files_advice(log_tail(log, since))) is not None:
        text = f"rank {rank}: compiled code gave up: Too many open files; {cure}"
        return RankFailure(rank, exit_code, text, "files")
    if exit_code < 0:
        cause = "memory" if exit_code == -signal.SIGKILL and out_of_memory else "killed"
        return RankFailure(rank, exit_code, describe_signal(f"rank {rank}", -exit_code, out_of_memory, log), cause)
    if record is not None and record.code == exit_code != 0:
        return RankFailure(rank, exit_code, record.message)
    text = log_tail(log, since)
    stated = "" if record is not None else _stated(text)
    if stated:
        return RankFailure(rank, exit_code, stated)
    if (reason := _cannot_be_written(log)) is not None:
        return RankFailure(
            rank,
            exit_code,
            f"rank {rank} ended with exit code {exit_code} and could not say why: its log {log} cannot be written ({reason}); "
            f"free space there, or name another folder with --out",
            "log",
        )
    last = "\n".join("  " + line for line in text.splitlines()[-_TAIL_LINES:])
    if exit_code == 0 or record is not None:
        how = f"rank {rank} ended with exit code {exit_code} in mid-run, as after os._exit({exit_code}); its log: {log}"
        return RankFailure(rank, exit_code, how, "left")
    log_end = f"its log {log} ends with\n{last}" if last else f"its log {log} is {'empty' if log.exists() else 'gone'}"
    return RankFailure(rank, exit_code, f"rank {rank} ended with exit code {exit_code}; {log_end}")


def _stated(text: str) -> str:
    """The message at the end of a log; empty where an exception came after it, or there is none."""
    _, mark, stated = ("\n" + text).rpartition("\n" + _MARK)
    return stated.strip() if mark and _TRACEBACK not in stated else ""


def _cannot_be_written(log: Path) -> str | None:
    """Why the folder of a log takes no more text, as on a full disk; None where it does, or where somebody has deleted the folder,
    which the next start makes anew."""
    try:
        with tempfile.TemporaryFile(dir=log.parent) as file:
            file.write(bytes(_TAIL_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except FileNotFoundError:
        return None
    except OSError as error:
        return error.strerror or str(error)
    return None


def log_tail(path: Path, since: int = 0) -> str:
    """The end of what a log holds from byte `since` on, as `read_log_end` counts; empty where it cannot be read."""
    try:
        return read_log_end(path, since, _TAIL_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return ""


def summarize(failures: Iterable[RankFailure]) -> tuple[str, int]:
    """(one message, exit code), given failures in the order in which they were seen.

    Each distinct cause once; ranks that only noticed are left out where a cause is known. 2 when it is a usage error.
    """
    seen = list(failures)
    causes = [failure for failure in seen if not failure.only_noticed] or seen[:1]
    messages = list(dict.fromkeys(failure.message for failure in causes))
    return "\n".join(messages), 2 if causes[0].is_mistake else 1
