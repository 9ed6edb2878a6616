"""Footprints of microbatches between recorded sizes are those that recording them gives."""

from dataclasses import replace
from itertools import product

import pytest

from fourfold.model.footprint import segment_footprint, weight_gradient_work
from fourfold.model.interpolated_footprint import KNOTS, between
from fourfold.model.spec import build_segments
from fourfold.plan import blocks
from fourfold.plan.blocks import BlockPricer
from fourfold.plan.space import block_shapes
from tests.plan.test_bounds import EXPERTS, MLA, request


@pytest.mark.parametrize("more", [{}, EXPERTS, MLA], ids=["dense", "experts", "latent"])
def test_what_lies_between_is_what_a_recording_says(more: dict) -> None:
    """The head, whose loss is made of chunks, has no line: it is recorded."""
    asked = request(16, 64, **more)
    model, derived = asked.model, 0
    shapes = [shape for shape in block_shapes(asked) if shape.microbatch_sequences == 4 and shape.recompute != "full"]
    firsts = {(segment.kind, segment.moe): segment for segment in build_segments(model)}.values()
    for segment, shape in product(firsts, shapes[:: max(1, len(shapes) // 12)]):
        one = blocks._shape_spec(asked, shape).shape
        for size in (4, 8):
            knots = [replace(one, sequences=n) for n in KNOTS]
            first, second, last = (segment_footprint(segment, model, each, shape.recompute) for each in knots)
            found = between((first, second, last), size)
            if found is not None:
                derived += 1
                assert found == segment_footprint(segment, model, replace(one, sequences=size), shape.recompute)
            works = [weight_gradient_work(segment, model, each) for each in knots]
            work = between((works[0], works[1], works[2]), size)
            assert work is None or work == weight_gradient_work(segment, model, replace(one, sequences=size))
    assert derived > 10


def test_numbers_off_the_line_are_not_guessed() -> None:
    assert between((1, 2, 16), 4) == 4
    assert between((1, 2, 17), 4) is None
    assert between(((1, "a"), (2, "a"), (16, "a")), 8) == (8, "a")
    assert between(((1, "a"), (2, "b"), (16, "a")), 8) is None
    assert between(((1,), (2, 3), (16,)), 8) is None


def test_prices_do_not_depend_on_which_sizes_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(16, 64, **EXPERTS)
    shapes = [shape for shape in block_shapes(asked) if shape.microbatch_sequences in (4, 8)][::31]
    derived = BlockPricer(asked)
    assert derived._derives == {4, 8}
    monkeypatch.setattr(blocks, "between", lambda *_: None)
    recorded = BlockPricer(asked)
    assert [derived.price(shape) for shape in shapes] == [recorded.price(shape) for shape in shapes]
