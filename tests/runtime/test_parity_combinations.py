"""Random combinations of all parallelism: verified, declared to the byte, and the gradients and parameters of one process."""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as drawn_from
from hypothesis import strategies as st

from tests.support.combinations import Combination, combinations, faults_of, spec_of
from tests.support.parity_check import check_parity

SEED = 20261121
COUNTS = {2: 2, 4: 5, 8: 1}
"""Ranks -> combinations in the quick part."""


def _check(combination: Combination) -> None:
    spec = spec_of(combination.sections, combination.ranks)
    faults = faults_of(spec)
    assert not faults, faults[0]
    check_parity(combination.ranks, **combination.sections)


def _draw_and_check(config: pytest.Config, ranks: int, count: int) -> None:
    """Combinations are those of one seed, so that every run has the same; `--hypothesis-seed=N` draws others."""
    stated: Any = config.getoption("--hypothesis-seed")
    number = SEED if stated is None else int(stated)
    print(f"\n{count} combinations on {ranks} ranks, drawn with --hypothesis-seed={number}")
    seen: list[Combination] = []

    @drawn_from(number + ranks)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(combinations(ranks))
    def check(combination: Combination) -> None:
        seen.append(combination)
        _check(combination)

    check()
    assert len(seen) >= count


@pytest.mark.parametrize("ranks", COUNTS)
def test_a_few_combinations(pytestconfig: pytest.Config, ranks: int) -> None:
    _draw_and_check(pytestconfig, ranks, COUNTS[ranks])


@pytest.mark.sweep
@pytest.mark.parametrize(("ranks", "count"), [(1, 4), (2, 16), (4, 32), (8, 24)])
def test_many_combinations(pytestconfig: pytest.Config, ranks: int, count: int) -> None:
    _draw_and_check(pytestconfig, ranks, count)


@pytest.mark.sweep
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([2, 4, 8, 16, 32]).flatmap(combinations))
def test_every_combination_is_verified_before_it_runs(combination: Combination) -> None:
    faults = faults_of(spec_of(combination.sections, combination.ranks))
    assert not faults, faults[0]
