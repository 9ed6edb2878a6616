"""Random products of all parallelism: verified, declared to the byte, and the gradients and parameters of one process."""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as drawn_from
from hypothesis import strategies as st

from tests.support.parity_check import check_parity
from tests.support.products import Product, faults_of, products, spec_of

SEED = 20261121
COUNTS = {2: 2, 4: 5, 8: 1}
"""Ranks -> products in the quick part."""


def _check(product: Product) -> None:
    spec = spec_of(product.sections, product.ranks)
    faults = faults_of(spec)
    assert not faults, faults[0]
    check_parity(product.ranks, **product.sections)


def _draw_and_check(config: pytest.Config, ranks: int, count: int) -> None:
    """Products are those of one seed, so that every run has the same; `--hypothesis-seed=N` draws others."""
    stated: Any = config.getoption("--hypothesis-seed")
    number = SEED if stated is None else int(stated)
    print(f"\n{count} products on {ranks} ranks, drawn with --hypothesis-seed={number}")
    seen: list[Product] = []

    @drawn_from(number + ranks)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(products(ranks))
    def check(product: Product) -> None:
        seen.append(product)
        _check(product)

    check()
    assert len(seen) >= count


@pytest.mark.parametrize("ranks", COUNTS)
def test_a_few_products(pytestconfig: pytest.Config, ranks: int) -> None:
    _draw_and_check(pytestconfig, ranks, COUNTS[ranks])


@pytest.mark.sweep
@pytest.mark.parametrize(("ranks", "count"), [(1, 4), (2, 16), (4, 32), (8, 24)])
def test_many_products(pytestconfig: pytest.Config, ranks: int, count: int) -> None:
    _draw_and_check(pytestconfig, ranks, count)


@pytest.mark.sweep
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([2, 4, 8, 16, 32]).flatmap(products))
def test_every_product_is_proved_before_it_runs(product: Product) -> None:
    faults = faults_of(spec_of(product.sections, product.ranks))
    assert not faults, faults[0]
