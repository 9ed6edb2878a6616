"""Random combinations of all that a run has: verified, declared to the byte, equal to one process, resumed under another layout.

Combination number i of a seed is the same on every machine. `--hypothesis-seed=N` draws those of another seed.
"""

import random
from pathlib import Path

import pytest

from tests.support.combination_check import check_combination
from tests.support.combinations import Combination, combination, faults_of, spec_of

SEED = 20261121
COUNT = 40
QUICK, REST = (2, 3), (0, 1, 4, 5)
"""Numbers that `make test` and `make test-rest` run; the others are a sweep."""
RANKS = (4, 2, 3, 4, 8, 2, 6, 4)
"""The ranks of the combinations in turn."""


def _seed(config: pytest.Config) -> int:
    stated = config.getoption("--hypothesis-seed")
    return SEED if stated is None else int(stated)


def _drawn(seed: int, number: int) -> Combination:
    others = random.Random(f"{seed} {number}").choice([1, 2, 2, 3, 4, 4])
    return combination(seed * 1000 + number, RANKS[number % len(RANKS)], others)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(n, marks=[] if n in QUICK else pytest.mark.rest if n in REST else pytest.mark.sweep)
        for n in range(COUNT)
    ],
)
def test_a_combination(pytestconfig: pytest.Config, tmp_path: Path, number: int) -> None:
    seed = _seed(pytestconfig)
    each = _drawn(seed, number)
    print(f"\n--hypothesis-seed={seed}, number {number}: {each}")
    check_combination(each, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("ranks", [2, 4, 6, 8, 16, 32])
def test_every_combination_is_verified_before_it_runs(pytestconfig: pytest.Config, ranks: int) -> None:
    for number in range(25):
        each = combination(_seed(pytestconfig) * 1000 + number, ranks, 1)
        faults = faults_of(spec_of(each.sections, ranks))
        assert not faults, f"{each}: {faults[0]}"
