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


REFERENCES = {
    "adamw": ReferenceOptimizer(_adamw, {"betas": [0.5, 0.8], "eps": 1e-3}),
    "sgd": ReferenceOptimizer(_sgd, {"momentum": 0.8, "nesterov": True}),
}
"""By `optimizer.name`."""
