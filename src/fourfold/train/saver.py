"""Saves of one rank: the step is held up for a copy to host memory, a thread writes it beside training."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.checkpoint import SaveFailure, folders
from fourfold.config import RunConfig
from fourfold.config.remote_path import is_remote
from fourfold.program.view import RankView
from fourfold.rendezvous.barrier import StoreBarrier
from fourfold.runtime.offload.pinned import host_tensors
from fourfold.runtime.progress import WAITING, WRITING
from fourfold.runtime.routers import Routers
from fourfold.runtime.units import Unit
from fourfold.train import state
from fourfold.train.state_sums import copy_check


@dataclass
class SaveEnd:
    """How a save ended. `seconds`: from its begin to its end; `held_seconds`: those that training stood still, of them
    `waited_seconds` for the save before. `error`: why nothing was saved, the same on every rank."""

    step: int
    path: Path | None = None
    seconds: float = 0.0
    held_seconds: float = 0.0
    waited_seconds: float = 0.0
    error: Exception | None = None
    begun: float = field(default_factory=time.perf_counter)

    def event(self) -> dict[str, Any]:
        """The values of the event `save` or `save_failed`."""
        values = {key: getattr(self, key) for key in ("step", "seconds", "held_seconds", "waited_seconds")}
        if self.path is None:
            return {**values, "message": str(self.error)}
        stays = undeleted(self.path.parent)
        return {**values, "path": self.path.name, **({"message": stays} if stays else {})}


def undeleted(root: Path) -> str:
    """A warning of checkpoints that could not be deleted; empty where none is left."""
    with suppress(OSError):
        left = [path for path in folders.leftovers(root) if not is_remote(path)]
        more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
        return f"{left[0]} could not be deleted{more}; it takes room until it is" if left else ""
    return ""


class Saver:
    """Saves the state of one rank's units and routers. Every rank calls the same methods in the same order.

    At most one save is under way: the next one waits for it, so that slow storage slows training instead of filling memory.
    `meet`: a barrier of all ranks for saves beside training, whose collectives go on meanwhile.
    """

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        view: RankView,
        units: Mapping[str, Unit],
        routers: Routers,
        rank: int,
        barrier: StoreBarrier,
        tell: Callable[[int], None] = lambda what: None,
        ends: Collection[int] = (),
    ) -> None:
        """`ends`: of the run's stages. `tell`: called, by whatever thread saves, with what a save does now: `WRITING`, `WAITING`,
        or 0 for none."""
        self._tell, self._ends = tell, ends
        self._config, self._out, self._view, self._units, self._routers = config, out, view, units, routers
        self._rank, self._barrier = rank, barrier
        self.beside_training = config.checkpoint.asynchronous and config.checkpoint.every_steps is not None
        self._host: dict[str, Tensor] = {}
        self._thread: threading.Thread | None = None
        self._pending: SaveEnd | None = None
        self._ended: list[SaveEnd] = []
        self._newest: int | None = None
        if self.beside_training:
            self._thread = threading.Thread(target=self._prepare, daemon=True)
            self._thread.start()

    def begin(self, step: int, info: Mapping[str, Any], copying: Callable[[], None] = lambda: None) -> None:
        """Copies the state before step `step` and saves the copy beside training. `copying` is called once the save before has
        ended, when nothing waits for storage any more."""
        end = SaveEnd(step)
        self.wait()
        copying()
        end.waited_seconds = time.perf_counter() - end.begun
        if not self._host:
            self._prepare()
        on_device = False
        for name, tensor in self._tensors().items():
            self._host[name].copy_(tensor, non_blocking=True)
            on_device = on_device or tensor.is_cuda
        if on_device:
            torch.cuda.synchronize()
        check = self._check(self._host)
        end.held_seconds = time.perf_counter() - end.begun
        self._pending = end
        self._thread = threading.Thread(
            target=self._save,
            args=(end, info, self._barrier.meet, self._barrier.advance, self._host, check),
            daemon=True,
        )
        self._thread.start()

    def save(
        self, step: int, info: Mapping[str, Any], synchronize: Callable[[], None], advance: Callable[[], None]
    ) -> None:
        """Saves the state before step `step` before it returns, after the save under way, unless that one saved this step.
        `synchronize`: a barrier. `advance`: says that this rank gets on to those that wait there."""
        end = SaveEnd(step)
        self.wait()
        if self._newest == step:
            return
        end.waited_seconds = time.perf_counter() - end.begun
        self._save(end, info, synchronize, advance, None, self._check(self._tensors()))
        end.held_seconds = end.seconds
        self._ended.append(end)

    def wait(self) -> None:
        """Returns when no save is under way."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._pending is not None:
            self._ended.append(self._pending)
            self._pending = None

    def ended(self) -> list[SaveEnd]:
        """The saves that ended since the last call. Raises the error of one that ended without a word to the other ranks."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()
        ended, self._ended = self._ended, []
        for end in ended:
            if end.error is not None and not isinstance(end.error, SaveFailure):
                raise end.error
        return ended

    def _check(self, copy: Mapping[str, Tensor]) -> Callable[[], None] | None:
        """The check, for when the bytes of a save were written, that they were those of the state now."""
        return copy_check(self._tensors(), copy) if self._config.faults.checksum_every_steps else None

    def _tensors(self) -> dict[str, Tensor]:
        return state.written_tensors(self._view, self._units, self._routers, self._rank)

    def _prepare(self) -> None:
        """Allocates the copy and touches its pages, which would take longer than the first copy itself."""
        tensors = self._tensors()
        for pinned in (True, False):  # what lies in the host's memory already is copied there as it is
            groups = [{name: tensor} for name, tensor in tensors.items() if tensor.is_cuda == pinned]
            for group in host_tensors(groups, pinned):
                self._host.update(group)

    def _save(
        self,
        end: SaveEnd,
        info: Mapping[str, Any],
        synchronize: Callable[[], None],
        advance: Callable[[], None],
        copies: Mapping[str, Tensor] | None,
        check: Callable[[], None] | None,
    ) -> None:
        def meet() -> None:
            self._tell(WAITING)
            synchronize()
            self._tell(WRITING)

        self._tell(WRITING)
        try:
            end.path = state.save(
                self._config, self._out, self._view, self._units, self._routers, end.step, info, self._rank, meet,
                tensors=copies, check=check, advance=advance, ends=self._ends,
            )  # fmt: skip
            self._newest = end.step
        except Exception as error:
            end.error = error
        finally:
            self._tell(0)
        end.seconds = time.perf_counter() - end.begun
