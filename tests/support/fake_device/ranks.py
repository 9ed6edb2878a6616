"""Ranks that run the programs of a run on fake devices, with the board and the progress of a real rank, and what watches them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

from fourfold.launch.resolve import ResolvedRun
from fourfold.program import Instruction, Op
from fourfold.runtime import progress
from fourfold.runtime.device_progress import DeviceProgress
from fourfold.runtime.progress import (
    READING,
    SAVING,
    TRAINING,
    WAITING,
    WRITING,
    ProgressBoard,
    clear_positions,
    own_work,
    peers_of,
    read_positions,
)
from fourfold.supervise import watch
from fourfold.supervise.blame import Blame, Verdict
from fourfold.supervise.observation import Observation
from fourfold.supervise.watch import Straggler, Watch
from tests.support.fake_device.faults import PlantedFault
from tests.support.fake_device.network import FakeNetwork
from tests.support.fake_device.simulated_time import SimulatedTime
from tests.support.fake_device.streams import Event, FakeDevice, Mark, Stream
from tests.support.opcodes import HOST_COPIES, SENDS, STARTS

_LAUNCHES = 40
"""Kernels of one computing instruction."""
_CALL_SECONDS, _READ_SECONDS, _SAVE_SECONDS = 1e-4, 0.01, 20.0
_LOOK_SECONDS = 0.25
_SYNCHRONIZES = ("runtime/device.py:34 in read_back", "runtime/step.py:59 in read_result")
_LAUNCHING = ("model/torch_operations.py:20 in matmul",)
_IN_CALL = ("torch/distributed/distributed_c10d.py:2900 in all_reduce", "runtime/links.py:70 in all_reduce")
_STORAGE, _BARRIER = ("checkpoint/tensor_file.py:50 in write",), ("torch/distributed/distributed_c10d.py:1 in barrier",)


@dataclass
class FakeRun:
    """A run on fake devices. `step_seconds`: of computing, in a step; `graphs`: steps after the first three are replayed; `saves`:
    steps between two saves, 0 for none; `is_beside`: written beside training, each after the one before."""

    resolved: ResolvedRun
    folder: Path
    faults: Sequence[PlantedFault] = ()
    step_seconds: float = 30.0
    graphs: bool = False
    saves: int = 0
    is_beside: bool = False
    marked: bool = True
    """Whether replayed steps say where they are."""
    asked: bool = True
    """Whether hosts answer when they are asked for their calls."""
    time: SimulatedTime = field(default_factory=SimulatedTime)
    verdicts: list[tuple[float, Verdict]] = field(default_factory=list)
    stragglers: list[Straggler] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.layout = self.resolved.layout
        self.network = FakeNetwork(self.time)
        clear_positions(self.folder, self.layout.world_size)
        self.watch = Watch(self.resolved.config.faults, self.resolved.config.run.timeout_seconds, Blame(self.resolved))
        self.steps = [0] * self.layout.world_size

    def run(self, seconds: float) -> Verdict | None:
        """Until a rank is found to be at fault, or so many simulated seconds have passed."""
        clock = SimpleNamespace(monotonic=lambda: self.time.now, time=lambda: self.time.now)
        with patch.object(watch, "time", clock), patch.object(progress, "time", clock):
            self.ranks = [FakeRank(self, rank) for rank in range(self.layout.world_size)]
            for each in self.ranks:
                self.time.spawn(each.main)
            self.watch.begin()
            self.time.spawn(self._watch)
            self.time.run(seconds, lambda: bool(self.verdicts))
        return self.verdicts[0][1] if self.verdicts else None

    def _watch(self) -> None:
        while True:
            self.time.sleep(_LOOK_SECONDS)
            for each in self.ranks:
                each.progress.look()
            found = self.watch.look(self)  # type: ignore[arg-type]
            if found is not None:
                self.verdicts.append((self.time.now, found))
            self.stragglers += self.watch.stragglers(self)  # type: ignore[arg-type]

    def observe(self) -> list[Observation]:
        """The ranks as the supervisor sees them: hosts sleep, whatever they wait for."""
        positions = read_positions(self.folder, 0)
        return [Observation(each, "S") for each in positions] or [Observation()] * self.layout.world_size

    def tracebacks(self) -> dict[int, tuple[str, ...]]:
        return {each.rank: each.calls for each in self.ranks if self.asked and each.calls}


class FakeRank:
    """One rank: a host that issues, and a device."""

    def __init__(self, run: FakeRun, rank: int) -> None:
        self.run, self.rank, self.time = run, rank, run.time
        self.device = FakeDevice(run.time)
        self.board = ProgressBoard(run.folder, rank, has_device=True)
        self.mark = Mark(self.device)
        self.progress = DeviceProgress(self.board, self.device.event, self.mark, lambda: self.mark.captures)
        self.calls: tuple[str, ...] = ()
        self.step = 0
        self._handles: dict[str, Event] = {}
        self._saving: Event | None = None

    def fault(self, *kinds: str, index: int = 0) -> PlantedFault | None:
        """The fault that is due here."""
        here = (self.rank, self.step, index)
        return next((f for f in self.run.faults if (f.rank, f.step, f.index) == here and f.kind in kinds), None)

    @property
    def factor(self) -> float:
        slow = (f.factor for f in self.run.faults if f.kind == "slow" and f.rank == self.rank and f.step <= self.step)
        return max(slow, default=1.0)

    def _stand(self, seconds: float, *calls: str) -> None:
        self.calls = calls
        self.time.sleep(seconds)
        self.calls = ()

    def main(self) -> None:
        """Trains for ever."""
        while True:
            self.board.enter(READING, self.step)
            read = self.fault("reader")
            self._stand(read.seconds if read is not None else _READ_SECONDS, "data/batches.py:1 in batch")
            program = self.run.resolved.programs_at("train", self.step)[self.run.layout.pp_rank(self.rank)]
            self.board.enter(TRAINING, self.step, program)
            is_replayed = self.run.graphs and self.step >= 3
            if is_replayed:
                self._replay(program.instructions)
            else:
                self._issue(program.instructions, self.progress.record)
            self.progress.record(len(program.instructions))
            end = self.device.event()
            end.record()
            self.calls = _SYNCHRONIZES
            end.synchronize()
            self.calls = ()
            self.step += 1
            self.run.steps[self.rank] = self.step
            if self.run.saves and self.step % self.run.saves == 0:
                self._save()

    def _issue(self, steps: Sequence[Instruction], record: Callable[[int], None]) -> None:
        own = own_work(SimpleNamespace(instructions=steps))  # type: ignore[arg-type]
        computing = sum(works and step.op not in STARTS for works, step in zip(own, steps, strict=True))
        seconds = self.factor * self.run.step_seconds / max(computing, 1)
        self.calls = _LAUNCHING
        for index, step in enumerate(steps):
            record(index)
            if (dead := self.fault("host", index=index)) is not None and not self.device.in_graph:
                self._stand(dead.seconds)
            if (hung := self.fault("compute", index=index)) is not None:
                self.device.kernel(self.device.compute, hung.seconds, 1)
            if step.op is Op.WAIT:
                self.device.compute.wait_event(self._handles.pop(step.handle or ""))
            elif step.op in HOST_COPIES:
                self._copy(step, self.device.stream(step.op.value), index)
            elif step.collectives or step.peer is not None:
                self._communicate(step, index)
            else:
                self.device.kernel(self.device.compute, seconds, _LAUNCHES)
            self.calls = _LAUNCHING

    def _communicate(self, step: Instruction, index: int) -> None:
        if (hung := self.fault("collective", "transfer", index=index)) is not None:
            self._stand(hung.seconds, *_IN_CALL)
        late, before = self.fault("link", index=index), None
        for name, members in peers_of(self.rank, step, self.run.layout):
            if step.peer is not None:
                ends = (self.rank, *members) if step.op in SENDS else (*members, self.rank)
                communicator: tuple[object, ...] = ("transfer", *ends)
            else:
                communicator = (name, members)
            rendezvous = self.run.network.call(self.rank, communicator, 2 if step.peer is not None else len(members))
            rendezvous.extra += late.seconds if late is not None else 0.0
            stream = self.device.stream(str(communicator))
            if before is None:  # else its first phase
                before = self.device.event()
                before.record()
            stream.wait_event(before)
            stream.launch(partial(self.run.network.join, rendezvous, _CALL_SECONDS))
            before = self.device.event()
            before.record(stream)
        assert before is not None
        self._handles[step.short] = before
        if step.op not in STARTS:
            self.device.compute.wait_event(self._handles.pop(step.short))
            self.device.kernel(self.device.compute, 1e-3, 1)

    def _copy(self, step: Instruction, stream: Stream, index: int) -> None:
        before = self.device.event()
        before.record()
        stream.wait_event(before)
        late = self.fault("link", "transfer", index=index)
        self.device.kernel(stream, late.seconds if late is not None else _CALL_SECONDS, 1)
        self._handles[step.short] = after = self.device.event()
        after.record(stream)

    def _replay(self, steps: Sequence[Instruction]) -> None:
        """The host captures a step once, which computes nothing, and then replays it by one call."""
        if not self.mark.captured:
            self.mark.captures = True
            for index in range(len(steps) + 1):
                self.progress.record(index)
            self.mark.captures = False
        self.progress.replay()
        self.device.in_graph = True
        self._issue(
            steps, lambda index: self.mark.write(index) if index in self.mark.captured and self.run.marked else None
        )
        self.device.in_graph = False

    def _save(self) -> None:
        self.board.enter(SAVING, self.step)
        self.calls = ("threading.py:1 in join",)
        if self._saving is not None:
            self._saving.synchronize()
        self.calls = ()
        if self.run.is_beside:
            self._saving = self.device.event()
            self.device.stream("storage").launch(partial(self._write, self.step))
            self._saving.record(self.device.stream("storage"))
        else:
            self._write(self.step)

    def _write(self, step: int) -> None:
        """This rank's part, and the wait for all others'; of a thread where it is beside training."""
        hung = next((f for f in self.run.faults if (f.kind, f.rank, f.step) == ("save", self.rank, step)), None)
        self.board.saves(WRITING)
        if not self.run.is_beside:
            self.calls = _STORAGE
        self.time.sleep(hung.seconds if hung is not None else _SAVE_SECONDS)
        self.board.saves(WAITING)
        if not self.run.is_beside:
            self.calls = _BARRIER
        self.run.network.join(self.run.network.call(self.rank, "save", self.run.layout.world_size), _CALL_SECONDS)
        self.board.saves(0)
        self.calls = self.calls if self.run.is_beside else ()
