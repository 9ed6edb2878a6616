"""The optimizer's state on one shard, its update, and clipping."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fourfold.config.optimizers import OptimizerSection
from fourfold.model.torch_operations import torch_dtype
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


class ShardOptimizer:
    """The optimizer of one unit's shard. `state`: its tensors by name, each [shard], or [shard - matrices] where hidden matrices
    have none."""

    def __init__(self, section: OptimizerSection, master: Tensor, runs: Sequence[Run], matrices: int = 0) -> None:
        """`runs`: of the shard's elements, in order. `matrices`: its first elements, which belong to hidden matrices and are
        updated elsewhere."""
        self._section = section
        self.partial = tuple(tensor for tensor in section.spec.state if not tensor.of_matrices)
        """States that hidden matrices have not."""
        self._update = UPDATES[section.name]
        self.state = {
            tensor.name: torch.zeros_like(
                master if tensor.of_matrices else master[matrices:],
                dtype=torch_dtype(tensor.dtype) if tensor.dtype else None,
            )
            for tensor in section.spec.state
        }
        end = master.numel()
        self._parts = [
            (
                slice(first, last),
                master[first:last],
                [state_at(t, end, first, last) for t in self.state.values()],
                decayed
                * section.weight_decay
                / scale,  # what is taken off is lr x weight_decay, without the run's factor
                scale,
            )
            for low, last, decayed, scale in runs
            if (first := max(low, matrices)) < last
        ]

    def update(self, gradient: Tensor, lr: float | Tensor, step: int, scale: float | DeviceClip) -> None:
        """One update in place with `gradient` [shard] x `scale`, in the master format; `step` counts updates before this one. `lr`:
        an fp32 scalar on the device where the update may be replayed."""
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
        for part, weights, state, decay, rate in self._parts:
            self._update(weights, gradient[part], state, self._section, lr * rate, number, decay, divisor, skip)
