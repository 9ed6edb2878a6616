"""The one error a person can cause: what is wrong, what is allowed, and a value that works."""

import difflib
from collections.abc import Iterable

LONGEST = 100
"""Letters of a mistaken word that are looked at."""


class UserError(Exception):
    """A mistake in a run file, a command line, or a file it names. Exit code 2; shown without a traceback."""

    exit_code = 2


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The allowed word that one most resembles, if it resembles any."""
    return next(iter(difflib.get_close_matches(word[:LONGEST], list(allowed), n=1, cutoff=0.5)), None)


class RunFailure(UserError):
    """Something outside the request failed (a full disk, a lost rank, a corrupt file). Exit code 1."""

    exit_code = 1
