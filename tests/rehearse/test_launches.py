"""Launches and waits of the host as they are priced are those of a rehearsed step."""

from functools import cache

import pytest

from fourfold.program import lower_pipeline
from fourfold.program.launches import launches_beside, step_launches, waits_of_host, work_launches
from fourfold.program.view import rank_views
from fourfold.rehearse.rank import RankRehearsal, rehearse_rank
from fourfold.rehearse.run import class_ranks
from fourfold.rehearse.shapes import KnownShapes
from tests.rehearse.layouts import FEW, LAYOUTS
from tests.rehearse.rehearsed import layout_spec
from tests.support.grid import others_are_rest

EXACT = ["one rank", "one rank, sgd", "pipeline", "zero bubble", "ulysses"]
PIECES = ["ring, documents", "gathered keys", "fp32"]
"""Attention over a ring takes one launch a piece of a document ("gathered keys" has documents too), and in fp32 is no single
operation."""


@pytest.mark.parametrize("name", EXACT)
def test_as_many_launches_are_priced_as_a_step_makes(name: str) -> None:
    result, priced, _ = _of(name)
    assert result.launches + result.copies == priced


@pytest.mark.parametrize(
    "name",
    others_are_rest((name for name in LAYOUTS if not any(each in name for each in PIECES)), FEW),
)
def test_as_many_within_some_a_unit(name: str) -> None:
    """Padding is cleared, and the norm of few elements takes fewer launches than the norm of many."""
    result, priced, _ = _of(name)
    assert result.launches + result.copies == pytest.approx(priced, rel=0.03)


@pytest.mark.parametrize("name", others_are_rest(LAYOUTS, FEW))
def test_every_wait_of_the_host_is_priced(name: str) -> None:
    result, _, waits = _of(name)
    assert len(result.waits) == waits + 1, "one at the end of a step"


def test_a_kernel_more_is_one_launch_more() -> None:
    spec, _ = layout_spec("one rank")
    view, program = rank_views(spec)[0], lower_pipeline(spec)[0]
    forward = next(each for each in program.instructions if each.short == "F b0 m0")
    assert work_launches(forward.work) == 31
    assert launches_beside(forward, view) == 0


@cache
def _of(name: str) -> tuple[RankRehearsal, int, int]:
    """The step of the first rank, rehearsed; the launches and the waits that are priced."""
    spec, optimizer = layout_spec(name)
    view, program = rank_views(spec)[0], lower_pipeline(spec)[0]
    result = rehearse_rank(view, program, class_ranks(spec)[0][0], optimizer, KnownShapes())
    return result, step_launches(program, view), sum(waits_of_host(each, view) for each in program.instructions)
