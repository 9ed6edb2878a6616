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

`weights`, `gradient`: [n]. `state`: the tensors of the section's `spec.state`, each [n]. `decay`: the decay of these weights. fp32
scalars on the gradient's device: `lr`, where the update may be replayed with another; `number` of this update, from 1; `divisor`
of the gradient, None: 1; `skip`: 1 to do nothing, None: 0.
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
    (exp_avg,), (mixed, kept) = state, section.betas
    if divisor is not None:
        gradient = gradient / divisor
    direction = torch.lerp(gradient, exp_avg, mixed).sign_().add_(weights, alpha=decay)
    moved = weights.sub(direction * lr) if isinstance(lr, Tensor) else weights.sub(direction, alpha=lr)
    updated = moved, torch.lerp(gradient, exp_avg, kept)
    for tensor, new in zip((weights, exp_avg), updated, strict=True):
        tensor.copy_(new if skip is None else torch.where(skip.bool(), tensor, new))


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
