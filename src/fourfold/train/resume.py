"""Where a run goes on from: the newest checkpoint that every rank can read; newer ones that some rank cannot are named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fourfold.checkpoint import DamagedCheckpoint, step_of
from fourfold.checkpoint.folders import step_folder
from fourfold.config import FinalFailure, UserError
from fourfold.config.errors import error_text, is_out_of_memory
from fourfold.config.remote_path import place
from fourfold.train.memory_plan import MemoryCopy
from fourfold.train.session import RankContext

Restore = Callable[[Path, MemoryCopy | None], dict[str, Any]]
"""Fills this rank's tensors from a checkpoint, or a copy in memory, and returns what was saved beside them. Raises
`DamagedCheckpoint`."""


_NO_DAMAGE = (UserError, dist.DistError)
"""Errors of the run, the machine and other ranks, which another checkpoint does not cure."""


class Resumption:
    """The checkpoints of a run, as all its ranks see them."""

    def __init__(
        self,
        find: Callable[[], list[Path]],
        context: RankContext,
        memory: MemoryCopy | None = None,
        meet: Callable[[], None] = lambda: None,
    ) -> None:
        """`find`: the folders of saved steps, newest first. `memory`: the newest copy, the same on every rank. `meet`: waits until
        every rank has read a checkpoint, or found that it cannot."""
        self.memory: MemoryCopy | None = None
        """The copy that the run goes on from, once it is restored."""
        self._context, self._meet = context, meet
        if context.rank == 0:  # one rank looks, so that all see the same folders
            context.store.set("checkpoints", json.dumps([str(path) for path in find()]))
        self._paths = [place(text) for text in json.loads(context.store.get("checkpoints"))]
        self._sources: list[tuple[Path, MemoryCopy | None]] = [(path, None) for path in self._paths]
        if memory is not None:
            newer = [path for path in self._paths if (step_of(path) or 0) > memory.step]
            self._sources.insert(len(newer), (step_folder(Path("memory"), memory.step), memory))

    @property
    def is_new(self) -> bool:
        """Whether there is nothing to go on from."""
        return not self._sources

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint there is, whether or not it can be read."""
        return self._paths[0] if self._paths else None

    def restore(self, restore: Restore, refuse: Callable[[int, str], None]) -> dict[str, Any]:
        """Fills the tensors of all ranks from the newest checkpoint that every rank can read; what was saved beside them.

        `refuse` is called with the step of each newer one, and why a rank could not read it. Raises `FinalFailure` where
        none is left.
        """
        problems = []
        for path, memory in self._sources:
            info, problem = self._attempt(path, memory, restore)
            if info is not None:
                self.memory = memory
                return info
            refuse(step_of(path) or 0, problem)
            problems.append(f"  {problem}\n")
        raise FinalFailure(
            f"{self._sources[-1][0].parent}: none of its checkpoints can be read, so the run does not go on; restore one of them, "
            f"or move the folder away to begin again from step 0:\n{''.join(problems).rstrip()}"
        )

    def _attempt(self, path: Path, memory: MemoryCopy | None, restore: Restore) -> tuple[dict[str, Any] | None, str]:
        """(what was saved, "") on every rank, or (None, the problem of a rank that could not read it)."""
        info, problem = None, ""
        try:
            info = restore(path, memory)
            check_info(path, info)
        except DamagedCheckpoint as error:
            problem = error.problem
        except Exception as error:  # what a reader that meets other bytes than it expects may raise is not one class
            if isinstance(error, _NO_DAMAGE) or is_out_of_memory(error):
                raise
            problem = f"{path} cannot be read ({error_text(error)})"
        context = self._context
        self._meet()
        failed = context.least(context.rank if problem else context.world_size)
        return (info, "") if failed == context.world_size else (None, context.tell(problem, failed))


def check_info(path: Path, info: dict[str, Any]) -> None:
    """Raises `DamagedCheckpoint` where the counters beside the tensors are missing, malformed or of another step."""
    for key in ("step", "tokens", "skipped_steps", "updates"):
        value = info.get(key)
        if type(value) is not int or value < 0 or (key == "step" and value != (step_of(path) or value)):
            raise DamagedCheckpoint(f"{path}: info.{key} = {value!r} is not that of a run's checkpoint", "name another")
