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


@pytest.mark.parametrize("full", [(0, 1, 2), (9, 10, 11), (2, 6, 10)], ids=["first", "last", "spread"])
def test_stages_follow_what_each_kind_of_layer_computes(full: tuple[int, ...]) -> None:
    """By a count of its own: pairs of query and key, causal or within a window, and matmuls of every weight."""
    length, window, hidden, ffn = 4096, 8, 64, 128
    narrow = {"num_layers": 12, "hidden_size": hidden, "num_heads": 4, "ffn_size": ffn, "sliding_window": window}
    layout = make_spec(
        model={**narrow, "exceptions": [{"layers": list(full), "sliding_window": 0}]},
        pp=2,
        sequence_length=length,
        accumulation=4,
    ).layout
    matmuls = length * (4 * hidden * hidden + 3 * hidden * ffn)
    costs = [matmuls + 2 * hidden * (length * length / 2 if layer in full else length * window) for layer in range(12)]
    larger = {sizes: max(sum(costs[:sizes]), sum(costs[sizes:])) for sizes in range(1, 12)}
    first = layout.segments_per_stage[0] - 1
    assert larger[first] == min(larger.values())
    assert first != 6 or full == (2, 6, 10)
