"""A pipeline's meaning, worked out on symbols: which gradients every parameter of every rank was updated with.

Independent of the verifier and of lowering: like the runtime, it reads the operation, segment, microbatch, peer, handle,
collectives and frees of each instruction and knows of itself what each operation does. All ranks run their own lists; whoever
waits, waits until those it waits for have come. Whatever is in flight must not be touched, since a transfer may happen at any
time between its start and its Wait. A tensor is a multiset of contributions (`symbolic_values.py`), in cells that no shard and
no partial sum divides. Collectives inside a segment have no values here; that a group enters the same in one order is checked.
"""

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fourfold.program import Collective, Instruction, Op, Program, StepSpec, rank_view
from fourfold.program.overlap.rows import OverlapOp
from tests.support import symbolic_copies as copies
from tests.support.opcodes import RECEIVES, REDUCTIONS, SENDS
from tests.support.symbolic_parts import ALL_TO_ALLS, ARRIVED, exchanged, set_out
from tests.support.symbolic_ranks import COMPUTES, Entry, Group, Rank, Started, compute, counts_all
from tests.support.symbolic_values import Parameters, Run, need

UNIT_STARTS = (*REDUCTIONS, Op.REDUCE_TIED, Op.GATHER, Op.PARAMETER_ALL_GATHER)


class _World:
    """All ranks, what each group has entered, what each pair of ranks has sent and received."""

    def __init__(self, programs: Mapping[int, Program], spec: StepSpec) -> None:
        self.layout = spec.layout
        halves = (
            (number, step.segment, step.microbatch)
            for number, program in programs.items()
            for step in program.instructions
            if step.op in (Op.BACKWARD_INPUT, OverlapOp.EXPERTS_BACKWARD)
        )
        self.parameters = _parameters(spec, frozenset(halves))
        self.ranks = {}
        for number, program in programs.items():
            own = rank_view(spec, self.layout.coordinates(number)["pp"])
            need(program.pp_rank == own.pp_rank, "a rank runs another stage's program")
            live: dict[str, Any] = dict.fromkeys(program.resident, True)
            live.update(self.parameters.initial(number, program.resident))
            self.ranks[number] = Rank(number, program, own, live, exchanged(program.instructions))
            copies.begin(self.ranks[number])
        self.entered: dict[Group, dict[int, list[Entry]]] = {}
        self.sent: dict[tuple[int, int], list[Started]] = {}
        self.received: dict[tuple[int, int], list[Started]] = {}

    def run(self) -> None:
        moved = True
        while moved:
            moved = False
            for rank in self.ranks.values():
                while rank.counter < len(rank.program.instructions) and self.step(rank):
                    rank.counter += 1
                    moved = True
        for rank in self.ranks.values():
            need(rank.counter == len(rank.program.instructions), f"rank {rank.number} waits for ever")
            self.finish(rank)

    def step(self, rank: Rank) -> bool:
        """Runs one instruction; False where it must wait."""
        step = rank.program.instructions[rank.counter]
        if step.op is Op.WAIT:
            need(step.handle in rank.flying, f"nothing like {step.handle} is under way")
            started = rank.flying[step.handle or ""]
            if not self.ready(started):
                return False
            del rank.flying[step.handle or ""]
            self.land(rank, started)
        elif step.op in SENDS | RECEIVES:
            self.start_transfer(rank, step)
        elif step.op in (*UNIT_STARTS, *ALL_TO_ALLS, *copies.COPIES, Op.COUNT, Op.SUM_LOSS):
            self.start(rank, step)
        elif not self.blocking(rank, step):
            return False
        for name in step.frees:
            rank.drop(name)
        return True

    # Groups

    def enter(self, started: Started, collectives: tuple[Collective, ...]) -> None:
        for which, collective in enumerate(collectives):
            axes = tuple(collective.axes.split("+"))
            group = self.layout.group_of(started.rank.number, axes)
            need(started.rank.number in group, f"rank {started.rank.number} is not of the group {group}")
            mine = self.entered.setdefault(group, {}).setdefault(started.rank.number, [])
            started.entries.append((group, len(mine)))
            mine.append((started, which))

    def members(self, started: Started, which: int) -> list[Entry] | None:
        """The values that the members of the group entered as this collective; None: not all have come."""
        if which in started.met:
            return started.met[which]
        group, position = started.entries[which]
        result = []
        for member in group:
            entered = self.entered[group].get(member, [])
            if len(entered) <= position:
                return None
            result.append(entered[position])
        mine = started.step.collectives[which]
        for other, theirs in result:
            there = other.step.collectives[theirs]
            same = (other.step.short, there.kind, there.axes, there.bytes) == (
                started.step.short, mine.kind, mine.axes, mine.bytes,
            )  # fmt: skip
            need(same, f"{started.step.short} meets {other.step.short}")
        started.met[which] = result
        return result

    def ready(self, started: Started) -> bool:
        if started.channel is not None:
            return len(self.partners(started)) > started.position
        return self.ready_up_to(started, len(started.entries))

    def phase_ready(self, started: Started, which: int) -> bool:
        """Whether all members have come, with what their earlier collectives gave them. Computations have no values here."""
        members = self.members(started, which)
        if members is None or started.step.op in (*COMPUTES, *ALL_TO_ALLS):
            return members is not None
        return all(theirs == 0 or other is started or self.ready_up_to(other, theirs) for other, theirs in members)

    def ready_up_to(self, started: Started, number: int) -> bool:
        while started.joined < number and self.phase_ready(started, started.joined):
            started.joined += 1
        return started.joined >= number

    def blocking(self, rank: Rank, step: Instruction) -> bool:
        """An instruction that enters its collectives and goes on when all members have."""
        if rank.blocked is None:
            rank.blocked = Started(step, rank, self.taken_by(rank, step))
            self.enter(rank.blocked, step.collectives)
        if not self.ready(rank.blocked):
            return False
        started, rank.blocked = rank.blocked, None
        if step.op in COMPUTES:
            compute(rank, step, self.parameters)
        else:
            self.local(rank, started)
        return True

    def taken_by(self, rank: Rank, step: Instruction) -> Any:
        if step.op is Op.CLIP_NORM:
            return self.parameters.parts(rank.number)
        if step.op is Op.BALANCE:
            return Counter(key for key in rank.losses if key[1] != "head")
        return None

    def everyone(self, started: Started) -> Any:
        """The values that all collectives of the instruction leave on its rank, one after another."""
        return self.after(started, len(started.entries) - 1)

    def after(self, started: Started, which: int) -> Any:
        """The values that the rank has after the collective; -1: those that it took along."""
        if which < 0:
            return started.taken
        if which not in started.values:
            own, states = self.after(started, which - 1), []
            for other, theirs in self.members(started, which) or []:
                states.append(self.after(other, theirs - 1))
            started.values[which] = self.combine(started, which, own, states)
        return started.values[which]

    def combine(self, started: Started, which: int, own: Any, states: list[Any]) -> Any:
        if started.step.op in UNIT_STARTS:
            return self.parameters.combine(started, which, own, states)
        if started.step.op is Op.CLIP_NORM:
            return frozenset().union(*states)
        return sum(states, Counter()) if isinstance(own, Counter) else own

    # Transfers between stages

    def start_transfer(self, rank: Rank, step: Instruction) -> None:
        need(step.short not in rank.flying, f"{step.short} is under way already")
        need(step.peer is not None and 0 <= step.peer < self.layout.pp, "no such peer")
        other = self.layout.rank_of({**self.layout.coordinates(rank.number), "pp": step.peer or 0})
        gradient = step.op in (Op.SEND_GRADIENT, Op.RECV_GRADIENT)
        name = f"{'dhidden' if gradient else 'hidden'}/{step.segment}/m{step.microbatch}"
        started = Started(step, rank)
        if step.op in SENDS:
            started.taken, started.reads = rank.get(name), frozenset([name])
            started.channel, queues = (rank.number, other), self.sent
        else:
            rank.put(name, None)
            started.writes = frozenset([name])
            started.channel, queues = (other, rank.number), self.received
        queue = queues.setdefault(started.channel, [])
        started.position = len(queue)
        queue.append(started)
        rank.flying[step.short] = started

    def partners(self, started: Started) -> list[Started]:
        queues = self.received if started.step.op in SENDS else self.sent
        return queues.get(started.channel or (0, 0), [])

    # Collectives on units and on scalars

    def start(self, rank: Rank, step: Instruction) -> None:
        need(step.short not in rank.flying, f"{step.short} is under way already")
        started = Started(step, rank)
        if step.op in UNIT_STARTS:
            self.parameters.start(started)
        elif step.op in copies.COPIES:
            copies.start(started)
        elif step.op in ALL_TO_ALLS:
            started.writes = frozenset([set_out(rank, step)])
        elif step.op is Op.COUNT:
            started.taken = Counter([rank.number])
        else:
            started.taken = Counter(rank.losses)
        self.enter(started, step.collectives)
        rank.flying[step.short] = started

    def land(self, rank: Rank, started: Started) -> None:
        """Completes the transfer when it is joined."""
        step = started.step
        if started.channel is not None:
            if step.op in RECEIVES:
                (name,) = started.writes
                rank.live[name] = self.partners(started)[started.position].taken
        elif step.op in UNIT_STARTS:
            self.parameters.land(started, self.everyone(started))
        elif step.op in copies.COPIES:
            copies.land(started)
        elif step.op in ALL_TO_ALLS:
            rank.live.update(dict.fromkeys(started.writes, ARRIVED))
        elif step.op is Op.COUNT:
            need(rank.counted is None, "targets are counted twice")
            rank.counted = self.everyone(started)
        else:
            need(rank.recorded is None, "the loss is summed twice")
            need(rank.losses == started.taken, "a loss came after the sum")
            rank.recorded = self.everyone(started)

    # What a rank does alone

    def local(self, rank: Rank, started: Started) -> None:
        step, training = started.step, rank.program.kind == "train"
        if step.op is Op.LOAD:
            need(step.microbatch in range(self.layout.num_microbatches), "no such microbatch")
            rank.put(f"batch/m{step.microbatch}", True)
        elif step.op is Op.CLIP_NORM and training:
            need(not rank.clipped, "the norm is taken twice")
            rank.clipped = True
            for unit in rank.view.flats:
                self.parameters.check_gradient(rank, unit)
            need(self.everyone(started) == self.parameters.full, "the norm is not that of the whole gradient")
        elif step.op is Op.BALANCE and training:
            need(rank.loads is None, "the loads are summed twice")
            rank.loads = self.everyone(started)
            need(rank.loads == self.routed(), "the loads are not those of all tokens")
        elif step.op is Op.UPDATE and training:
            need(rank.clipped, "updated before the norm")
            self.parameters.update(rank, step.segment or "")
            copies.update(rank, step.segment or "")
        else:
            need(step.op is Op.FREE, f"{step.op} has no place here")

    def routed(self) -> Counter[tuple[int, str, int]]:
        """Every token's way through every router."""
        return Counter(
            (rank.number, segment.name, m)
            for rank in self.ranks.values()
            for segment in rank.view.moe_segments
            for m in range(self.layout.num_microbatches)
        )

    # The end

    def finish(self, rank: Rank) -> None:
        need(not rank.flying, f"still under way: {list(rank.flying)}")
        need(rank.live.keys() == set(rank.program.resident), f"live at the end: {sorted(rank.live)}")
        training = rank.program.kind == "train"
        self.parameters.check_end(rank, 1 if training else 0)
        if training:
            copies.check_end(rank)
        need(counts_all(rank), "targets are counted another number of times")
        losses = self.losses(rank, training)
        recorded = Counter(rank.losses) if rank.recorded is None else rank.recorded
        need(recorded == losses, f"rank {rank.number} records another loss")
        routers = training and rank.view.spec.model.num_experts > 0
        need((rank.loads is not None) == routers, "the experts' loads are never summed")
        for segment in rank.view.segments:
            for m in range(self.layout.num_microbatches):
                wanted = not training or segment.kind == "head" or rank.passed[segment.name, m, Op.FORWARD] == 1
                need(wanted, f"{segment.name} m{m} never runs")

    def losses(self, rank: Rank, training: bool) -> Counter[tuple[int, str, int]]:
        """The full batch's: tensor-parallel ranks all know the head's, but each only its own part of the routers'."""
        routers = rank.view.spec.model.num_experts > 0
        axes = ("pp", "dp_replicate", "dp_shard", "cp", *(("tp",) if routers else ()))
        result: Counter[tuple[int, str, int]] = Counter()
        for number in self.layout.group_of(rank.number, axes):
            for segment in self.ranks[number].view.segments:
                if segment.kind == "head" or (segment.moe and training):
                    result.update((number, segment.name, m) for m in range(self.layout.num_microbatches))
        return result


@lru_cache(maxsize=4)
def _parameters(spec: StepSpec, halves: frozenset[Run]) -> Parameters:
    return Parameters(spec, halves)


def run_symbolically(programs: Mapping[int, Program], spec: StepSpec) -> None:
    """Raises `Wrong` unless the programs, run by all ranks, do one full step and leave nothing behind."""
    _World(programs, spec).run()
