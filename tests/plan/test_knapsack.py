"""The choice for every block is the cheapest of all: as an integer program says, and as all choices tried say."""

from itertools import product
from random import Random

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from fourfold.plan.moves.knapsack import Option, Options, cheapest


def _blocks(seed: int, most: int) -> tuple[list[Options], float]:
    """Blocks of up to three kinds with up to five options, of which the first costs and spares nothing; the bytes needed."""
    rng = Random(seed)
    kinds = [
        (Option(0.0, 0.0), *(Option(rng.uniform(0, 2), rng.uniform(0, 3)) for _ in range(rng.randint(1, 4))))
        for _ in range(rng.randint(1, 3))
    ]
    blocks = [rng.choice(kinds) for _ in range(rng.randint(1, most))]
    return blocks, rng.uniform(0, 1.1) * sum(max(option.spared_bytes for option in options) for options in blocks)


def _seconds(blocks: list[Options], places: list[int]) -> float:
    return sum(options[place].seconds for options, place in zip(blocks, places, strict=True))


def _spared(blocks: list[Options], places: list[int]) -> float:
    return sum(options[place].spared_bytes for options, place in zip(blocks, places, strict=True))


@pytest.mark.parametrize("seed", range(60))
def test_as_an_integer_program_says(seed: int) -> None:
    """min c x, one option a block, bytes x >= needed, x binary: solved by HiGHS."""
    blocks, needed = _blocks(seed, 14)
    every = [option for options in blocks for option in options]
    owners = [i for i, options in enumerate(blocks) for _ in options]
    one_each = (np.array(owners) == np.arange(len(blocks))[:, None]).astype(float)
    limits = [
        LinearConstraint(one_each, 1, 1),
        LinearConstraint(np.array([[option.spared_bytes for option in every]]), needed, np.inf),
    ]
    costs = np.array([option.seconds for option in every])
    exact = milp(
        costs, constraints=limits, integrality=np.ones(len(every)), bounds=Bounds(0, 1), options={"mip_rel_gap": 0}
    )
    places = cheapest(blocks, needed)
    assert (places is None) == (exact.status == 2)
    if places is not None:
        assert _spared(blocks, places) >= needed
        assert _seconds(blocks, places) == pytest.approx(exact.fun, abs=1e-6)


@pytest.mark.parametrize("seed", range(60))
def test_as_all_choices_tried_say(seed: int) -> None:
    blocks, needed = _blocks(1000 + seed, 5)
    tried = [list(each) for each in product(*(range(len(options)) for options in blocks))]
    enough = [_seconds(blocks, each) for each in tried if _spared(blocks, each) >= needed]
    places = cheapest(blocks, needed)
    assert (places is None) == (not enough)
    if places is not None:
        assert _seconds(blocks, places) == pytest.approx(min(enough), abs=1e-9)


def test_blocks_that_are_alike_offload_first_and_keep_last() -> None:
    block = (Option(0.0, 0.0), Option(1.0, 1.0), Option(1.5, 2.0))
    assert cheapest([block] * 4, 5.0) == [2, 2, 1, 0]
    assert cheapest([block] * 4, 0.0) == [0, 0, 0, 0]
    assert cheapest([block] * 4, 8.1) is None


def test_many_blocks_take_no_time_to_speak_of() -> None:
    """A front stays small: 200 blocks with five options."""
    rng = Random(3)
    block = (Option(0.0, 0.0), *(Option(rng.uniform(0, 2), rng.uniform(0, 3)) for _ in range(4)))
    places = cheapest([block] * 200, 150.0)
    assert places is not None
    assert _spared([block] * 200, places) >= 150.0
