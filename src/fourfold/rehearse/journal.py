"""The record of one rank's rehearsal: launches, copies, waits of the host, calls of communicators; and faults."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from fourfold.config import RunFailure


class RehearsalFault(RunFailure):
    """Something that a device would reject, or answer with wrong numbers."""


class GroupCall(NamedTuple):
    """One call of a communicator. `link`: the axes of its ranks. `peer`: the other end of a transfer, -1 for a collective."""

    link: str
    kind: str
    dtype: str
    numel: int
    peer: int = -1
    upwards: bool = False


class Wait(NamedTuple):
    """The host waited for the device: in which instruction, for what, and the line that did it."""

    instruction: str
    what: str
    line: str


class Launch(NamedTuple):
    """An operation of a captured step: in which instruction, its name, the sizes of its tensors, and numbers that the host gave."""

    instruction: str
    operation: str
    sizes: tuple[tuple[int, ...], ...]
    numbers: tuple[float, ...]


@dataclass
class Journal:
    """The record itself. `instruction`: the one that runs, in short form. Copies come from the host or go there;
    `copied_bytes`: of the first. `launches`, `joins`: by instruction; a join is the computing stream's wait for a communicator.
    `captured`: operations of the step that a graph captures; None where none does."""

    rank: int
    instruction: str = "start"
    launches: Counter[str] = field(default_factory=Counter)
    copies: int = 0
    copied_bytes: int = 0
    waits: list[Wait] = field(default_factory=list)
    calls: list[GroupCall] = field(default_factory=list)
    joins: Counter[str] = field(default_factory=Counter)
    captured: list[Launch] | None = None

    def launch(self) -> None:
        self.launches[self.instruction] += 1

    def wait(self, what: str) -> None:
        if self.captured is not None:
            raise self.fault(f"{what}: a captured step cannot wait for the device")
        self.waits.append(Wait(self.instruction, what, _line()))

    def fault(self, problem: str) -> RehearsalFault:
        """The error for a problem of the instruction that runs."""
        return RehearsalFault(f"rank {self.rank}, instruction `{self.instruction}`: {problem} ({_line()})")


def _line() -> str:
    """The innermost line of fourfold outside of the rehearsal itself."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("fourfold.") and not name.startswith("fourfold.rehearse"):
            return f"{name.removeprefix('fourfold.').replace('.', '/')}.py:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "outside of fourfold"
