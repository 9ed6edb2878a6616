"""The arithmetic of every optimizer's update, on flat parts of a shard."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from fourfold.config.optimizers import AdamWSection, LionSection, MuonSection, SgdSection

Update = Callable[
    [Tensor, Tensor, list[Tensor], Any, float | Tensor, Tensor, float, Tensor | None, Tensor | None], None
]
"""(weights, gradient, state, section, lr, number, decay, divisor, skip): updates weights and state in place.

`weights`, `gradient`: [n]; the gradient may be written over, and nothing as large is allocated. `state`: the tensors of the
section's `spec.state`, each [n]. `decay`: the decay of these weights. fp32 scalars on the gradient's device: `lr`, where the update
may be replayed with another; `number` of this update, from 1; `divisor` of the gradient, None: 1; `skip`: 1 to do nothing, None: 0.
"""


def _adamw(
    weights: Tensor,
    gradient: Tensor,
    state: list[Tensor],
    section: AdamWSection | MuonSection,
    lr: float | Tensor,
    number: Tensor,
    decay: float,
    divisor: Tensor | None,
    skip: Tensor | None,
) -> None:
    """torch's fused kernel, without the function of `torch.optim` around it, which counts steps itself."""
    exp_avg, exp_avg_sq = state
    torch._fused_adamw_(
        [weights],
        [gradient],
        [exp_avg],
        [exp_avg_sq],
        [],
        [number],
        amsgrad=False,
        beta1=section.betas[0],
        beta2=section.betas[1],
        lr=lr,
        weight_decay=decay,
        eps=section.eps,
        maximize=False,
        grad_scale=divisor,
        found_inf=skip,
    )


def _sgd(
    weights: Tensor,
    gradient: Tensor,
    state: list[Tensor],
    section: SgdSection,
    lr: float | Tensor,
    number: Tensor,
    decay: float,
    divisor: Tensor | None,
    skip: Tensor | None,
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
        lr=lr,  # type: ignore[arg-type]  # a tensor too, as the kernel takes it
        dampening=0.0,
        nesterov=section.nesterov,
        maximize=False,
        grad_scale=divisor,
        found_inf=skip,
    )


def _lion(
    weights: Tensor,
    gradient: Tensor,
    state: list[Tensor],
    section: LionSection,
    lr: float | Tensor,
    number: Tensor,
    decay: float,
    divisor: Tensor | None,
    skip: Tensor | None,
) -> None:
    """c = m + (1 - beta1) (g - m) in the memory of g, then m + (1 - beta2) (g - m) = m + (1 - beta2) / (1 - beta1) (c - m)."""
    (exp_avg,), (mixed, kept) = state, section.betas
    rate: float | Tensor = lr
    if divisor is not None:
        gradient.div_(divisor)
    if skip is not None:  # then g = m, which moves nothing
        gradient.masked_fill_(skip.bool(), 0.0).addcmul_(exp_avg, skip.to(exp_avg.dtype))
        rate = lr * (1 - skip)
    direction = gradient.lerp_(exp_avg, mixed)
    exp_avg.lerp_(direction, (1 - kept) / (1 - mixed))
    weights.mul_(1 - rate * decay)
    if isinstance(rate, Tensor):
        weights.addcmul_(direction.sign_(), rate, value=-1.0)
    else:
        weights.sub_(direction.sign_(), alpha=rate)


def _muon(
    weights: Tensor,
    gradient: Tensor,
    state: list[Tensor],
    section: MuonSection,
    lr: float | Tensor,
    number: Tensor,
    decay: float,
    divisor: Tensor | None,
    skip: Tensor | None,
) -> None:
    """AdamW on all that is no hidden matrix; those are `runtime/muon.py`'s."""
    _adamw(weights, gradient, state, section, lr * section.adamw_lr / section.lr, number, decay, divisor, skip)


UPDATES: dict[str, Update] = {"adamw": _adamw, "sgd": _sgd, "lion": _lion, "muon": _muon}
"""By the optimizer's name."""
