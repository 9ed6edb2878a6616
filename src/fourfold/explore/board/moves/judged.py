"""The answers of verifier and simulator on programs whose instructions were moved. Both take the programs as they are."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from fourfold.api.verification import Verification
from fourfold.config import UserError
from fourfold.explore.board.moves.link import Order
from fourfold.explore.board.moves.setting import Compiled, RankList
from fourfold.program import Fault, Instruction, Program
from fourfold.program.instruction import Op
from fourfold.program.ops import OTHER_END
from fourfold.simulate.step import IDLE, Simulation, exposed_axes, mean_seconds, simulate

GATHERS = f" {Op.GATHER.words}"
"""The end of the kinds of time in which a rank waits for gathered parameters."""
Spot = tuple[int, int]
"""A list, and the number of one of its instructions in the compiler's order."""
_NAMES = re.compile(r"[^\s,;`]+")


@dataclass(frozen=True)
class Judged:
    """Moved programs, with the verifier's answer and the simulator's."""

    compiled: Compiled
    orders: tuple[Order, ...]

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The program of every list. Lists of one pipeline rank whose orders are equal share an object, as ranks do where the
        compiler made it."""
        made: dict[tuple[int, Order], Program] = {}
        for own, order in zip(self.compiled.lists, self.orders, strict=True):
            key = own.program.pp_rank, order
            if key not in made:
                steps = own.instructions
                unmoved = order == tuple(range(len(steps)))
                made[key] = own.program if unmoved else own.program.with_instructions([steps[n] for n in order])
        return tuple(
            made[own.program.pp_rank, order] for own, order in zip(self.compiled.lists, self.orders, strict=True)
        )

    @cached_property
    def by_rank(self) -> Mapping[int, Program]:
        """The program of every rank."""
        pairs = zip(self.compiled.lists, self.programs, strict=True)
        return dict(sorted((rank, program) for own, program in pairs for rank in own.ranks))

    @cached_property
    def verification(self) -> Verification:
        """The verifier's answer."""
        return Verification.of(self.compiled.resolved, [self.by_rank])

    @cached_property
    def proved(self) -> bool:
        """Whether the verifier has no fault."""
        return self.verification.sound

    @cached_property
    def _simulated(self) -> Simulation | str:
        """The simulated step, or why there is none."""
        by_stage: dict[int, Program] = {}
        for program in self.programs:
            if by_stage.setdefault(program.pp_rank, program) is not program:
                return "no price: the simulator runs one list for each pipeline rank, and here ranks of one have different lists"
        programs = [by_stage[pp_rank] for pp_rank in sorted(by_stage)]
        try:
            return simulate(self.compiled.resolved.spec, self.compiled.prices, programs)
        except UserError as error:
            return f"no price: {error}"

    @property
    def simulation(self) -> Simulation | None:
        """The simulated step; None where the simulator cannot run it to its end."""
        return self._simulated if isinstance(self._simulated, Simulation) else None

    @property
    def unpriced(self) -> str:
        """Why there is no simulated step; empty where there is one."""
        return self._simulated if isinstance(self._simulated, str) else ""

    @cached_property
    def spent(self) -> dict[str, float]:
        """Seconds by kind, mean over pipeline ranks; empty without a simulated step."""
        return mean_seconds(self.simulation.spent) if self.simulation is not None else {}

    @property
    def exposed(self) -> dict[str, float]:
        """Seconds in which ranks wait for collectives, by kind of time."""
        return {kind: seconds for kind, seconds in self.spent.items() if exposed_axes(kind) is not None}

    @property
    def exposed_gathers(self) -> float:
        """Seconds in which ranks wait for gathered parameters."""
        return sum(seconds for kind, seconds in self.exposed.items() if kind.endswith(GATHERS))

    @property
    def idle(self) -> float:
        """Seconds in which ranks wait for other stages."""
        return self.spent.get(IDLE, 0.0)

    @property
    def peak_bytes(self) -> int:
        """The most bytes of buffers that a rank holds, by liveness; 0 without a simulated step."""
        return max((max(curve) for curve in self.simulation.curves), default=0) if self.simulation is not None else 0

    # What a fault speaks of

    def list_of(self, rank: int) -> int:
        """The list that a rank runs."""
        return next(number for number, own in enumerate(self.compiled.lists) if rank in own.ranks)

    def spot_of(self, fault: Fault) -> Spot | None:
        """The instruction of a fault; None where it is one of the list as a whole."""
        number = self.list_of(fault.rank)
        order = self.orders[number]
        return (number, order[fault.index]) if fault.instruction is not None and fault.index < len(order) else None

    def about(self, fault: Fault) -> list[Spot]:
        """Instructions that the fault's sentence speaks of: those of its list that write, fill or free a buffer that it names, and
        those that it names by their short form, of the lists of all ranks that it names."""
        number = self.list_of(fault.rank)
        own, at = self.compiled.lists[number], self.spot_of(fault)
        text = f"{fault.message}; {fault.fix}"
        buffers = own.program.buffers.keys() & set(_NAMES.findall(text))
        named = set(re.findall(r"`([^`]+)`", text))
        found = [
            (number, n)
            for n, step in enumerate(own.instructions)
            if step.short in named or not buffers.isdisjoint(_changes(own, n))
        ]
        others = {self.list_of(int(rank)) for rank in re.findall(r"rank ([0-9]+)", text)} - {number}
        found += [
            (other, n)
            for other in sorted(others)
            for n, step in enumerate(self.compiled.lists[other].instructions)
            if step.short in named
        ]
        return [spot for spot in found if spot != at]

    def awaited(self, fault: Fault) -> list[Spot]:
        """Instructions of other lists that a rank which waits for ever waits for them to reach."""
        spot = self.spot_of(fault)
        if spot is None or not is_endless(fault):
            return []
        number, n = spot
        started = self.compiled.lists[number].started(n)
        return list(self._counterparts(number, started)) if started is not None else []

    def _counterparts(self, number: int, step: Instruction) -> Iterator[Spot]:
        """The other ends of a transfer, or the other members' starts of a collective, that have not been reached."""
        for other, own in enumerate(self.compiled.lists):
            if other == number:
                continue
            if step.op.is_transfer and own.program.pp_rank != step.peer:
                continue
            for place, n in enumerate(self.orders[other]):
                each = own.instructions[n]
                if _meets(step, each) and place >= self._reached(other):
                    yield other, n

    def _reached(self, number: int) -> int:
        """How far a list comes: where its rank waits for ever; its end where it does not."""
        ends = [
            fault.index
            for fault in self.verification.faults
            if is_endless(fault) and self.list_of(fault.rank) == number
        ]
        return min(ends, default=len(self.orders[number]))


def is_endless(fault: Fault) -> bool:
    """Whether the fault is that of a rank that never goes on."""
    return fault.message.startswith("waits for ever")


def _meets(step: Instruction, other: Instruction) -> bool:
    """Whether one is the other's end, or the same collective on another rank."""
    if step.op.is_transfer:
        same = (step.segment, step.microbatch) == (other.segment, other.microbatch)
        return other.op is OTHER_END[step.op] and same
    return other.short == step.short and other.op is step.op


def _changes(own: RankList, number: int) -> set[str]:
    """Buffers that come or go with an instruction: those it fills or frees, and those whose transfer it starts or joins."""
    step, started = own.instructions[number], own.started(number)
    fills = started is not None and (started.op.fills or started.op.is_start)
    return {*step.frees, *(started.writes if started is not None and fills else ())}


def judged(compiled: Compiled, orders: Sequence[Order]) -> Judged:
    """The programs of a setting in these orders."""
    return Judged(compiled, tuple(orders))


def unmoved(compiled: Compiled) -> Judged:
    """The programs as the compiler made them."""
    return judged(compiled, [tuple(range(len(each.instructions))) for each in compiled.lists])
