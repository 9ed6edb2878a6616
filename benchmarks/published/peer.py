"""A planner of others as a process of its own: what all adapters share. Nothing here imports fourfold or a peer.

An adapter is a file with two halves. `statement` puts a case into the peer's own inputs, or says why the peer cannot express it;
it needs no peer. Run as a script, in the Python that has the peer, the file reads such statements as JSON, one a line, and answers
each with one line: `step_seconds`, `memory_bytes` and perhaps a `note`, or `refused` with the peer's own words."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from case import PublishedCase

Statement = dict[str, Any]
Answer = dict[str, Any]
WRITTEN = ("unfused", "recomputed", "math")
"""Kernels of attention that write the matrix of scores."""
NARROW = ("bf16", "fp16")


class CannotStateError(Exception):
    """A case that a peer has no words for; the text says which part of it."""


class PeerError(Exception):
    """A peer's process that did not answer every question."""


def require(*needs: tuple[bool, str]) -> None:
    """Raises `CannotStateError` for the first need that is not met."""
    for met, part in needs:
        if not met:
            raise CannotStateError(part)


def require_usual(case: "PublishedCase") -> None:
    """Raises `CannotStateError` for what no peer has words for: it is left out of every comparison."""
    model, layout = case.model, case.layout
    require(
        (case.precision.name in NARROW, "a number format other than 16 bits"),
        (case.offloaded is None, "a state in the host's memory"),
        (case.attention_share == 1.0, "windows or documents in attention"),
        (model.mixer == "attention" and not model.exceptions, "layers of several kinds"),
        (not model.mtp_layers, "multi-token prediction"),
        (layout.schedule in ("1f1b", "interleaved_1f1b"), "a schedule other than 1F1B, plain or interleaved"),
        (layout.recompute != "alternate", "recomputation of every other block"),
    )


def ask(python: str, script: str, statements: Sequence[Statement], *arguments: str) -> list[Answer]:
    """The answers of the peer to each statement, in order. Raises `PeerError`."""
    lines = "".join(json.dumps(each) + "\n" for each in statements)
    command = [python, str(Path(__file__).parent / script), *arguments]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False, cwd=scratch)
        except OSError as error:
            raise PeerError(f"{python}: it cannot be started ({error.strerror}); give the path of a Python") from None
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(answers) != len(statements):
        asked = f"{len(answers)} answers to {len(statements)} questions"
        raise PeerError(f"{python} {script}: {asked}; the last that it printed: {done.stderr[-1000:]}")
    return answers


def serve(answer: Callable[[Statement], Answer]) -> None:
    """Answers every line of the standard input. A peer's own lines go to the standard error."""
    for line in sys.stdin:
        with contextlib.redirect_stdout(sys.stderr):
            try:
                found = answer(json.loads(line))
            except Exception as error:  # a peer refuses by whatever it raises
                found = {"refused": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(found), flush=True)
