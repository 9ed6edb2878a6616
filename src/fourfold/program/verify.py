"""The verifier checks a step without running it. For each fault it names rank, index, instruction, and the fix.

Three walks over the same lists. Buffers (`_Buffers`): nothing is read before it is written or after it is freed, nothing
in flight is touched, nothing leaks; microbatches that do the same are walked once (`partitions.py`). Gradients
(`gradient_flow.py`): every contribution is reduced exactly once over every axis, then updated once. Groups
(`progress.py`): every member of a group enters the same collectives in the same order, transfers pair up, nobody waits for
ever.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fourfold.program.capabilities import check
from fourfold.program.declarations import check_declarations
from fourfold.program.fault import Fault
from fourfold.program.gradient_flow import check_gradients
from fourfold.program.instruction import Instruction
from fourfold.program.liveness import memory_peak
from fourfold.program.ops import Op
from fourfold.program.program import Program
from fourfold.program.progress import check_progress
from fourfold.program.spec import StepSpec
from fourfold.program.view import rank_views

__all__ = ["Fault", "verify"]


def verify(programs: Mapping[int, Program], spec: StepSpec, memory_limit_bytes: int | None = None) -> list[Fault]:
    """Checks the programs of all ranks (by rank; ranks that share an object are checked once). An empty list is the proof. A set
    that lacks a rank of the layout, or has one more, is a fault by itself.

    A walk that finds faults is the last, since later ones would only echo them.
    """
    incomplete = _check_ranks(programs, spec.layout.world_size)
    if incomplete:
        return incomplete
    representatives = {id(program): rank for rank, program in sorted(programs.items(), reverse=True)}
    views, faults = rank_views(spec), list[Fault]()
    for rank in sorted(representatives.values()):
        program = programs[rank]
        pp_rank = spec.layout.pp_rank(rank)
        if program.pp_rank != pp_rank:
            message = f"rank {rank} has pipeline coordinate {pp_rank}, the program is that of {program.pp_rank}"
            faults.append(Fault.at(rank, program, 0, message, f"give it the program of pp_rank {pp_rank}"))
            continue
        own = views[pp_rank]
        faults += check_buffers(rank, program)
        faults += check_declarations(rank, program, own)
        if not faults:
            faults += check_gradients(rank, program, own)
            faults += check(rank, program, own)
        if memory_limit_bytes is None or faults:
            continue
        peak = memory_peak(program)
        if peak.bytes > memory_limit_bytes:
            largest, size = peak.buffers[0]
            faults.append(
                Fault(
                    rank,
                    peak.index,
                    program.instructions[peak.index],
                    f"peak memory is {peak.bytes} bytes, the limit {memory_limit_bytes}; "
                    f"the largest buffer is {largest} with {size}",
                    "shard more (layout.zero), recompute more (layout.recompute), or use smaller microbatches",
                )
            )
    if not faults:
        faults += check_progress(programs, spec.layout)
    return faults


def _check_ranks(programs: Mapping[int, Program], world_size: int) -> list[Fault]:
    missing = [rank for rank in range(world_size) if rank not in programs]
    beyond = sorted(rank for rank in programs if not 0 <= rank < world_size)
    faults = []
    if missing:
        problem = f"no program is given for {_named(missing)} of the layout's {world_size} ranks"
        faults.append(Fault(missing[0], 0, None, problem, "give the program of every rank"))
    if beyond:
        problem = f"a program is given for {_named(beyond)}, and the layout has ranks 0 to {world_size - 1}"
        faults.append(Fault(beyond[0], 0, None, problem, "leave it out"))
    return faults


def _named(ranks: Sequence[int], shown: int = 8) -> str:
    """`rank 3`, `ranks 1, 3`, `ranks 0, 1, 2 and 61 more`."""
    more = f" and {len(ranks) - shown} more" if len(ranks) > shown else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:shown]))}{more}"


@dataclass
class _Buffers:
    """Live buffers and buffers in flight, while a partition of a program is walked. `places`: its instructions in the program."""

    rank: int
    program: Program
    places: Sequence[int]
    resident: frozenset[str]
    live: set[str]
    freed: set[str] = field(default_factory=set)
    arriving: dict[str, str] = field(default_factory=dict)
    """Buffers that a started transfer will fill -> its handle."""
    leaving: dict[str, str] = field(default_factory=dict)
    """Buffers that a started transfer still reads -> its handle."""
    handles: dict[str, Instruction] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def fault(self, index: int, message: str, fix: str) -> None:
        self.faults.append(Fault.at(self.rank, self.program, self.places[index], message, fix))

    def walk(self, instructions: Sequence[Instruction]) -> list[Fault]:
        """The faults of the partition. An instruction that was right is right again while nothing was started or freed, and it
        changes nothing then."""
        right = set[int]()
        for index, step in enumerate(instructions):
            if id(step) in right:
                continue
            before = len(self.faults)
            self.step(index, step)
            if step.frees or step.op.is_start:
                right.clear()
            elif len(self.faults) == before and step.op is not Op.WAIT and not (step.writes and step.op.fills):
                right.add(id(step))
        last = len(self.program.instructions) - 1
        for handle in self.handles:
            problem = f"the step ends while {handle} is in flight"
            self.faults.append(Fault.at(self.rank, self.program, last, problem, f"add `wait {handle}`"))
        for name in sorted(self.live - self.resident):
            problem, fix = f"the step ends with {name} still live", f"free {name} after its last use"
            self.faults.append(Fault.at(self.rank, self.program, last, problem, fix))
        return self.faults

    def step(self, index: int, step: Instruction) -> None:
        op, reads, writes, frees = step.op, step.reads, step.writes, step.frees
        live, arriving, leaving = self.live, self.arriving, self.leaving
        if op is Op.WAIT:
            self._join(index, step)
        if not (live.issuperset(reads) and arriving.keys().isdisjoint(reads)):
            for name in reads:
                self._read(index, name)
        if writes:
            flying = not (arriving.keys().isdisjoint(writes) and leaving.keys().isdisjoint(writes))
            if flying or (op.fills and not live.isdisjoint(writes)):
                for name in writes:
                    self._write(index, step, name)
            live.update(writes)
            self.freed.difference_update(writes)
        if op.is_start:
            self._start(index, step)
        if frees:
            for name in frees:
                if name in arriving or name in leaving or name not in live or name in self.resident:
                    self._free(index, name)
                live.discard(name)
            self.freed.update(frees)

    def _read(self, index: int, name: str) -> None:
        if name in self.arriving:
            self.fault(
                index,
                f"reads {name}, which {self.arriving[name]} is still filling",
                f"put `wait {self.arriving[name]}` before it",
            )
        elif name not in self.live:
            state = "after it is freed" if name in self.freed else "before it is written"
            self.fault(index, f"reads {name} {state}", f"write {name} first, or free it later")

    def _write(self, index: int, step: Instruction, name: str) -> None:
        for flying in (self.arriving, self.leaving):
            if name in flying:
                self.fault(
                    index, f"writes {name}, which {flying[name]} is using", f"put `wait {flying[name]}` before it"
                )
        if name in self.live and step.op.fills:
            self.fault(index, f"fills {name}, which is live already", "drop this instruction, or free the buffer first")

    def _start(self, index: int, step: Instruction) -> None:
        short = step.short
        if short in self.handles:
            self.fault(index, f"{short} is in flight already", f"put `wait {short}` between the two")
        self.handles[short] = step
        self.arriving.update(dict.fromkeys(step.writes, short))
        self.leaving.update({name: short for name in step.reads if name not in step.writes})

    def _join(self, index: int, step: Instruction) -> None:
        started = self.handles.pop(step.handle or "", None)
        if started is None:
            self.fault(index, f"waits for {step.handle!r}, which is not in flight", "start it first, or drop this Wait")
            return
        for name in started.writes:
            if self.arriving.get(name) == step.handle:
                del self.arriving[name]
        for name in started.reads:
            if self.leaving.get(name) == step.handle:
                del self.leaving[name]

    def _free(self, index: int, name: str) -> None:
        flying = self.arriving.get(name) or self.leaving.get(name)
        if flying:
            self.fault(index, f"frees {name}, which {flying} is using", f"put `wait {flying}` before it")
        elif name not in self.live:
            again = "a second time" if name in self.freed else "though it was never written"
            self.fault(index, f"frees {name} {again}", "drop it from this instruction's frees")
        elif name in self.resident:
            self.fault(index, f"frees {name}, which outlives the step", "drop it from this instruction's frees")


def check_buffers(rank: int, program: Program) -> list[Fault]:
    """Reads, writes, frees and waits of one list."""
    common, own = program.partitions
    resident = frozenset(program.resident)
    faults = _Buffers(rank, program, common.places[0], resident, set(resident)).walk(common.make(0))
    for partition in own:
        for k, places in enumerate(partition.places):
            found = _Buffers(rank, program, places, frozenset(), set()).walk(partition.make(k))
            faults += found
            if not found:
                break  # equal partitions are right too
    return sorted(faults, key=lambda fault: fault.index)
