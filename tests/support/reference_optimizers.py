"""Every optimizer a second time, independent of the runtime: torch.optim's, or a plain one on the parameters one by one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Groups = list[dict[str, Any]]
"""Parameters with their weight decay, as torch.optim takes them."""


@dataclass(frozen=True)
class ReferenceOptimizer:
    """`make(groups, section)`; `settings`: keys of `[optimizer]` in which a test should differ from the defaults."""

    make: Callable[[Groups, Any], torch.optim.Optimizer]
    settings: dict[str, Any]


def _adamw(groups: Groups, section: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=section.lr, betas=section.betas, eps=section.eps, foreach=False)


def _sgd(groups: Groups, section: Any) -> torch.optim.Optimizer:
    options = {"momentum": section.momentum, "nesterov": section.nesterov}
    return torch.optim.SGD(groups, lr=section.lr, foreach=False, **options)


class _Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al. 2023, parameter by parameter."""

    def __init__(self, groups: Groups, lr: float, betas: tuple[float, float]) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            (first, second), lr, decay = group["betas"], group["lr"], group["weight_decay"]
            for weight in group["params"]:
                momentum = self.state[weight].setdefault("m", torch.zeros_like(weight))
                mixture = first * momentum + (1 - first) * weight.grad
                weight -= lr * (torch.sign(mixture) + decay * weight)
                momentum.copy_(second * momentum + (1 - second) * weight.grad)


def _lion(groups: Groups, section: Any) -> torch.optim.Optimizer:
    return _Lion(groups, section.lr, section.betas)


REFERENCES = {
    "adamw": ReferenceOptimizer(_adamw, {"betas": [0.5, 0.8], "eps": 1e-3}),
    "sgd": ReferenceOptimizer(_sgd, {"momentum": 0.8, "nesterov": True}),
    "lion": ReferenceOptimizer(_lion, {"betas": [0.5, 0.8]}),
}
"""By `optimizer.name`."""
