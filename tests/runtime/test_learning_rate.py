"""The learning rate of every step is that of PyTorch's schedulers, which reach their least rate at the last one."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR

from fourfold.config.optimizers import AdamWSection, learning_rate

STEPS = 40


def of_torch(section: AdamWSection) -> list[float]:
    """Warm-up from one share of the rate to all of it, then its schedule; `torch` counts the first step after it as step 0."""
    warm, left = section.warmup_steps, STEPS - section.warmup_steps
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=section.lr)
    after: LRScheduler
    if section.schedule == "cosine":
        after = CosineAnnealingLR(optimizer, left - 1, section.lr * section.min_lr_ratio)
    elif section.schedule == "wsd":
        steps, least = round(section.decay_fraction * STEPS), section.min_lr_ratio
        after = LambdaLR(optimizer, lambda step: least + (1 - least) * min(1.0, (left - 1 - step) / steps))
    else:
        after = LambdaLR(optimizer, lambda step: 1.0)
    scheduler = after
    if warm:
        before = LinearLR(optimizer, 1 / warm, 1.0, warm - 1) if warm > 1 else LambdaLR(optimizer, lambda step: 1.0)
        scheduler = SequentialLR(optimizer, [before, after], [warm])
    rates = []
    for _ in range(STEPS):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("schedule", ["cosine", "constant", "wsd"])
@pytest.mark.parametrize("warmup", [0, 1, 8])
@pytest.mark.parametrize("least", [0.0, 0.1])
def test_every_step_has_the_rate_of_torch(schedule: str, warmup: int, least: float) -> None:
    section = AdamWSection(lr=3e-3, schedule=schedule, warmup_steps=warmup, min_lr_ratio=least, decay_fraction=0.25)
    rates = [learning_rate(section, step, STEPS) for step in range(STEPS)]
    assert rates == pytest.approx(of_torch(section), rel=1e-9, abs=1e-12)
    assert rates[-1] == pytest.approx(section.lr * (least if schedule != "constant" else 1.0))


@pytest.mark.parametrize("schedule", ["cosine", "constant", "wsd"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_short_runs_have_a_rate(schedule: str, steps: int) -> None:
    section = AdamWSection(lr=1.0, schedule=schedule, warmup_steps=0, min_lr_ratio=0.1)
    rates = [learning_rate(section, step, steps) for step in range(steps)]
    assert all(0.1 <= rate <= 1.0 for rate in rates)
    assert rates == sorted(rates, reverse=True)
