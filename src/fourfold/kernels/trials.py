"""Trials of back ends on a device that one of them may break.

An illegal address or a failed assertion in a kernel is sticky: every later call of the process fails, whoever makes it. Such a rank
cannot go on, and must not blame the back ends that are tried next. It writes down which one broke the device, in the run's folder,
and ends; when all ranks are started again, none of them tries it.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fourfold.config import RunFailure
from fourfold.config.errors import error_text, is_out_of_memory
from fourfold.config.run_rows import read_rows

FILE = "broken_backends.jsonl"
_WORDS = 300
"""Letters of an error that are kept."""


def device_answers(device: torch.device) -> bool:
    """Whether a device still computes. A lack of memory passes; after a sticky error nothing does."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
        return bool(torch.ones(1, device=device).item() == 1)
    except RuntimeError as error:
        return is_out_of_memory(error)


@dataclass
class Trials:
    """The trials of one rank. `out`: the run's folder; `answers`: whether the device still does; `deterministic`: whether a back
    end has to repeat its bits."""

    out: Path | None = None
    answers: Callable[[], bool] = lambda: True
    deterministic: bool = False
    rank: int = 0
    _tried: tuple[str, str] = ("", "")
    _known: dict[tuple[str, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in read_rows(self.out / FILE) if self.out is not None else ():
            self._known[str(row.get("option")), str(row.get("backend"))] = str(row.get("reason"))[:_WORDS]

    def examine(self, option: str, name: str, look: Callable[[], str | None], again: Callable[[], Any]) -> str | None:
        """Why a back end cannot be taken, as `look` finds it; None: it can. `again`: its results, made anew at every call. Raises
        `RunFailure` where it breaks the device."""
        if (reason := self._known.get((option, name))) is not None:
            return f"it broke the device before ({reason}); delete {FILE} in the run's folder to try it again"
        self._tried = option, name
        problem = look()
        if problem is None and self.deterministic:
            problem = other_bits(again)
        self.check(problem or "")
        return problem

    def check(self, reason: str = "") -> None:
        """Raises `RunFailure` where the back end that was tried last has broken the device, and writes that down."""
        if self.answers():
            return
        option, name = self._tried
        row = {"option": option, "backend": name, "reason": reason[:_WORDS], "rank": self.rank}
        if self.out is not None:
            descriptor = os.open(self.out / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(descriptor, (json.dumps(row) + "\n").encode())  # several ranks write at once, each a line
            finally:
                os.close(descriptor)
        raise RunFailure(
            f'rank {self.rank}: the back end "{name}" (run.{option}) broke the device in its trial, which computes nothing any '
            f"more ({reason[:_WORDS] or 'no error was raised'}); started again, the run does without it"
        )

    def guarded(self, clock: Callable[[Callable[[], object]], float]) -> Callable[[Callable[[], object]], float]:
        """The clock, which tells a device that is broken from a back end that fails."""

        def seconds(call: Callable[[], object]) -> float:
            try:
                return clock(call)
            except Exception as error:
                self.check(error_text(error))
                raise

        return seconds


def other_bits(again: Callable[[], Any]) -> str | None:
    """Why results do not repeat; None: they do. `again`: makes them anew at every call, from inputs of one seed."""
    try:
        pairs = list(zip(_tensors(again()), _tensors(again()), strict=True))
    except Exception as error:
        return error_text(error)
    if all(torch.equal(one, other) for one, other in pairs):
        return None
    return "its results have other bits when they are computed again, and run.deterministic = true"


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
