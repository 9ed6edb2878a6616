"""One rank on symbols: what it holds, what it has under way, and what it computes alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fourfold.program import Instruction, Op, Program, RankView
from tests.support.symbolic_parts import PARTS, READY, begins_parts, part
from tests.support.symbolic_values import Parameters, need

COMPUTES = (Op.FORWARD, Op.RECOMPUTE, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, *PARTS)
Group = tuple[int, ...]
Entry = tuple["Started", int]
"""A started instruction and which of its collectives."""


@dataclass
class Started:
    """An instruction under way on one rank, with what it took along. `joined`: how many of its collectives are done; `met`: with
    whom; `values`: with what result."""

    step: Instruction
    rank: "Rank"
    taken: Any = None
    entries: list[tuple[Group, int]] = field(default_factory=list)
    channel: tuple[int, int] | None = None
    position: int = 0
    writes: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    joined: int = 0
    met: dict[int, list["Entry"]] = field(default_factory=dict)
    values: dict[int, Any] = field(default_factory=dict)


@dataclass
class Rank:
    number: int
    program: Program
    view: RankView
    live: dict[str, Any]
    exchanged: frozenset[Any] = frozenset()
    counter: int = 0
    flying: dict[str, Started] = field(default_factory=dict)
    blocked: Started | None = None
    passed: Counter[tuple[str, int, Op]] = field(default_factory=Counter)
    losses: Counter[tuple[int, str, int]] = field(default_factory=Counter)
    recorded: Any = None
    counted: Any = None
    loads: Any = None
    clipped: bool = False

    def get(self, name: str) -> Any:
        """Reads a buffer."""
        for handle, started in self.flying.items():
            need(name not in started.writes, f"{name} is read while {handle} fills it")
        need(name in self.live, f"{name} is not there")
        return self.live[name]

    def settled(self, name: str) -> None:
        """Before a buffer is written or dropped."""
        for handle, started in self.flying.items():
            need(name not in started.writes | started.reads, f"{name} is touched while {handle} is under way")

    def put(self, name: str, value: Any) -> None:
        """Writes a buffer that is not there yet."""
        self.settled(name)
        need(name not in self.live, f"{name} is made though it is there")
        self.live[name] = value

    def drop(self, name: str) -> None:
        self.settled(name)
        need(name in self.live, f"{name} is dropped though it is not there")
        need(name not in self.program.resident, f"{name} is dropped though it outlives the step")
        del self.live[name]


# Computation


def compute(rank: Rank, step: Instruction, parameters: Parameters) -> None:
    m = step.microbatch if step.microbatch is not None else -1
    names = [s.name for s in rank.view.spec.segments]
    need(step.segment in {s.name for s in rank.view.segments}, f"{step.segment} is not here")
    index = names.index(step.segment or "")
    segment, name = rank.view.spec.segments[index], names[index]
    following = f"{names[index + 1]}/m{m}" if index + 1 < len(names) else ""
    rank.passed[name, m, step.op] += 1
    need(rank.passed[name, m, step.op] == 1, f"{step.short} runs twice")
    training, full = rank.program.kind == "train", rank.view.stages.policies[segment.name] == "full"
    if step.op is Op.BACKWARD_WEIGHT:
        need(segment.kind == "block" and training, f"{step.short} is not of this step")
        need(rank.get(f"deferred/{name}/m{m}"), "nothing was deferred")
        parameters.add(rank, segment, m, step.op)
        return
    if step.op in PARTS:
        need(segment.moe and training, f"{step.short} is not of this step")
        part(rank, segment, step, following, parameters)
        return
    if step.op is Op.BACKWARD and begins_parts(rank, step):
        after = following.partition("/")[0]
        found = rank.get(f"dhidden/{following}")
        need(found == f"gradient of {after} for m{m}", f"backward of {name} m{m} reads {found}")
        need(rank.get(f"saved/{name}/m{m}"), "backward of nothing")
        rank.put(f"ddispatched/{name}/m{m}", READY)
        return
    units = segment.units
    if begins_parts(rank, step):
        units = [unit for unit in units if rank.view.flats[unit].domain == "dense"]
    _read_inputs(rank, segment, m, step.op, parameters, units)
    if begins_parts(rank, step):
        rank.put(f"dispatched/{name}/m{m}", READY)
        return
    if step.op in (Op.FORWARD, Op.RECOMPUTE):
        need(step.op is Op.FORWARD or (training and full), f"{step.short} is not of this step")
        need(segment.kind != "head" or not training, f"{step.short} is not of this step")
        if segment.kind == "block" and training and (step.op is Op.RECOMPUTE or not full):
            rank.put(f"saved/{name}/m{m}", True)
        if step.op is Op.FORWARD and segment.kind == "head":
            rank.losses[rank.number, "head", m] += 1
        elif step.op is Op.FORWARD:
            rank.put(f"hidden/{following}", f"output of {name} for m{m}")
        return
    need(training, "backward in an evaluation")
    _backward(rank, segment, m, following, step.op, parameters)


def _read_inputs(rank: Rank, segment: Any, m: int, op: Op, parameters: Parameters, units: Sequence[str]) -> None:
    """Parameters as the step began with them, the batch, the hidden states that the segment before made."""
    rank.get(f"batch/m{m}")
    if segment.kind != "embedding":
        before = rank.view.spec.segments[[s.name for s in rank.view.spec.segments].index(segment.name) - 1].name
        found = rank.get(f"hidden/{segment.name}/m{m}")
        need(found == f"output of {before} for m{m}", f"{segment.name} m{m} reads {found}")
    if segment.kind != "embedding" or op is Op.FORWARD:
        for unit in units:
            parameters.read(rank, unit)


def _backward(rank: Rank, segment: Any, m: int, following: str, op: Op, parameters: Parameters) -> None:
    name = segment.name
    need(segment.kind == "block" or op is Op.BACKWARD, "no halves of this")
    done = rank.passed[name, m, Op.BACKWARD] + rank.passed[name, m, Op.BACKWARD_INPUT]
    need(done == 1, f"backward of {name} m{m} runs twice")
    if segment.kind == "head":
        need(counts_all(rank), "divided by another number of targets")
        rank.losses[rank.number, "head", m] += 1
    else:
        after = following.partition("/")[0]
        found = rank.get(f"dhidden/{following}")
        need(found == f"gradient of {after} for m{m}", f"backward of {name} m{m} reads {found}")
    if segment.kind == "block":
        need(rank.get(f"saved/{name}/m{m}"), "backward of nothing")
    if segment.moe:
        need(rank.loads is None, "tokens are routed after the loads are summed")
        rank.losses[rank.number, name, m] += 1
    if segment.kind != "embedding":
        rank.put(f"dhidden/{name}/m{m}", f"gradient of {name} for m{m}")
    if op is Op.BACKWARD_INPUT:
        rank.put(f"deferred/{name}/m{m}", True)
    parameters.add(rank, segment, m, op)


def counts_all(rank: Rank) -> bool:
    """Whether the rank knows the valid targets of the full batch: it has those of its own part of it by itself."""
    own = rank.view.spec.layout.group_of(rank.number, ("dp_replicate", "dp_shard", "cp"))
    return (rank.counted or Counter([rank.number])) == Counter(own)
