"""A run whose learning rate does not go as its keys read is told so at its start, with keys whose rate does."""

import re
from itertools import pairwise

import pytest

from fourfold.config import RunConfig, parse_run
from fourfold.config.learning_rate import learning_rate
from fourfold.launch.warnings import phases_that_do_not_fit


def run(steps: int, **optimizer) -> RunConfig:
    batch = {"global_sequences": 8, "sequence_length": 16, "steps": steps}
    return parse_run({"batch": batch, "optimizer": {"lr": 1e-3, **optimizer}})


def rates(steps: int, **optimizer) -> list[float]:
    section = run(steps, **optimizer).optimizer
    return [learning_rate(section, step, steps) for step in range(steps)]


def is_smooth(found: list[float], fraction: float) -> bool:
    """Whether the rate reaches its peak, ends at a tenth of it, and no step falls by more than the decay's own."""
    most = (1e-3 - 1e-4) / max(1, round(fraction * len(found)))
    falls = [before - after for before, after in pairwise(found)]
    return max(found) == 1e-3 and found[-1] == pytest.approx(1e-4) and max(falls) <= most + 1e-12


def test_a_run_that_ends_in_its_warm_up_is_told_its_highest_rate() -> None:
    (told,) = phases_that_do_not_fit(run(3, warmup_steps=10))
    highest = re.search(r"highest learning rate is ([0-9.e-]+), ([0-9.]+) of optimizer.lr", told)
    assert highest is not None
    assert float(highest[1]) == pytest.approx(max(rates(3, warmup_steps=10)))
    assert float(highest[2]) == 0.3


@pytest.mark.parametrize(
    ("steps", "warmup", "fraction"), [(10, 6, 0.7), (100, 90, 0.2), (100, 100, 0.2), (10, 1, 1.0), (7, 6, 0.3)]
)
def test_phases_that_overlap_are_named_and_the_values_offered_do_not(steps: int, warmup: int, fraction: float) -> None:
    keys = {"warmup_steps": warmup, "schedule": "wsd", "decay_fraction": fraction}
    assert not is_smooth(rates(steps, **keys), fraction)
    (told,) = phases_that_do_not_fit(run(steps, **keys))
    assert "overlap" in told
    for offer in told.partition("what works: ")[2].split(" or "):
        works = {key: float(value) for key, value in re.findall(r"optimizer.(\w+)=([0-9.]+)", offer)}
        fits = {**keys, **works, "warmup_steps": int(works.get("warmup_steps", warmup))}
        assert list(phases_that_do_not_fit(run(steps, **fits))) == []
        assert is_smooth(rates(steps, **fits), fits["decay_fraction"])


@pytest.mark.parametrize("warmup", [9, 10])
def test_a_warm_up_that_leaves_no_step_to_decay_is_told(warmup: int) -> None:
    (told,) = phases_that_do_not_fit(run(10, warmup_steps=warmup))
    assert "leaves no step for the decay" in told
    assert rates(10, warmup_steps=warmup)[-1] == 1e-3


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"warmup_steps": 8},
        {"warmup_steps": 10, "schedule": "constant"},
        {"warmup_steps": 3, "schedule": "wsd", "decay_fraction": 0.7},
        {"warmup_steps": 0, "schedule": "wsd", "decay_fraction": 1.0},
    ],
    ids=str,
)
def test_a_rate_that_goes_as_it_reads_is_nothing_to_tell(keys: dict) -> None:
    assert list(phases_that_do_not_fit(run(10, **keys))) == []
