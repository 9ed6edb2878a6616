"""Muon's arithmetic on one unit (Jordan et al. 2024): the momentum's direction, full matrices, the update of the shard."""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from fourfold.config.optimizers import OptimizerSection
from fourfold.model import torch_operations
from fourfold.model.newton_schulz import assemble, orthogonalize
from fourfold.program import Instruction, Op
from fourfold.program.muon.matrices import Matrix
from fourfold.program.muon.owners import Share, share_of
from fourfold.program.muon.rows import FULL_MATRICES, MuonOp, direction
from fourfold.runtime.narrow import Plain
from fourfold.runtime.optimizer import DeviceClip
from fourfold.runtime.step_state import Handlers, StepState
from fourfold.runtime.units import Unit

_MOMENTUM = "exp_avg"
"""The state in which the momentum of matrices lies."""


class MatrixOptimizer:
    """The update of one rank's hidden matrices. `shares`: by unit, its part in them; empty where the optimizer has none apart."""

    def __init__(self, section: OptimizerSection, shares: Mapping[str, Share]) -> None:
        self._section: Any = section
        self.shares = shares

    def move(self, unit: Unit, scale: float | DeviceClip, number: int) -> Tensor:
        """Moves the momentum of the shard's matrices; the direction of the next step [shard], Nesterov's or the momentum itself.
        `number`: of updates before this one."""
        section, kept, dtype = self._section, unit.optimizer.state[_MOMENTUM], unit.optimizer.dtype
        average, narrow = kept.to(dtype), unit.optimizer.narrow
        factor, skip = (scale.scale, scale.skip) if isinstance(scale, DeviceClip) else (scale, None)
        gradient = unit.grad_shard.to(dtype) * factor
        for low, high, _ in self.shares[unit.flat.unit].held:
            moved = average[low:high].lerp(gradient[low:high], 1 - section.momentum)
            average[low:high] = moved if skip is None else torch.where(skip.bool(), average[low:high], moved)
            if narrow is not None and average is not kept:
                del moved
                narrow.round_state(kept, _MOMENTUM, average, low, high, number)
        return gradient.lerp(average, section.momentum) if section.nesterov else average

    def orthogonalize(self, unit: Unit, directions: Tensor, results: Tensor) -> None:
        """Orthogonalizes the matrices that this rank owns, in the number format of `directions`, one after the other into
        `results` [slot]."""
        share = self.shares[unit.flat.unit]
        for matrix, place in share.own:
            target = results[place : place + matrix.numel].view(matrix.shape)
            target.copy_(_orthogonal(unit, directions, matrix, share.tensor))

    def update(self, unit: Unit, given: Tensor, lr: float, scale: float | DeviceClip) -> None:
        """Updates the shard by `given`: what all owner ranks computed, or directions; then each matrix is orthogonalized now. The
        shard takes its elements."""
        narrow = unit.optimizer.narrow
        share, (start, _) = self.shares[unit.flat.unit], unit.flat.shard_range(unit.index)
        skip, places = scale.skip if isinstance(scale, DeviceClip) else None, dict(share.places)
        for low, high, matrix in share.held:
            if places:
                place = places[matrix]
                full = given[place : place + matrix.numel].view(matrix.shape)
            else:
                full = _orthogonal(unit, given, matrix, share.tensor)
            offset = start - matrix.start
            step = _own_piece(full, matrix, share.tensor).reshape(-1)[low + offset : high + offset]
            del full
            decay, rate = 1 - lr * self._section.weight_decay, lr * self._ratio(matrix)
            stored = narrow.master(unit.master, low, high) if narrow else Plain(unit.master[low:high])
            weights = stored.load()
            if skip is None:
                weights.mul_(decay).sub_(step, alpha=rate)
            else:
                weights.copy_(torch.where(skip.bool(), weights, (weights * decay).sub_(step, alpha=rate)))
            stored.store(weights, 0)
            del step, weights  # before the next matrix is orthogonalized

    def _ratio(self, matrix: Matrix) -> float:
        rows, columns = matrix.shape
        if self._section.adjust_lr == "original":
            return sqrt(max(1, rows / columns))
        return 0.2 * sqrt(max(rows, columns))


def _orthogonal(unit: Unit, directions: Tensor, matrix: Matrix, tensor: tuple[int, int]) -> Tensor:
    full = assemble(
        torch_operations, _pieces(unit, directions, matrix, tensor[1]), matrix.rows, matrix.columns, matrix.dim
    )
    return orthogonalize(torch_operations, full)


def _pieces(unit: Unit, directions: Tensor, matrix: Matrix, degree: int) -> Sequence[Sequence[Tensor]]:
    """The pieces of a matrix, each in chunks, out of the directions of all ranks that have parts: by shard, then tensor coordinate,
    of which there are `degree`.
    Where several coordinates have the same piece, the first is taken, so that all ranks compute the same."""
    flat = unit.flat
    start, end, shard = matrix.start, matrix.end, flat.shard_numel
    if directions.numel() == flat.padded_numel:  # one part a shard: they follow each other
        return [[directions[start:end]]]
    parts = directions.view(-1, degree, shard)
    cuts = [(i, max(start, i * shard) - i * shard, min(end, (i + 1) * shard) - i * shard) for i in range(len(parts))]
    coordinates = range(0, degree, degree // matrix.pieces) if matrix.at is None else (matrix.at,)
    return [[parts[i, at, low:high] for i, low, high in cuts if low < high] for at in coordinates]


def _own_piece(full: Tensor, matrix: Matrix, tensor: tuple[int, int]) -> Tensor:
    """The piece of the rank with this coordinate out of so many."""
    coordinate, degree = tensor
    size = full.shape[matrix.dim] // matrix.pieces
    return full.narrow(matrix.dim, coordinate * matrix.pieces // degree * size, size)


def handlers(state: StepState, core: Handlers) -> Handlers:
    """Momentum, gathers and orthogonalization of a unit's matrices; its update, which then has a part for them."""
    spec, live = state.view.spec, state.live
    muon = MatrixOptimizer(
        state.optimizer, {name: share_of(spec, unit.flat, state.rank) for name, unit in state.units.items()}
    )

    def move(step: Instruction) -> None:
        unit = state.units[step.segment or ""]
        own = live[direction(unit.flat)] = torch.empty_like(unit.shard)
        if not state.skips():
            own.copy_(muon.move(unit, state.scale, state.updates))

    def orthogonalize_own(step: Instruction) -> None:
        unit = state.units[step.segment or ""]
        own = live[step.writes[0]] = unit.shard.new_empty(muon.shares[unit.flat.unit].slot)
        if not state.skips():
            muon.orthogonalize(unit, live[step.reads[0]], own)

    def gather(step: Instruction) -> None:
        """The all-gather of directions, or of owner ranks' results."""
        part = live[step.reads[0]]
        full = live[step.writes[0]] = part.new_empty(part.numel() * step.collectives[0].group_size)
        state.start(step, state.group(step).all_gather(full, part))

    def update(step: Instruction) -> None:
        unit = state.units[step.segment or ""]
        if muon.shares[unit.flat.unit].held and not state.skips():
            given = next(name for name in step.reads if name.partition("/")[0] in FULL_MATRICES)
            assert not isinstance(state.numbers.lr, Tensor), "a step with Muon is not replayed"
            muon.update(unit, live[given], state.numbers.lr, state.scale)
        core[Op.UPDATE](step)

    return {
        MuonOp.MOMENTUM: move,
        MuonOp.ALL_GATHER_DIRECTIONS: gather,
        MuonOp.ORTHOGONALIZE: orthogonalize_own,
        MuonOp.ALL_GATHER_ORTHOGONAL: gather,
        Op.UPDATE: update,
    }
