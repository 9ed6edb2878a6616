"""The one error a person can cause: what is wrong, what is allowed, and a value that works."""

import errno
import importlib
import os
import re
import resource
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

LONGEST = 100
"""Letters of a mistaken word that are looked at."""


class UserError(Exception):
    """A mistake in a run file, a command line, or a file it names. Exit code 2; shown without a traceback. `key`: the key that is
    missing or wrong, for callers that can do without it."""

    exit_code = 2

    def __init__(self, *words: object, key: str = "") -> None:
        super().__init__(*words)
        self.key = key


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed word that one most resembles, whatever its case and separators, if it resembles any. A number format is like
    those of as many bits: bf16 is near to fp16, fp64 is not."""
    import difflib

    plain = {_plain(each): each for each in allowed}
    if (format := _FORMAT.fullmatch(_plain(word[:LONGEST]))) is not None:
        same = [each for each in plain if (other := _FORMAT.fullmatch(each)) and other[1] == format[1]]
        return plain[same[0]] if same else None
    found = difflib.get_close_matches(_plain(word[:LONGEST]), plain, n=1, cutoff=0.5)
    return plain[found[0]] if found else None


def did_you_mean(word: str, allowed: Iterable[str], show: Callable[[str], str] = str) -> str:
    """`did you mean NAME? `, where an allowed word resembles the mistaken one, else nothing. `show`: how the name is written."""
    near = nearest(word, allowed)
    return f"did you mean {show(near)}? " if near is not None else ""


def unknown_key(key: str, word: str, allowed: Sequence[str]) -> str:
    """The words about a key that there is not: the nearest one, or all. `word`: its last part."""
    return f"unknown key {key}; {did_you_mean(word, allowed, repr).strip() or 'allowed: ' + ', '.join(allowed)}"


def lower_first(message: str) -> str:
    """A message as a part of a sentence."""
    return message[:1].lower() + message[1:]


_FORMAT = re.compile(r"(?:fp|bf|tf|float|bfloat|int)-?(4|8|16|32|64)")


def _plain(word: str) -> str:
    return word.lower().replace("_", "-")


def shortened(value: Any) -> str:
    """`repr`, cut to a line: a file may hold anything."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return text if len(text) <= 80 else text[:77] + "..."


def error_text(error: BaseException) -> str:
    """An error on one line: its class, and the first line of its words."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def attribute_of(setting: str, module_name: str, name: str) -> Any:
    """The attribute of a module of the person's; None where it has none of this name. `setting`: the key and value that name it.
    Raises `UserError` where the module cannot be imported."""
    try:
        return getattr(importlib.import_module(module_name), name, None)
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{setting}: cannot import {module_name}: {error_text(error)}; what works: a module on PYTHONPATH"
        ) from error


_EXHAUSTED = "Too many open files"


def open_files_advice(error: BaseException | str) -> str | None:
    """The cure where a process, or the machine, has opened as many files and sockets as it may; None for any other error, or
    words of one."""
    if getattr(error, "errno", None) not in (errno.EMFILE, errno.ENFILE) and _EXHAUSTED not in str(error):
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return f"a process may open {limit} files and sockets here; what works: ulimit -n 65536, or fewer ranks"


_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is told by an allocator: of a device (torch's class, known by its name, since torch may not be there), of
    the host's memory (a plain `RuntimeError` of torch), or of a library that has its own."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _NO_MEMORY)


def unwritable(path: object, error: OSError) -> str:
    """The message about a file of a run's folder that cannot be written, with the cure."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    cure = open_files_advice(error) or ("free some space and resume" if full else "make it writable and resume")
    return f"{path}: cannot be written: {error.strerror}; {cure}"


_ENOUGH_FILES = 1 << 20


def raise_file_limit() -> int:
    """Raises how many files and sockets this process and those that it starts may open to what the administrator allows, 2**20 at
    most: what walks over all numbers of files would take minutes. The limit from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    with suppress(OSError, ValueError):  # a sandbox may forbid it: the limit stays, and whoever meets it names it
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def require_files(who: str, more: int, own: bool = True) -> None:
    """Raises `FinalFailure` where `who` could not open so many files and sockets, by one message that names the limit and one that
    works. `own`: this process, beside what it has open; else one that it starts, which has three open.

    Compiled code that gets no descriptor ends as it likes: threads of gloo end the process, imports end in a traceback. So
    whatever begins asks first, and nothing begins that would meet the limit midway.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _can_open(more) if own else soft == resource.RLIM_INFINITY or soft >= more + 3:
        return
    works = max(256, 1 << (more + 3).bit_length())
    raised = f"; the hard limit is {hard}, which the administrator raises" if 0 < hard < works else ""
    raise FinalFailure(
        f"{_EXHAUSTED}: {who} takes {more + 3}; a process may open {soft} files and sockets here; what works: "
        f"ulimit -n {works}{raised}"
    )


_GLOO_FILES, _LATER_FILES = 8, 12


def group_files(size: int) -> int:
    """Files and sockets of a rank for a gloo group: its own, a connection to each other rank, and those of what comes after it,
    such as a save."""
    return _GLOO_FILES + size - 1 + _LATER_FILES


def require_group_files(size: int) -> None:
    """Raises `FinalFailure` where a rank could not open the files of a gloo group of `size` ranks, before it makes the group."""
    require_files("a rank", group_files(size))


def _can_open(more: int) -> bool:
    opened: list[int] = []
    try:
        opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        while len(opened) < more:
            opened.append(os.dup(opened[0]))
    except OSError as error:
        return error.errno not in (errno.EMFILE, errno.ENFILE)
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True


class RunFailure(UserError):
    """Something outside the request failed (a full disk, a lost rank, a corrupt file). Exit code 1."""

    exit_code = 1


class FinalFailure(RunFailure):
    """A failure that the same run would meet again, such as divergence: its ranks are not started again."""
