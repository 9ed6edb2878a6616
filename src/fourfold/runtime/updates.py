"""The arithmetic of every optimizer's update, on flat parts of a shard."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fourfold.config.optimizers import AdamWSection, SgdSection

Update = Callable[[Tensor, Tensor, list[Tensor], Any, float, int, float, Tensor | None], None]
"""(weights, gradient, state, section, lr, step, decay, divisor): updates weights and state in place.

`weights`, `gradient`: [n]. `state`: the tensors of the section's `spec.state`, each [n]. `step`: updates before this one. `decay`:
the weight decay of these weights. `divisor`: an fp32 scalar to divide the gradient by first, None: 1.
"""


def _adamw(
    weights: Tensor,
    gradient: Tensor,
    state: list[Tensor],
    section: AdamWSection,
    lr: float,
    step: int,
    decay: float,
    divisor: Tensor | None,
) -> None:
    """torch's fused kernel."""
    exp_avg, exp_avg_sq = state
    adamw(
        [weights],
        [gradient],
        [exp_avg],
        [exp_avg_sq],
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


def _sgd(
    weights: Tensor,
    gradient: Tensor,
    state: list[Tensor],
    section: SgdSection,
    lr: float,
    step: int,
    decay: float,
    divisor: Tensor | None,
) -> None:
    """torch's fused kernel."""
    buffers: list[Tensor | None] = [*state]
    sgd(
        [weights],
        [gradient],
        buffers,
        fused=True,
        weight_decay=decay,
        momentum=section.momentum,
        lr=lr,
        dampening=0.0,
        nesterov=section.nesterov,
        maximize=False,
        grad_scale=divisor,
    )


UPDATES: dict[str, Update] = {"adamw": _adamw, "sgd": _sgd}
"""By the optimizer's name."""
