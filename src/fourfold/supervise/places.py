"""Where the next generation's ranks go: on spare slots where theirs are lost, on fewer slots where none is spare, back on all.

A device is lost when its rank failed while it started, `faults.device_failures` times in a row and no other rank with it; a machine
when its supervisor says nothing. The same device is tried again from time to time by a process that only computes a sum there.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fourfold.config.schema import FaultsSection
from fourfold.launch.layouts_by_ranks import RunSizes
from fourfold.launch.rank_process import RankProcess, Spawner, trial_environment
from fourfold.launch.run_folder import LOGS, RunFolder
from fourfold.supervise.blame import Blame
from fourfold.supervise.fleet import Fleet, Slot

_LOOK_SECONDS = 0.5
Note = Callable[..., None]


@dataclass
class Places:
    """The slots that a run of `full` ranks takes. `ranks`: those of the present generation."""

    fleet: Fleet
    full: int
    faults: FaultsSection
    sizes: RunSizes | None
    spawner: Spawner
    folder: RunFolder
    note: Note
    ranks: int = 0
    _failed: dict[Slot, int] = field(default_factory=dict)
    _why: list[str] = field(default_factory=list)
    _trial: tuple[Slot, RankProcess] | None = None
    _tried: float = 0.0
    _looked: float = 0.0
    _saved: int = 0

    def __post_init__(self) -> None:
        self.ranks = self.full

    def choose(self, may_shrink: bool = True) -> list[Slot] | None:
        """Usable slots, as many as the run takes; None where they are too few."""
        return self._of(self.fleet.usable(), may_shrink)

    def _of(self, usable: list[Slot], may_shrink: bool = True) -> list[Slot] | None:
        if len(usable) >= self.full:
            return usable[: self.full]
        if self.sizes is None or not self.faults.elastic or not may_shrink:
            return None
        fitting = self.sizes.fit(len(usable))
        return usable[: fitting.layout.world_size] if fitting is not None else None

    def settle(self, ranks: int, saved: int) -> Blame | None:
        """Makes the run one of so many ranks, from the checkpoint of step `saved` on; who is to blame from now on, where that
        changes."""
        self._saved = saved
        if ranks == self.ranks:
            return None
        assert self.sizes is not None
        resolved = self.sizes.fit(ranks)
        assert resolved is not None
        self.sizes.take(resolved)
        lost = f": {', '.join([*self.fleet.missing, *self._why])} lost" if ranks < self.ranks else ""
        words = f"{ranks} of {self.full} ranks ({resolved.degrees}){lost}"
        self.note("resize", step=saved, ranks=ranks, full=self.full, message=words)
        self.ranks = ranks
        return Blame(resolved)

    def judge(self, slot: Slot, while_starting: bool, message: str) -> bool:
        """Counts a failure of a rank there; whether the slot is lost now, and the run goes on without it."""
        self._failed = {slot: self._failed.get(slot, 0) + 1} if while_starting else {}
        if self._failed.get(slot, 0) < self.faults.device_failures:
            return False
        if self._of([other for other in self.fleet.usable() if other != slot]) is None:
            return False
        self.fleet.retire(slot)
        self._failed.clear()
        self._why.append(f"device {slot.number} of machine {slot.machine}")
        self._tried = time.monotonic()
        self.note("lose", machine=slot.machine, slot=slot.number, message=f"{self._why[-1]}: {message.splitlines()[0]}")
        return True

    def could_grow(self, newest: Callable[[], int]) -> bool:
        """Whether more ranks could take part, and a checkpoint was saved since these began."""
        if self.ranks == self.full or time.monotonic() - self._looked < _LOOK_SECONDS:
            return False
        self._looked = time.monotonic()
        self._try_lost_devices()
        slots = self.choose()
        if slots is None or len(slots) <= self.ranks or not self.fleet.could_join(slots):
            return False
        return newest() > self._saved or not (self.sizes is not None and self.sizes.saves_regularly)

    def _try_lost_devices(self) -> None:
        """Starts a trial of a lost device of this machine, or takes in the result of the last one."""
        if self._trial is not None:
            slot, process = self._trial
            if (code := process.poll()) is None:
                return
            self._trial, self._tried = None, time.monotonic()
            if code == 0:
                self.fleet.restore(slot)
                self._why.remove(f"device {slot.number} of machine {slot.machine}")
                self.note("find", machine=slot.machine, slot=slot.number)
        lost = self.fleet.retired_here
        if lost and time.monotonic() - self._tried > self.faults.probe_seconds and self.spawner.ready():
            with open(self.folder.path / LOGS / "trial.log", "wb") as log:
                self._trial = (Slot(0, lost[0]), self.spawner.spawn(trial_environment(lost[0]), log))
