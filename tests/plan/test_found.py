"""The order of layouts that were found."""

from dataclasses import replace
from itertools import permutations

from fourfold.plan.pricing import Priced
from fourfold.plan.search import best_first
from tests.plan.test_pricer import LAYOUT


def test_the_order_in_which_layouts_come_does_not_matter() -> None:
    """Nor of those that are as good as one another."""
    layouts = [replace(LAYOUT, zero=zero) for zero in range(4)]
    priced = [Priced(layout, 1.0, (10,)) for layout in layouts] + [Priced(replace(LAYOUT, tp=1), 1.0, (9,))]
    orders = {tuple(each.candidate for each in best_first(order, 5)) for order in permutations(priced)}
    assert len(orders) == 1
    assert next(iter(orders))[0].tp == 1
