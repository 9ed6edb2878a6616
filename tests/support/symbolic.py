"""A program's meaning, worked out on symbols: which gradients every parameter was updated with, on every rank.

Independent of the verifier and of lowering: like the runtime, it reads the operation, segment, microbatch, handle and
frees of each instruction; tensors are multisets of the contributions (rank, segment, microbatch) summed in them. Whatever is
in flight must not be touched, since a transfer may happen at any time between its start and its Wait. All ranks run one list.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fourfold.program import Instruction, Lowering, Op, Program

Sum = Counter[tuple[int, str, int]]


class Wrong(Exception):
    """The program does not do a training step, or would crash."""


def _need(condition: object, message: str) -> None:
    if not condition:
        raise Wrong(message)


@dataclass
class _Rank:
    number: int
    live: dict[str, Any]
    loss: Counter[int] = field(default_factory=Counter)
    recorded: Counter[tuple[int, int]] | None = None
    counted: int = 0
    clipped: bool = False


@dataclass
class _World:
    program: Program
    facts: Lowering
    ranks: list[_Rank]
    flying: dict[str, Instruction] = field(default_factory=dict)
    captured: dict[str, list[Counter[int]]] = field(default_factory=dict)

    # Buffers

    def get(self, rank: _Rank, name: str) -> Any:
        self.settled(name)
        _need(name in rank.live, f"{name} is not there")
        return rank.live[name]

    def settled(self, name: str) -> None:
        for handle, step in self.flying.items():
            _need(name not in self.touched(step), f"{name} is touched while {handle} is under way")

    def touched(self, step: Instruction) -> set[str]:
        unit = step.segment
        if step.op is Op.REDUCE:
            return {f"grad/{unit}", f"reduce/{unit}", f"grad_shard/{unit}"}
        if step.op in (Op.GATHER, Op.PUBLISH):
            return {f"params/{unit}", f"shard/{unit}"}
        return set()

    def params(self, rank: _Rank, unit: str) -> None:
        _need(
            set(self.get(rank, f"params/{unit}")) == {0}, f"{unit} is read with other values than the step began with"
        )

    def pieces(self, rank: _Rank) -> range:
        """Chunks of a flat buffer that this rank owns; there are as many chunks as data ranks."""
        layout = self.facts.layout
        if self.facts.zero == 0:
            return range(layout.data_degree)
        index = layout.coordinates(rank.number)["dp_shard"]
        return range(index * layout.dp_replicate, (index + 1) * layout.dp_replicate)

    def group(self, rank: _Rank, axes: str) -> list[_Rank]:
        return [self.ranks[member] for member in self.facts.layout.group_of(rank.number, tuple(axes.split("+")))]

    def complete(self, unit: str) -> Sum:
        layout = self.facts.layout
        return Counter(
            (rank, s.name, m)
            for rank in range(layout.world_size)
            for s in self.facts.segments
            if unit in s.units
            for m in range(layout.num_microbatches)
        )

    def check_gradient(self, rank: _Rank, unit: str) -> None:
        whole = self.get(rank, f"{'grad_shard' if self.facts.zero >= 2 else 'grad'}/{unit}")
        for chunk in self.pieces(rank):
            _need(whole[chunk] == self.complete(unit), f"the gradient of {unit} is {whole[chunk]}")

    # Instructions

    def run(self) -> None:
        for step in self.program.instructions:
            if step.op is Op.WAIT:
                _need(step.handle in self.flying, f"nothing like {step.handle} is under way")
                self.land(self.flying.pop(step.handle or ""))
            elif step.op in (Op.GATHER, Op.PUBLISH, Op.REDUCE, Op.COUNT, Op.SUM_LOSS):
                self.start(step)
            else:
                for rank in self.ranks:
                    self.local(rank, step)
            for name in step.frees:
                for rank in self.ranks:
                    self.get(rank, name)
                    del rank.live[name]
        self.finish()

    def start(self, step: Instruction) -> None:
        _need(step.short not in self.flying, f"{step.short} is under way already")
        unit = step.segment
        for rank in self.ranks:
            if step.op is Op.REDUCE:
                self.get(rank, f"grad/{unit}")
                self.settled(f"grad_shard/{unit}")
                if self.facts.buffer_bytes(f"reduce/{unit}"):
                    self.settled(f"reduce/{unit}")
                    rank.live[f"reduce/{unit}"] = None
            elif step.op is Op.GATHER:
                self.get(rank, f"shard/{unit}")
                _need(f"params/{unit}" not in rank.live, f"{unit} is gathered though it is there")
                rank.live[f"params/{unit}"] = None
            elif step.op is Op.PUBLISH:
                self.get(rank, f"params/{unit}")
        if step.op is Op.SUM_LOSS:
            self.captured[step.short] = [Counter(rank.loss) for rank in self.ranks]
        self.flying[step.short] = step

    def land(self, step: Instruction) -> None:
        """What the transfer has done by the time that it is joined."""
        unit = step.segment
        if step.op is Op.REDUCE:
            self.reduce(step)
        elif step.op is Op.GATHER:
            for rank in self.ranks:
                shards = [other.live[f"shard/{unit}"] for other in self.group(rank, step.collectives[0].axes)]
                rank.live[f"params/{unit}"] = [v for shard in shards for v in shard]
        elif step.op is Op.PUBLISH:
            for rank in self.ranks:
                for other in self.group(rank, step.collectives[0].axes):
                    for chunk in self.pieces(other):
                        rank.live[f"params/{unit}"][chunk] = other.live[f"params/{unit}"][chunk]
        elif step.op is Op.COUNT:
            for rank in self.ranks:
                rank.counted += 1
        elif step.op is Op.SUM_LOSS:
            losses = self.captured.pop(step.short)
            total = Counter({(r, m): n for r, loss in enumerate(losses) for m, n in loss.items()})
            for rank in self.ranks:
                _need(rank.loss == losses[rank.number], "a loss came after the sum")
                _need(rank.recorded is None, "the loss is summed twice")
                rank.recorded = total

    def reduce(self, step: Instruction) -> None:
        unit, zero = step.segment, self.facts.zero
        sums = {}
        for rank in self.ranks:
            members = self.group(rank, step.collectives[0].axes)
            sums[rank.number] = {
                chunk: sum((m.live[f"grad/{unit}"][chunk] for m in members), Counter()) for chunk in self.pieces(rank)
            }
        for rank in self.ranks:
            target = rank.live[f"grad/{unit}"]
            if zero >= 2:
                empty = [Counter() for _ in range(self.facts.layout.data_degree)]
                target = rank.live.setdefault(f"grad_shard/{unit}", empty)
            for chunk, value in sums[rank.number].items():
                target[chunk] = target[chunk] + value if zero >= 2 else value
        for collective in step.collectives[1:]:
            name = f"{'grad_shard' if zero >= 2 else 'grad'}/{unit}"
            totals = {
                r.number: [
                    sum((m.live[name][c] for m in self.group(r, collective.axes)), Counter()) for c in self.pieces(r)
                ]
                for r in self.ranks
            }
            for rank in self.ranks:
                for chunk, value in zip(self.pieces(rank), totals[rank.number], strict=True):
                    rank.live[name][chunk] = value

    def local(self, rank: _Rank, step: Instruction) -> None:
        if step.op is Op.LOAD:
            _need(step.microbatch in range(self.facts.layout.num_microbatches), "no such microbatch")
            _need(f"batch/m{step.microbatch}" not in rank.live, "loaded twice")
            rank.live[f"batch/m{step.microbatch}"] = True
        elif step.op in (Op.FORWARD, Op.RECOMPUTE, Op.BACKWARD):
            self.compute(rank, step)
        elif step.op is Op.CLIP_NORM:
            _need(not rank.clipped, "the norm is taken twice")
            for unit in self.facts.flats:
                self.check_gradient(rank, unit)
            rank.clipped = True
        elif step.op is Op.UPDATE:
            unit = step.segment or ""
            _need(rank.clipped, "updated before the norm")
            self.check_gradient(rank, unit)
            values = self.get(rank, f"shard/{unit}" if self.facts.zero == 3 else f"params/{unit}")
            for chunk in range(len(values)) if self.facts.zero == 3 else self.pieces(rank):
                values[chunk] += 1
        else:
            _need(step.op is Op.FREE, f"{step.op} has no place here")

    def compute(self, rank: _Rank, step: Instruction) -> None:
        names = [s.name for s in self.facts.segments]
        index, m = names.index(step.segment or ""), step.microbatch
        segment = self.facts.segments[index]
        full = self.facts.policy(segment) == "full"
        following = names[index + 1] if index + 1 < len(names) else ""
        if segment.kind != "embedding" or step.op is Op.FORWARD:
            for unit in segment.units:
                self.params(rank, unit)
        if segment.kind != "block" or step.op is not Op.BACKWARD:
            self.get(rank, f"batch/m{m}")
        if segment.kind != "embedding":
            self.get(rank, f"hidden/{segment.name}/m{m}")
        if step.op is not Op.BACKWARD:
            _need(segment.kind != "head" and (step.op is Op.FORWARD or full), f"{step.short} is not of this step")
            made = f"saved/{segment.name}/m{m}"
            if segment.kind == "block" and (step.op is Op.RECOMPUTE or not full):
                _need(made not in rank.live, "computed twice")
                rank.live[made] = True
            if step.op is Op.FORWARD:
                _need(f"hidden/{following}/m{m}" not in rank.live, "computed twice")
                rank.live[f"hidden/{following}/m{m}"] = True
            return
        if segment.kind == "head":
            _need(rank.counted == 1 or not self.facts.data_axes, "divided by another number of targets")
            rank.loss[m if m is not None else -1] += 1
        else:
            self.get(rank, f"dhidden/{following}/m{m}")
        if segment.kind == "block":
            _need(self.get(rank, f"saved/{segment.name}/m{m}"), "backward of nothing")
        if segment.kind != "embedding":
            rank.live[f"dhidden/{segment.name}/m{m}"] = True
        for unit in segment.units:
            self.settled(f"grad/{unit}")
            zeros = [Counter() for _ in range(self.facts.layout.data_degree)]
            for chunk in rank.live.setdefault(f"grad/{unit}", zeros):
                chunk[rank.number, segment.name, m] += 1

    def finish(self) -> None:
        _need(not self.flying, f"still under way: {list(self.flying)}")
        for rank in self.ranks:
            _need(rank.live.keys() == set(self.program.resident), f"live at the end: {sorted(rank.live)}")
            for unit in self.facts.flats:
                values = rank.live[f"shard/{unit}" if self.facts.zero == 3 else f"params/{unit}"]
                _need(set(values) == {1}, f"{unit} ends with pieces updated {values} times")
            if self.facts.data_axes:
                runs = Counter((r.number, m) for r in self.ranks for m in range(self.facts.layout.num_microbatches))
                _need(rank.recorded == runs, f"the recorded loss is that of {rank.recorded}")
            _need(rank.counted == (1 if self.facts.data_axes else 0), "targets are counted another number of times")


def run_symbolically(program: Program, facts: Lowering) -> None:
    """Raises `Wrong` unless the program, run by all ranks, does one whole training step and leaves nothing behind."""
    degree = facts.layout.data_degree
    ranks = []
    for number in range(facts.layout.world_size):
        live: dict[str, Any] = dict.fromkeys(program.resident, True)
        for unit in facts.flats:
            if facts.zero == 3:
                live[f"shard/{unit}"] = [0] * facts.layout.dp_replicate
            else:
                live[f"params/{unit}"] = [0] * degree
        ranks.append(_Rank(number, live))
    _World(program, facts, ranks).run()
