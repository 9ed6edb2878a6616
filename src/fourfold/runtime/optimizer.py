"""The optimizer's state on one shard, its update, and clipping."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fourfold.config.optimizers import OptimizerSection
from fourfold.model.torch_operations import torch_dtype
from fourfold.runtime.narrow import NarrowShard, Plain, Stored
from fourfold.runtime.updates import UPDATES


@dataclass(frozen=True)
class DeviceClip:
    """Clipping and a skipped step on a device, where the host need not wait for them. Scalars: `scale` in fp64; in fp32 its
    inverse `divisor`, `skip`, 1 where some gradient is not finite, else 0, and `step`, the number of this update, from 1."""

    scale: Tensor
    divisor: Tensor
    skip: Tensor
    step: Tensor


def clip_scale(norm: float, limit: float | None) -> float:
    """The factor of gradients of this norm: min(1, limit / (norm + 1e-6))."""
    return 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))


def clip_on_device(total: Tensor, limit: float | None, number: float | Tensor) -> DeviceClip:
    """Clipping by the squared norm `total`, an fp64 scalar, without reading it. `number`: of this update, from 1."""
    scale = torch.ones_like(total) if limit is None else (limit / (total.sqrt() + 1e-6)).clamp(max=1.0)
    return DeviceClip(
        scale=scale,
        divisor=scale.reciprocal().float(),
        skip=total.isfinite().logical_not().float(),
        step=number if isinstance(number, Tensor) else torch.full((), number, device=total.device),
    )


def state_at(tensor: Tensor, numel: int, first: int, last: int) -> Tensor:
    """The state of elements [first, last) of a shard of `numel`, whose last elements the tensor belongs to."""
    missing = numel - tensor.numel()
    return tensor[max(first - missing, 0) : max(last - missing, 0)]


Run = tuple[int, int, bool, float]
"""(start, end, whether decayed, factor of the learning rate) of elements of a shard."""


@dataclass(frozen=True)
class UpdatePart:
    """Elements [first, last) of a shard that are updated at once. `decay`: weight decay over the factor of the learning rate, which
    is `rate`."""

    first: int
    last: int
    weights: Stored
    state: Sequence[Stored]
    decay: float
    rate: float


class ShardOptimizer:
    """The optimizer of one unit's shard. `state`: its tensors by name, each [shard], or [shard - matrices] where hidden matrices
    have none."""

    def __init__(
        self,
        section: OptimizerSection,
        master: Tensor,
        runs: Sequence[Run],
        matrices: int = 0,
        narrow: NarrowShard | None = None,
    ) -> None:
        """`runs`: of the shard's elements, in order. `matrices`: its first elements, which belong to hidden matrices and are
        updated elsewhere. `narrow`: how states are stored, where some have narrower formats than they are computed in."""
        self._section = section
        self.narrow = narrow
        self.dtype = narrow.dtype if narrow else master.dtype
        """The format of the arithmetic."""
        spec = section.step_spec
        self.partial = tuple(tensor for tensor in spec.state if not tensor.of_matrices)
        """States that hidden matrices have not."""
        self._update = UPDATES[section.name]
        self.state = {
            tensor.name: torch.zeros_like(
                master if tensor.of_matrices else master[matrices:],
                dtype=torch_dtype(tensor.dtype) if tensor.dtype else self.dtype,
            )
            for tensor in spec.state
        }
        self._parts = [
            UpdatePart(
                low,
                high,
                weights,
                state,
                # what is taken off is lr x weight_decay, without the run's factor
                decayed * section.weight_decay / scale,
                scale,
            )
            for first, last, decayed, scale in runs
            if max(first, matrices) < last
            for low, high, weights, state in self._stored(master, max(first, matrices), last)
        ]

    def _stored(self, master: Tensor, first: int, last: int) -> Iterator[tuple[int, int, Stored, list[Stored]]]:
        """(first, last, weights, states) of the pieces in which elements [first, last) are updated."""
        end = master.numel()
        if self.narrow is None:
            states: list[Stored] = [Plain(state_at(each, end, first, last)) for each in self.state.values()]
            yield first, last, Plain(master[first:last]), states
            return
        for low, high, elements in self.narrow.pieces(first, last):
            states = [
                self.narrow.state(state_at(each, end, low, high), name, elements) for name, each in self.state.items()
            ]
            yield low, high, self.narrow.master(master, low, high), states

    def update(self, gradient: Tensor, lr: float | Tensor, step: int, scale: float | DeviceClip) -> None:
        """One update in place with `gradient` [shard] x `scale`, in the format of the arithmetic; `step` counts updates before this
        one. `lr`: an fp32 scalar on the device where the update may be replayed."""
        divisor = skip = None
        if isinstance(scale, DeviceClip):
            number, skip = scale.step, scale.skip
            if gradient.dtype == torch.float32:  # fused kernels divide on the way, by an fp32 number
                divisor = scale.divisor
            else:
                gradient.mul_(scale.scale)
        else:
            number = torch.tensor(step + 1.0)
            if scale != 1.0 and gradient.dtype == torch.float32:
                divisor = torch.tensor(1.0 / scale)
            elif scale != 1.0:
                gradient.mul_(scale)
        for part in self._parts:
            own = gradient[part.first : part.last]
            weights, state = part.weights.load(), [each.load() for each in part.state]
            self._update(weights, own, state, self._section, lr * part.rate, number, part.decay, divisor, skip)
            part.weights.store(weights, step)
            for stored, values in zip(part.state, state, strict=True):
                stored.store(values, step)
