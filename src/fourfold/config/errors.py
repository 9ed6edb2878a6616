"""The one error a person can cause: what is wrong, what is allowed, and a value that works."""


class UserError(Exception):
    """A mistake in a run file, a command line, or a file it names. Exit code 2; shown without a traceback."""

    exit_code = 2


class RunFailure(UserError):
    """Something outside the request failed (a full disk, a lost rank, a corrupt file). Exit code 1."""

    exit_code = 1
