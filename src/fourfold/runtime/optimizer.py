"""The optimizer's state on one shard and its update, and the learning rate of a step."""

import math

import torch
from torch import Tensor

from fourfold.config.optimizers import OptimizerSection
from fourfold.model.torch_operations import torch_dtype
from fourfold.runtime.updates import UPDATES


def learning_rate(section: OptimizerSection, step: int, total_steps: int) -> float:
    """Learning rate of step `step` (from 0): linear warm-up, then cosine (Loshchilov & Hutter 2017), constant, or
    warm-up/stable/decay with a linear decay over the last `decay_fraction` of the run (Hu et al. 2024)."""
    if step < section.warmup_steps:
        return section.lr * (step + 1) / section.warmup_steps
    floor = section.lr * section.min_lr_ratio
    if section.schedule == "constant":
        return section.lr
    if section.schedule == "wsd":
        decay_steps = max(1, round(section.decay_fraction * total_steps))
        remaining = (total_steps - step) / decay_steps
        return floor + (section.lr - floor) * min(1.0, max(0.0, remaining))
    progress = (step - section.warmup_steps) / max(1, total_steps - section.warmup_steps)
    return floor + (section.lr - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


class ShardOptimizer:
    """The optimizer of one unit's shard. `state`: its tensors by name, each [shard]. Weight decay applies to elements below
    `decayed`."""

    def __init__(self, section: OptimizerSection, master: Tensor, decayed: int) -> None:
        self._section = section
        self._update = UPDATES[section.name]
        self.state = {
            tensor.name: torch.zeros_like(master, dtype=torch_dtype(tensor.dtype) if tensor.dtype else None)
            for tensor in section.spec.state
        }
        end = master.numel()
        middle = min(max(decayed, 0), end)
        self._parts = [
            (part, master[part], [tensor[part] for tensor in self.state.values()], decay)
            for part, decay in ((slice(0, middle), section.weight_decay), (slice(middle, end), 0.0))
            if part.start < part.stop
        ]

    def update(self, gradient: Tensor, lr: float, step: int, scale: float) -> None:
        """One update in place with `gradient` [shard] x `scale`, in the master format; `step` counts updates before this one."""
        divisor = None
        if scale != 1.0 and gradient.dtype == torch.float32:  # fused kernels divide on the way, by an fp32 number
            divisor = torch.tensor(1.0 / scale, device=gradient.device)
        elif scale != 1.0:
            gradient.mul_(scale)
        for part, weights, state, decay in self._parts:
            self._update(weights, gradient[part], state, self._section, lr, step, decay, divisor)
