"""The learning rate of every step is that of PyTorch's schedulers, which reach their least rate at the last one."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR

from fourfold.config.learning_rate import learning_rate
from fourfold.config.optimizers import AdamWSection

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


TABLES = [
    # Vaswani et al. 2017, equation 3, with 4 steps of warm-up: lr sqrt(4) min(k / 4^1.5, 1 / sqrt(k)) at step k from 1
    ({"schedule": "inverse_root", "warmup_steps": 4}, [k / 4 if k <= 4 else 2 / k**0.5 for k in range(1, 13)]),
    # Shen et al. 2024: the rate of n tokens is that of n0 times (n / n0)^-0.51
    ({"schedule": "power", "warmup_steps": 2}, [0.5, 1.0, *((2 / k) ** 0.51 for k in range(3, 13))]),
    ({"schedule": "power", "exponent": 1.0}, [1 / k for k in range(1, 13)]),
    ({"schedule": "linear"}, [1 - k / 11 for k in range(12)]),
    # Hägele et al. 2024: 1 - sqrt of the progress through the decay
    (
        {"schedule": "wsd", "decay_steps": 4, "decay_shape": "sqrt"},
        [1.0] * 8 + [1 - (k / 4) ** 0.5 for k in (1, 2, 3, 4)],
    ),
    ({"schedule": "wsd", "decay_steps": 2, "decay_shape": "cosine"}, [1.0] * 10 + [0.5, 0.0]),
    ({"schedule": "wsd", "decay_steps": 2, "decay_shape": "exponential"}, [1.0] * 10 + [2 * 0.5**0.5 - 1, 0.0]),
    ({"schedule": "constant", "decay_steps": 4}, [1.0] * 8 + [0.75, 0.5, 0.25, 0.0]),
    (
        {"schedule": "points", "points": [[2, 1.0], [6, 0.5], [7, 0.25]]},
        [1.0, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25],
    ),
]


@pytest.mark.parametrize(("keys", "table"), TABLES, ids=[str(keys) for keys, _ in TABLES])
def test_each_schedule_is_its_published_formula(keys: dict, table: list[float]) -> None:
    section = AdamWSection(lr=1.0, min_lr_ratio=0.0, **keys)
    assert [learning_rate(section, step, 12) for step in range(12)] == pytest.approx(table, rel=1e-12, abs=1e-12)


def test_a_root_does_not_fall_below_the_least_rate() -> None:
    section = AdamWSection(lr=1.0, min_lr_ratio=0.3, schedule="inverse_root")
    assert [learning_rate(section, step, 50) for step in (0, 3, 24, 49)] == [1.0, 0.5, 0.3, 0.3]
