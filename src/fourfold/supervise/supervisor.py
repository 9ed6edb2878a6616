"""The supervisor that leads: starts all ranks, watches them, and starts them again from the newest checkpoint.

    slots of all machines ─► ranks of one generation ─► a failure ─► judged ─► killed everywhere ─► the next generation

It decides alone, so that there is never more than one generation that could decide otherwise. The supervisors of other machines
(`follower.py`) start, watch and end their ranks as it orders.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from fourfold.config import RunFailure
from fourfold.config.errors import open_files_advice
from fourfold.config.own_code import own_code
from fourfold.config.schema import FaultsSection
from fourfold.launch.external import Member
from fourfold.launch.kept_files import KeptFiles
from fourfold.launch.layouts_by_ranks import RunSizes
from fourfold.launch.processes import LocalRanks
from fourfold.launch.rank_process import CommandSpawner, ForkServer, Spawner
from fourfold.launch.rendezvous_file import announced, open_store
from fourfold.launch.run_folder import RunFolder
from fourfold.launch.shares import first_slot
from fourfold.rendezvous.addresses import interface_to, loopback_interface
from fourfold.rendezvous.fence import raise_fence
from fourfold.rendezvous.server import StoreServer
from fourfold.runtime.memory_file import PLACE, MemoryFile, open_memory
from fourfold.runtime.progress import ENDED, FILES, clear_positions, read_positions
from fourfold.supervise.fleet import Fleet, Slot, placed
from fourfold.supervise.generation import Generation
from fourfold.supervise.judge import Judge
from fourfold.supervise.places import Places
from fourfold.supervise.remote import RemoteRanks
from fourfold.supervise.signals import LaunchOutcome, StopRequests
from fourfold.supervise.watch import Watch
from fourfold.train.fork_server import Started

GOES_ON = "goes on"
"""Said of ranks that have ended where the same launch goes on with others: in the next stage, or from an earlier step."""
_DISMISS_SECONDS = 3.0
RESTARTED_SECONDS = 30.0
"""How long to wait for a machine whose launcher starts everything again anyway."""


@dataclass(frozen=True)
class Machines:
    """A launch on several machines, of which `member` leads. `token` names it. `seconds`: how long it waits for a machine."""

    member: Member
    token: str
    seconds: float


def supervise(
    folder: RunFolder,
    ranks: int,
    threads: int,
    faults: FaultsSection,
    newest: Callable[[], int] = lambda: 0,
    watch: Watch | None = None,
    on_tick: Callable[[], None] = lambda: None,
    on_notice: Callable[[str], None] = lambda text: None,
    command: Sequence[str] | None = None,
    grace_seconds: float = 10.0,
    spares: int = 0,
    sizes: RunSizes | None = None,
    machines: Machines | None = None,
    keeps_memory: bool = False,
    server: Started | None = None,
    finished: Callable[[], str] = lambda: "",
) -> LaunchOutcome:
    """Runs all ranks until the run has finished, was stopped, or has failed too often. Called from the main thread.

    `newest`: the step of the newest checkpoint. `watch`: finds ranks that no longer get on. `on_tick` is called some 20 times a
    second, `on_notice` with a line to show. `command`: a program that is a rank, called with the run's folder, in place of
    `fourfold.train`. `spares`: slots of this machine beside those of its ranks. `sizes`: layouts on fewer ranks, for an elastic
    run. `machines`: others take part. `keeps_memory`: ranks copy their state to memory. `server`: what forks ranks, started before.
    `finished`: what supervisors of other machines are told when all ranks have finished. The first SIGINT, SIGTERM or SIGHUP is
    passed on once, as SIGTERM; the second kills. A failure that ends the run ends the other ranks: SIGTERM, and SIGKILL
    `grace_seconds` later. Raises `RunFailure` where a process cannot be started.
    """
    own_code()  # of the files as they are now: ranks that are started later compare with it
    stop = StopRequests()
    member = machines.member if machines is not None else None
    with stop.installed(), ExitStack() as cleanup:
        memory = cleanup.enter_context(kept_memory(on_notice)) if keeps_memory else None
        shared = memory.descriptor if memory is not None else None
        spawner = CommandSpawner(command, folder) if command is not None else ForkServer(folder, server, shared)
        cleanup.callback(spawner.close)
        for path in folder.path.glob(FILES):
            path.unlink(missing_ok=True)
        stall_seconds = watch.stall_seconds if watch is not None else faults.stall_limit(on_device=False)
        here = ranks // member.count if member is not None else ranks
        first = first_slot(member)
        store = open_store(member) if member is not None else StoreServer()
        cleanup.callback(store.close)
        fleet = Fleet(
            range(first, first + here),
            range(first + here, first + here + spares),
            store,
            member.count if member is not None else 1,
            stall_seconds or (machines.seconds if machines is not None else 0.0),
        )
        saved = newest if memory is None else lambda: max(newest(), memory.newest_step())
        kept = KeptFiles(folder)
        judge = Judge(folder, stop.received, faults, saved, watch, on_tick, on_notice, grace_seconds, fleet, kept)
        judge.note("launch", ranks=ranks, stall_seconds=stall_seconds)
        places = Places(fleet, ranks, faults, sizes, spawner, folder, judge.note)
        where = loopback_interface() if member is None else reach(member)
        launch = _Launch(folder, spawner, threads, store, {**store.environment(), **where}, fleet, places, judge)
        if machines is not None:
            prepare_start(spawner, folder, ranks)  # starts what forks ranks, before a thread lives
            store.start()
            cleanup.enter_context(announced(folder, store, machines.token))
        outcome = LaunchOutcome(1, "the supervisor ended by an error")
        try:
            outcome = launch.run(machines)
        except RunFailure as error:
            outcome = LaunchOutcome(1, str(error))
            raise
        finally:
            with suppress(RunFailure):
                judge.keep()
            fleet.dismiss(outcome.exit_code, outcome.message if outcome.exit_code else finished(), _DISMISS_SECONDS)
        return outcome


@dataclass
class _Launch:
    """Generation after generation, until the run ends."""

    folder: RunFolder
    spawner: Spawner
    threads: int
    store: StoreServer
    variables: dict[str, str]
    fleet: Fleet
    places: Places
    judge: Judge
    generation: int = 0

    def run(self, machines: Machines | None) -> LaunchOutcome:
        while True:
            slots = self._wait_for_slots(machines)
            if isinstance(slots, LaunchOutcome):
                return slots
            if self.judge.received and self.generation:
                return LaunchOutcome(128 + self.judge.received[0])
            with ExitStack() as processes:
                generation = self._start(slots, processes)
                outcome = self.judge.watch(generation, self.generation, self.places)
            if outcome is not None:
                return outcome
            self.generation += 1

    def _wait_for_slots(self, machines: Machines | None) -> list[Slot] | LaunchOutcome:
        """The slot of every rank of the next generation, all of which could start at once; or how the launch ended meanwhile."""
        begun, told = time.monotonic(), False
        patience = machines.seconds if machines is not None else 0.0
        if machines is not None and machines.member.is_restarted and self.generation:
            patience = min(patience, RESTARTED_SECONDS)
        while True:
            waited, received = time.monotonic() - begun, self.judge.received
            slots = self.places.choose(may_shrink=self.generation > 0 or waited > patience)
            ready = prepare_start(self.spawner, self.folder, len(slots or ()))
            if slots is not None and ready and self.fleet.is_ready(slots):
                return slots
            if len(received) > 1 or (received and slots is None):
                return LaunchOutcome(128 + received[0], killed=len(received) > 1)
            missing = ", ".join(self.fleet.missing) or "a lost device"
            if slots is None and waited > 1.0 and not told:
                told = True
                self.judge.note("wait", message=missing)
            if machines is not None and waited > patience + RESTARTED_SECONDS * (slots is not None):
                message = f"{missing} did not come in {waited:.0f} s"
                return LaunchOutcome(1, "\n".join(filter(None, (self.judge.last_message, message))))
            self.judge.tick()

    def _start(self, slots: list[Slot], processes: ExitStack) -> Generation:
        """Starts a rank on every slot."""
        blame = self.places.settle(len(slots), self.judge.newest())
        self.judge.blame(blame)
        self.judge.keep(is_written=blame is not None)
        world_size = len(slots)
        fence = self.judge.fence = raise_fence(self.folder.path, self.judge.fence)
        slots = placed(slots, world_size)
        mine: dict[int, dict[int, int]] = {}
        for rank, slot in enumerate(slots):
            mine.setdefault(slot.machine, {})[rank] = slot.number
        local = LocalRanks(self.folder, self.spawner, lambda rank: not in_mid_run(self.folder, rank))
        others = [
            RemoteRanks(self.fleet.machines[index], ranks, world_size, self.generation, fence)
            for index, ranks in mine.items()
            if index
        ]
        generation = Generation(self.folder.path, slots, local, others)
        processes.callback(generation.kill)
        variables = {**self.variables, "FOURFOLD_FENCE": str(fence)}
        local.start(mine.get(0, {}), world_size, self.threads, self.generation, variables)
        self.store.start()  # a thread: after the forks, where nobody else needs it before
        return generation


@contextmanager
def kept_memory(on_notice: Callable[[str], None]) -> Iterator[MemoryFile | None]:
    """Memory of this machine for copies of its ranks' state, as long as this process lives; None where it has none."""
    try:
        descriptor = open_memory()
    except OSError as error:
        on_notice(f"{PLACE}: {error.strerror}: training goes on without copies of its state in memory")
        yield None
        return
    try:
        yield MemoryFile(descriptor)
    finally:
        os.close(descriptor)


def prepare_start(spawner: Spawner, folder: RunFolder, ranks: int, machine: int = 0) -> bool:
    """Begins the process that forks ranks, and clears the positions of those before; whether ranks can be started at once. Raises
    `RunFailure`."""
    try:
        if not spawner.ready():
            return False
        clear_positions(folder.path, ranks, machine)
    except OSError as error:
        works = open_files_advice(error) or "free space there, or name another folder with --out"
        raise RunFailure(f"{folder.path}: no rank can be started ({error.strerror}); {works}") from None
    return True


def reach(member: Member) -> dict[str, str]:
    """The variables by which a machine's ranks find those of others."""
    return {**({} if member.is_alone else interface_to(member.master_address)), **member.environment()}


def in_mid_run(folder: RunFolder, rank: int, machine: int = 0) -> bool:
    """Whether a rank of a machine has begun and not come to the end."""
    positions = read_positions(folder.path, machine)
    return rank < len(positions) and positions[rank].pid > 0 and positions[rank].kind != ENDED
