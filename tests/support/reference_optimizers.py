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


def plain_orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Newton-Schulz of the last two dims as in torch.optim.Muon, in the matrix's own format."""
    x = matrix.mT if matrix.shape[-2] > matrix.shape[-1] else matrix
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if matrix.shape[-2] > matrix.shape[-1] else x


class _Muon(torch.optim.Optimizer):
    """Muon on the matrices of a transformers model, AdamW on the rest, of which those of one row are too. A parameter's `is_table`:
    whether its rows are tokens' or positions', left out: whether it has as many as the first. Stacked experts [experts, 2 ffn,
    hidden] are gates above up-projections. Its `head_rows` are the rows of the matrices that each of its heads has, its
    `fused_rows` those of the matrices that are one on disk; its `view_as_ours` is how experts that lie otherwise are seen so."""

    def __init__(self, groups: Groups, section: Any) -> None:
        super().__init__(groups, {})
        self._section = section
        vocab, self._hidden = groups[0]["params"][0].shape
        tables = {id(p) for p in groups[0]["params"] if getattr(p, "is_table", p.shape[0] == vocab)}
        self._matrices = [p for p in groups[0]["params"] if id(p) not in tables and min(p.shape[-2:]) > 1]
        held = set(map(id, self._matrices))
        others = [{**group, "params": [p for p in group["params"] if id(p) not in held]} for group in groups]
        betas, eps = section.betas, section.eps
        self._adamw = torch.optim.AdamW(others, lr=section.adamw_lr, betas=betas, eps=eps, foreach=False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self._adamw.step()
        section = self._section
        for weight in self._matrices:
            average = self.state[weight].setdefault("m", torch.zeros_like(weight))
            average.copy_(section.momentum * average + (1 - section.momentum) * weight.grad)
            direction = average
            if section.nesterov:
                direction = (1 - section.momentum) * weight.grad + section.momentum * average
            parts: tuple[torch.Tensor, ...] = (direction,)
            if (view := getattr(weight, "view_as_ours", None)) is not None:
                step, seen = torch.empty_like(weight), view(direction)
                view(step).copy_(self._ratio(*seen.shape[-2:]) * plain_orthogonal(seen))
                weight.mul_(1 - section.lr * section.weight_decay).sub_(step, alpha=section.lr)
                continue
            if weight.dim() == 3 and weight.shape[2] == self._hidden:
                parts = direction.chunk(2, dim=1)
            elif hasattr(weight, "fused_rows"):
                parts = direction.split(weight.fused_rows)
            elif section.per_head and hasattr(weight, "head_rows"):
                parts = direction.view(-1, sum(weight.head_rows), weight.shape[1]).split(weight.head_rows, dim=1)
            step = torch.cat([self._ratio(*part.shape[-2:]) * plain_orthogonal(part) for part in parts], dim=-2)
            weight.mul_(1 - section.lr * section.weight_decay).sub_(step.view_as(weight), alpha=section.lr)

    def _ratio(self, rows: int, columns: int) -> float:
        if self._section.adjust_lr == "match_rms_adamw":
            return 0.2 * max(rows, columns) ** 0.5
        return max(1, rows / columns) ** 0.5


REFERENCES = {
    "adamw": ReferenceOptimizer(_adamw, {"betas": [0.5, 0.8], "eps": 1e-3}),
    "sgd": ReferenceOptimizer(_sgd, {"momentum": 0.8, "nesterov": True}),
    "muon": ReferenceOptimizer(_Muon, {"betas": [0.5, 0.8], "eps": 1e-3, "momentum": 0.8, "adamw_lr": 0.02}),
    "lion": ReferenceOptimizer(_lion, {"betas": [0.5, 0.8]}),
}
"""By `optimizer.name`."""
