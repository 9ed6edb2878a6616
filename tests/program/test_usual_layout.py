"""Keys that a run file leaves open: sequence parallelism comes with tp, and a schedule has as few virtual stages as it takes."""

import pytest

from fourfold.config import UserError
from tests.support.programs import make_spec


@pytest.mark.parametrize(("schedule", "stages"), [("1f1b", 1), ("interleaved_1f1b", 2), ("zb_v", 2), ("dualpipe_v", 2)])
def test_a_schedule_has_as_few_virtual_stages_as_it_takes(schedule: str, stages: int) -> None:
    layout = make_spec(model={"num_layers": 6}, pp=2, schedule=schedule, accumulation=4).layout
    assert layout.virtual_stages == stages
    assert len(layout.segments_per_stage) == 2 * stages


def test_too_few_segments_for_the_stages_that_a_schedule_takes() -> None:
    with pytest.raises(UserError, match=r"layout\.pp x layout\.virtual_stages = 3 x 2 = 6 stages, .* only 4 segments"):
        make_spec(model={"num_layers": 2}, pp=3, schedule="zb_v", accumulation=6)


def test_sequence_parallelism_comes_with_tensor_parallelism() -> None:
    assert make_spec(tp=2, sequence_parallel=None).layout.sequence_parallel
    assert not make_spec(tp=2, sequence_parallel=False).layout.sequence_parallel
    assert not make_spec(tp=1, sequence_parallel=None).layout.sequence_parallel
    assert not make_spec(tp=2, sequence_parallel=None, sequence_length=17).layout.sequence_parallel, (
        "17 tokens are not divided over 2 ranks"
    )
