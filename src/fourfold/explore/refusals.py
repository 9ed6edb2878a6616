"""Refusals of a request: a status of HTTP, and a message."""

from fourfold.config import RunFailure, UserError
from fourfold.explore.setup import Malformed

REFUSED = (RunFailure, UserError, RuntimeError, OSError, ValueError)
"""Errors that have an answer."""


def refusal_of(error: Exception) -> tuple[int, dict[str, str]]:
    """`{"refused": message}` of a layout that cannot run, which is an answer; else `{"error": message}` with a status that says
    whose fault it is."""
    if isinstance(error, RunFailure):
        return 503, {"error": str(error)}
    if isinstance(error, Malformed):
        return 422, {"error": str(error)}
    if isinstance(error, UserError):
        return 200, {"refused": str(error)}
    return 500, {"error": f"this is a fault of fourfold, please report it: {error}"}


def as_fault(error: Exception) -> RuntimeError:
    """An error that nobody foresaw, as one that has an answer."""
    return RuntimeError(f"{type(error).__name__}: {error!s:.200}")
