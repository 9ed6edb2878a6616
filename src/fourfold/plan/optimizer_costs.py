"""Costs of the optimizer to a rank, for bounds: bytes of its states, seconds of its update, seconds of their copies to the host."""

from collections import Counter
from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fourfold.model.newton_schulz import recorded
from fourfold.model.spec import ParameterSpec, UnitSpec, build_segments
from fourfold.plan.candidate import BlockShape
from fourfold.plan.request import Request
from fourfold.plan.space import Arrangements, Column
from fourfold.simulate.durations import Durations


class OptimizerCosts:
    """Costs of the optimizer for a request's layouts, a table of them at a time."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._units = [unit for segment in build_segments(request.model) for unit in segment.own]

    @cached_property
    def parameters(self) -> tuple[float, float]:
        """Numbers of (dense, routed experts') parameters of all blocks and of embedding and head."""
        return self._by_domain(lambda unit: unit.numel)

    @cached_property
    def matrices(self) -> tuple[float, float]:
        """Numbers of (dense, routed experts') parameters that are elements of hidden matrices."""
        return self._by_domain(lambda unit: sum(p.numel for p in unit.matrices))

    def _by_domain(self, numel: Callable[[UnitSpec], int]) -> tuple[float, float]:
        dense = sum(numel(unit) for unit in self._units if unit.domain == "dense")
        return float(dense), float(sum(numel(unit) for unit in self._units if unit.domain == "expert"))

    def shard_numel(
        self,
        shape: BlockShape,
        pp: Column,
        dense: Column,
        sharded: NDArray[np.bool_],
        parameters: tuple[float, float] | None = None,
    ) -> Column:
        """Number [rows] of parameters whose optimizer state a rank holds, of all or of `parameters`. `dense`: ranks over which
        dense ones are sharded."""
        experts = shape.ep * shape.etp
        over = np.where(sharded, np.maximum(1.0, dense * shape.tp / experts), 1.0)
        full_dense, full_experts = parameters or self.parameters
        return full_dense / (pp * shape.tp * dense) + full_experts / (pp * experts * over)

    def state_bytes(self, shape: BlockShape, table: Arrangements) -> Column:
        """Bytes [rows] of master weights, where they are a copy, and of optimizer states."""
        numbers, matrices = self._updated(shape, table)
        return (numbers - matrices) * _bytes_of(self.request) + matrices * _bytes_of(self.request, matrix=True)

    def copy_seconds(self, state_bytes: Column) -> Column:
        """Seconds [rows] in which such states travel one way between the device and its host's memory."""
        gigabyte: float = self.request.template.host_copy(1e9)
        return state_bytes * (gigabyte / 1e9)

    def update_seconds(self, shape: BlockShape, table: Arrangements) -> Column:
        """Seconds [rows] of the update of a shard, of the matrices that it orthogonalizes, and what the software adds to every
        step."""
        request, precision, spec = self.request, self.request.precision, self.request.optimizer.step_spec
        numbers, matrices = self._updated(shape, table)
        formats = (precision.compute, precision.master_format, precision.gradients_format)
        moved = (numbers - matrices) * spec.update_bytes(*formats) + matrices * spec.update_bytes(*formats, matrix=True)
        if precision.splits_master:  # read and written as 4 bytes, in place of 8 and the 2 of a copy
            moved = moved - 2 * numbers
        rate = request.cluster.device.memory_bytes_per_second * request.kernels.memory_share
        return moved / rate + self._orthogonalize_seconds(shape, table) + request.software.step_seconds

    def _updated(self, shape: BlockShape, table: Arrangements) -> tuple[Column, Column]:
        """Parameters that a rank updates, and elements of hidden matrices among them."""
        sharded = table.zero > 0
        over = np.where(sharded, table.dp_shard * shape.cp, 1.0)
        every, matrices = (
            self.shard_numel(shape, table.pp, over, sharded, numbers) for numbers in (self.parameters, self.matrices)
        )
        return every, matrices

    def _orthogonalize_seconds(self, shape: BlockShape, table: Arrangements) -> Column:
        """The busiest rank of each unit, for which the others wait, has a matrix at least and no less than the mean, whoever
        computes what (`program/muon/owners.py`). Pipeline ranks begin together, behind the norm: the last ends no earlier than
        their mean."""
        ranks = table.dp * shape.cp * shape.tp
        found = np.zeros_like(table.pp)
        for (most, every), count in self._units_flop_seconds.items():
            found += count * np.maximum(most, every / ranks)
        return found / table.pp

    @cached_property
    def _units_flop_seconds(self) -> Counter[tuple[float, float]]:
        """By seconds of the largest of a unit's matrices and of all of them, the number of such units."""
        optimizer, compute = self.request.optimizer.step_spec, self.request.precision.compute
        if not optimizer.orthogonalizes:
            return Counter()
        costs, found = Durations(self.request.template), Counter[tuple[float, float]]()
        for shapes, count in Counter(_matrix_shapes(unit, optimizer.per_head) for unit in self._units).items():
            if shapes:
                works = {each: recorded(*each, compute)[0] for each, _ in shapes}
                fastest = min(sum(costs.work(work).busy.values()) / work.flops for work in works.values())
                flops = [works[each].flops * number for each, number in shapes]
                found[fastest * max(work.flops for work in works.values()), fastest * sum(flops)] += count
        return found


def _matrix_shapes(unit: UnitSpec, per_head: bool) -> tuple[tuple[tuple[int, int], int], ...]:
    """The shapes of a unit's matrices, of all experts and of all heads where each has its own, with their numbers."""
    found = Counter[tuple[int, int]]()
    for parameter in unit.matrices:
        found.update(_shapes_of(parameter, per_head))
    return tuple(sorted(found.items()))


def _shapes_of(parameter: ParameterSpec, per_head: bool) -> Counter[tuple[int, int]]:
    rows, columns = parameter.shape[-2:]
    own = parameter.head_rows if per_head and parameter.head_rows else (rows,)
    number = parameter.numel // (sum(own) * columns)
    return Counter({(each, columns): own.count(each) * number for each in set(own)})


def _bytes_of(request: Request, matrix: bool = False) -> float:
    """Bytes a parameter, or an element of a hidden matrix, of master weights, where they are a copy, and of optimizer states."""
    software, spec = request.software, request.optimizer.step_spec
    split = request.precision.splits_master
    master: float = request.master_bytes if split or software.master_bytes is None else software.master_bytes
    state: float = spec.state_bytes(request.precision.master_format, matrix)
    if software.optimizer_bytes is not None and not spec.states_own_format:
        state = sum(each.of_matrices or not matrix for each in spec.state) * software.optimizer_bytes
    return (master if request.mixed else 0) + state
