"""AdamW on a flat shard, and the learning rate of a step."""

import math

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from fourfold.config.schema import OptimizerSection

_ROW = 1024


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


def sum_of_squares(gradient: Tensor) -> Tensor:
    """The squared norm of a flat tensor, a scalar in fp64. Rows first: one fp32 sum over millions of elements is off by 1e-4."""
    dtype = torch.float32 if gradient.dtype == torch.bfloat16 else gradient.dtype
    whole = gradient.numel() // _ROW * _ROW
    rows = torch.linalg.vector_norm(gradient[:whole].view(-1, _ROW), dim=1, dtype=dtype)
    rest = torch.linalg.vector_norm(gradient[whole:], dtype=dtype)
    return rows.double().square().sum() + rest.double().square()


class ShardOptimizer:
    """Fused AdamW on one unit's shard; elements below `decayed` are decayed, the others are not."""

    def __init__(self, section: OptimizerSection, master: Tensor, decayed: int) -> None:
        self._section = section
        self._master = master
        self._decayed = min(max(decayed, 0), master.numel())
        self.exp_avg = torch.zeros_like(master)
        self.exp_avg_sq = torch.zeros_like(master)

    def update(self, gradient: Tensor, lr: float, step: int, scale: float) -> None:
        """One update in place with `gradient` [shard] x `scale`, in the master format; `step` counts updates before this one."""
        section = self._section
        divisor = None
        if scale != 1.0 and gradient.dtype == torch.float32:  # the fused kernel divides on the way, by an fp32 number
            divisor = torch.tensor(1.0 / scale, device=gradient.device)
        elif scale != 1.0:
            gradient.mul_(scale)
        for start, end, decay in (
            (0, self._decayed, section.weight_decay),
            (self._decayed, self._master.numel(), 0.0),
        ):
            if start == end:
                continue
            adamw(
                [self._master[start:end]],
                [gradient[start:end]],
                [self.exp_avg[start:end]],
                [self.exp_avg_sq[start:end]],
                [],
                [torch.tensor(float(step), device=gradient.device)],
                fused=True,
                amsgrad=False,
                beta1=section.betas[0],
                beta2=section.betas[1],
                lr=lr,
                weight_decay=decay,
                eps=section.eps,
                maximize=False,
                grad_scale=divisor,
            )
