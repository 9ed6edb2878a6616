"""Parameters and gradients as symbols. A gradient cell is a multiset of contributions (rank, segment, microbatch, part of
backward), held as one integer with a digit for each contribution, so that adding multisets is adding integers.

The value that a cell must hold in the end follows from the model's own statement of each parameter (`ParameterSpec`): who
computes a part of its gradient. A cell is a range of a flat buffer that no shard boundary and no such statement divides.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from fourfold.config import DTYPE_BYTES
from fourfold.layout.flat import FlatLayout, LocalParameter
from fourfold.model.spec import Segment
from fourfold.program import Op, RankView, StepSpec
from fourfold.program.view import rank_views
from tests.support.opcodes import REDUCTIONS

DIGIT = 16
"""Bits of a contribution's count."""
Cell = tuple[int, int]
Run = tuple[int, str, int]
"""(rank, segment, microbatch)."""


class Wrong(Exception):
    """The program does not do a training step, or would crash."""


def need(condition: object, message: str) -> None:
    if not condition:
        raise Wrong(message)


@dataclass(frozen=True)
class _Unit:
    """`cells`: with the axes on which the makers of its gradient agree with its holder. `shards`: how many cuts ZeRO makes."""

    flat: FlatLayout
    shard_axes: tuple[str, ...]
    zero: int
    cells: dict[Cell, tuple[str, ...]]
    shards: int
    segments: tuple[str, ...]
    ranks: tuple[int, ...]

    @property
    def gradient(self) -> str:
        return f"{'grad_shard' if self.zero >= 2 else 'grad'}/{self.flat.unit}"

    @property
    def values(self) -> str:
        return f"{'shard' if self.zero == 3 else 'params'}/{self.flat.unit}"

    def shard(self, index: int) -> list[Cell]:
        size = self.flat.padded_numel // self.shards
        return [cell for cell in self.cells if index * size <= cell[0] < (index + 1) * size]


class Parameters:
    """Every unit's cells, what they must become, and what the operations on units do to them."""

    def __init__(self, spec: StepSpec, halves: frozenset[Run]) -> None:
        """`halves`: whose backward is run in two halves."""
        self.spec, self.layout, self.halves = spec, spec.layout, halves
        self.views = rank_views(spec)
        self.units = {name: self._unit(name) for view in self.views for name in view.flats}
        self.owned, self.parts, self._complete = cache(self._owned), cache(self._parts), cache(self._all_of)
        self._digits = {name: self._numbered(unit) for name, unit in self.units.items()}
        self.full = frozenset().union(*map(self.parts, range(self.layout.world_size)))

    def _at(self, number: int) -> RankView:
        return self.views[self.layout.coordinates(number)["pp"]]

    def _numbered(self, unit: _Unit) -> dict[tuple[int, str], int]:
        """The first digit of what a rank contributes by a segment."""
        pairs = [(rank, segment) for rank in unit.ranks for segment in unit.segments]
        return {pair: i * 3 * self.layout.num_microbatches for i, pair in enumerate(pairs)}

    def _unit(self, name: str) -> _Unit:
        spec, layout = self.spec, self.layout
        flat = next(view.flats[name] for view in self.views if name in view.flats)
        axes = ("dp_shard", "cp") if flat.domain == "dense" else ("edp",)
        shards = layout.group_size(axes)
        classes = [(start, end, _makers(p, flat, layout.sequence_parallel)) for p, start, end in flat.ranges()]
        classes.append((flat.numel, flat.padded_numel, ()))
        cuts = {i * (flat.padded_numel // shards) for i in range(shards + 1)}
        edges = sorted(cuts | {edge for start, end, _ in classes for edge in (start, end)})
        cells = {}
        for cell in pairwise(edges):
            cells[cell] = next(c for start, end, c in classes if start <= cell[0] < end)
        users = tuple(s.name for s in spec.segments if name in s.units)
        stages = {layout.stage_ranks[self.views[0].stages.stage_of[s]] for s in users}
        ranks = tuple(r for r in range(layout.world_size) if layout.coordinates(r)["pp"] in stages)
        return _Unit(flat, axes, layout.zero if shards > 1 else 0, cells, shards, users, ranks)

    def _owned(self, unit: str, number: int) -> tuple[Cell, ...]:
        """Cells that the rank updates: its shard's, or all where nothing is sharded."""
        of = self.units[unit]
        if of.zero == 0:
            return tuple(of.cells)
        return tuple(of.shard(self.layout.group_of(number, of.shard_axes).index(number)))

    def _digit(self, unit: str, number: int, segment: str, m: int, part: int) -> int:
        return 1 << DIGIT * (self._digits[unit][number, segment] + 3 * m + part)

    def expected(self, unit: str, cell: Cell, number: int) -> int:
        """The value that the cell's gradient must have on this rank."""
        of, own = self.units[unit], self.layout.coordinates(number)
        if cell[0] >= of.flat.numel:
            return 0
        return self._complete(unit, tuple((axis, own[axis]) for axis in of.cells[cell]))

    def _all_of(self, unit: str, agreed: tuple[tuple[str, int], ...]) -> int:
        """Every contribution, once, of the ranks with these coordinates."""
        of, total = self.units[unit], 0
        for rank in of.ranks:
            there = self.layout.coordinates(rank)
            if any(there[axis] != place for axis, place in agreed):
                continue
            for segment in of.segments:
                if self.layout.stage_ranks[self.views[0].stages.stage_of[segment]] != there["pp"]:
                    continue
                for m in range(self.layout.num_microbatches):
                    parts = (1, 2) if (rank, segment, m) in self.halves else (0,)
                    total += sum(self._digit(unit, rank, segment, m, part) for part in parts)
        return total

    # What a rank does alone

    def initial(self, number: int, resident: tuple[str, ...]) -> dict[str, Any]:
        """Values of parameters, by cell: whose part it is, and how often it has been updated."""
        result: dict[str, Any] = {}
        for name in self._at(number).flats:
            unit = self.units[name]
            need(unit.values in resident, f"{unit.values} is not there when the step begins")
            cells = self.owned(name, number) if unit.zero == 3 else unit.cells
            result[unit.values] = {cell: (self.place(name, number), 0) for cell in cells}
        return result

    def place(self, unit: str, number: int) -> tuple[int, ...]:
        """Which part of the unit's parameters the rank holds."""
        own = self.layout.coordinates(number)
        return tuple(own[axis] for axis in (("ep", "etp") if self.units[unit].flat.domain == "expert" else ("tp",)))

    def read(self, rank: Any, unit: str) -> None:
        begun = {(self.place(unit, rank.number), 0)}
        values = rank.get(f"params/{unit}")
        need(values.keys() == self.units[unit].cells.keys(), f"{unit} is not whole")
        need(set(values.values()) == begun, f"{unit} is read with other values than the step began with")

    def add(self, rank: Any, segment: Segment, m: int, op: Op) -> None:
        """A backward's contributions: of the norms with the input gradient, of the matmuls with the weight gradient."""
        part = {Op.BACKWARD: 0, Op.BACKWARD_INPUT: 1, Op.BACKWARD_WEIGHT: 2}[op]
        for unit in segment.units:
            rank.settled(f"grad/{unit}")
            cells = rank.live.setdefault(f"grad/{unit}", dict.fromkeys(self.units[unit].cells, 0))
            digit = self._digit(unit, rank.number, segment.name, m, part)
            for cell in cells:
                if cell[0] < self.units[unit].flat.numel:
                    cells[cell] += digit

    def check_gradient(self, rank: Any, unit: str) -> None:
        held = rank.get(self.units[unit].gradient)
        for cell in self.owned(unit, rank.number):
            need(held[cell] == self.expected(unit, cell, rank.number), f"the gradient of {unit} is not whole")

    def update(self, rank: Any, unit: str) -> None:
        need(unit in rank.view.flats, f"{unit} is not here")
        self.check_gradient(rank, unit)
        rank.settled(self.units[unit].values)
        values = rank.get(self.units[unit].values)
        for cell in self.owned(unit, rank.number):
            place, version = values[cell]
            values[cell] = (place, version + 1)

    def _parts(self, number: int) -> frozenset[tuple[Any, ...]]:
        """The parts of the full model's gradient that the rank has in the end, by names that all ranks give them."""
        own, result = self.layout.coordinates(number), set()
        for name in self._at(number).flats:
            for cell in self.owned(name, number):
                if cell[0] < self.units[name].flat.numel:
                    result.add((name, cell, tuple((a, own[a]) for a in _splits(self.units[name].flat, cell))))
        return frozenset(result)

    def check_end(self, rank: Any, version: int) -> None:
        for unit in rank.view.flats:
            values = rank.live[self.units[unit].values]
            wanted = {(self.place(unit, rank.number), version)}
            need(set(values.values()) == wanted, f"{unit} ends with {set(values.values())}")

    # Collectives

    def start(self, started: Any) -> None:
        """Takes along what the operation reads, marks what it touches."""
        rank, name = started.rank, started.step.segment or ""
        need(name in rank.view.flats, f"{name} is not here")
        unit = self.units[name]
        take = {
            **dict.fromkeys(REDUCTIONS, self._take_gradient),
            Op.REDUCE_TIED: self._take_tied,
            Op.GATHER: self._take_shard,
        }
        take.get(started.step.op, self._take_part)(started, unit)
        need(started.step.collectives, f"{started.step.short} has no collective")

    def _take_gradient(self, started: Any, unit: _Unit) -> None:
        rank, name = started.rank, unit.flat.unit
        rank.settled(f"grad/{name}")
        grad, before = dict(rank.get(f"grad/{name}")), None
        writes = {unit.gradient}
        if f"reduce/{name}" in started.step.writes:
            rank.settled(f"reduce/{name}")
            rank.live[f"reduce/{name}"] = None
            writes.add(f"reduce/{name}")
        rank.settled(unit.gradient)
        if unit.zero >= 2:
            before = dict(rank.live.setdefault(unit.gradient, dict.fromkeys(self.owned(name, rank.number), 0)))
        started.taken = (grad, None, before)
        started.reads, started.writes = frozenset([f"grad/{name}"]), frozenset(writes)

    def _take_tied(self, started: Any, unit: _Unit) -> None:
        rank = started.rank
        rank.settled(unit.gradient)
        held = rank.get(unit.gradient)
        started.taken = {cell: held[cell] for cell in self.owned(unit.flat.unit, rank.number)}
        started.writes = frozenset([unit.gradient])

    def _take_shard(self, started: Any, unit: _Unit) -> None:
        rank, name = started.rank, unit.flat.unit
        need(unit.zero == 3, f"{name} is not sharded")
        started.taken = [dict(rank.get(f"shard/{name}"))]
        rank.put(f"params/{name}", None)
        started.reads, started.writes = frozenset([f"shard/{name}"]), frozenset([f"params/{name}"])

    def _take_part(self, started: Any, unit: _Unit) -> None:
        rank, name = started.rank, unit.flat.unit
        need(unit.zero in (1, 2), f"{name} is not to be gathered after its update")
        rank.settled(f"params/{name}")
        held = rank.get(f"params/{name}")
        started.taken = [{cell: held[cell] for cell in self.owned(name, rank.number)}]
        started.writes = frozenset([f"params/{name}"])

    def combine(self, started: Any, which: int, own: Any, states: list[Any]) -> Any:
        """The values that a collective leaves on this rank: `own` and `states` are what it and all members had before it."""
        if started.step.op in (Op.GATHER, Op.PARAMETER_ALL_GATHER):
            return [part for state in states for part in state]
        if started.step.op is Op.REDUCE_TIED:
            need(all(state.keys() == own.keys() for state in states), "the stages' shards are not the same")
            return {cell: sum(state[cell] for state in states) for cell in own}
        return self._reduced(started, which, own, states)

    def _reduced(self, started: Any, which: int, own: Any, states: list[Any]) -> Any:
        unit, collective = self.units[started.step.segment], started.step.collectives[which]
        owned = self.owned(started.step.segment, started.rank.number)
        grad, shard, before = own
        if collective.kind in ("reduce_scatter", "all_to_all"):
            group = self.layout.group_of(started.rank.number, tuple(collective.axes.split("+")))
            need(len(group) == unit.shards and unit.zero > 0, f"{started.step.short} scatters to others")
            need(tuple(unit.shard(group.index(started.rank.number))) == owned, "another shard arrives")
            arrived = {cell: sum(state[0][cell] for state in states) for cell in owned}
            return grad, {c: v + before[c] if before is not None else v for c, v in arrived.items()}, before
        need(collective.kind == "all_reduce", f"{started.step.short}: no such reduction")
        if shard is not None:
            need(all(state[1].keys() == shard.keys() for state in states), "the replicas' shards are not the same")
            return grad, {cell: sum(state[1][cell] for state in states) for cell in shard}, before
        cells = self._range(unit, started.step.collectives, which)
        return {c: sum(state[0][c] for state in states) if c in cells else v for c, v in grad.items()}, None, before

    def _range(self, unit: _Unit, collectives: tuple[Any, ...], which: int) -> set[Cell]:
        """The cells that a reduction's collective sums: first the partial sums of the flat layout, each a range; then all."""
        if which >= len(unit.flat.sums):
            need(unit.zero == 0, "a sharded gradient is summed whole")
            need(collectives[which].axes not in ("tp", "tp_copy"), "a whole gradient is summed over the wrong ranks")
            return set(unit.cells)
        axis, start, end = unit.flat.sums[which]
        size = DTYPE_BYTES[self.spec.gradients]
        same = (collectives[which].axes, collectives[which].bytes) == (axis, (end - start) * size)
        need(same, f"{unit.flat.unit}: a partial sum of another range")
        return {cell for cell in unit.cells if start <= cell[0] < end}

    def land(self, started: Any, result: Any) -> None:
        rank, name = started.rank, started.step.segment
        unit = self.units[name]
        if started.step.op in (Op.GATHER, Op.PARAMETER_ALL_GATHER):
            full = {cell: value for part in result for cell, value in part.items()}
            need(sum(map(len, result)) == len(full), f"{started.step.short} brings a part of {name} twice")
            need(list(full) == list(unit.cells), f"{started.step.short} does not bring {name} whole and in order")
            rank.live[f"params/{name}"] = full
        elif started.step.op is Op.REDUCE_TIED:
            rank.live[unit.gradient] = {**rank.live[unit.gradient], **result}
        else:
            grad, shard, _ = result
            need(unit.zero == 0 or shard is not None, f"{started.step.short} scatters nothing")
            if unit.zero >= 2:
                rank.live[unit.gradient] = shard
            else:  # what other ranks own is of no meaning any more
                rank.live[unit.gradient] = grad if shard is None else {**dict.fromkeys(grad, -1), **shard}


def _parameter(flat: FlatLayout, cell: Cell) -> LocalParameter:
    return next(p for p, start, end in flat.ranges() if start <= cell[0] < end)


def _splits(flat: FlatLayout, cell: Cell) -> tuple[str, ...]:
    return tuple(axis for _, axis, _ in _parameter(flat, cell).splits)


def _makers(parameter: LocalParameter, flat: FlatLayout, sequence_parallel: bool) -> tuple[str, ...]:
    """Coordinates that the makers of one element's gradient have in common with its holder: what splits the parameter; and
    tensor-parallel ranks each make the full gradient of what they all hold, unless they see different tokens or heads."""
    spec = parameter.spec
    if flat.domain == "expert":
        return ("ep", "etp")
    if spec.tensor_dim is not None:
        return ("tp_head",) if spec.kv_heads else ("tp",)
    return () if spec.summed == "always" or (spec.summed == "sequence" and sequence_parallel) else ("tp",)
