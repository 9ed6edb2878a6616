"""Where stages stand in their sources: nothing is read twice or left out where a source goes on, whatever was read in between."""

from collections import Counter

import numpy as np
import pytest

from fourfold.config import parse_run
from fourfold.config.schema import SkippedData
from fourfold.config.stages import course_of
from fourfold.data.batches import GlobalBatches
from fourfold.data.blend import Blend
from fourfold.data.stage_place import place_of
from tests.data.test_global_batches import G, S, blended  # noqa: F401

A, B = {"path": "a", "weight": 3.0}, {"path": "b", "weight": 1.0}
HALF = [{"path": "a", "weight": 1.0}, {"path": "b", "weight": 1.0}]


def course(stages: list[dict], **batch):
    table = {"global_sequences": G, "sequence_length": S, "steps": 12, **batch}
    return course_of(parse_run({"batch": table, "data": {"corpus": [A, B]}, "stage": stages}))


def windows(found, prepared) -> list[tuple[int, int]]:
    """(part, draw of it) of every sample of the run, by where a stage stands in its parts."""
    drawn = []
    for stage in found.stages:
        place = place_of(found, stage)
        blend = Blend(place.phases)
        for step in range(stage.begin, stage.end):
            parts, indices = blend.locate(place.first(step) + np.arange(place.size(step)))
            drawn += [(place.keys[part], place.drawn[part] + index) for part, index in zip(parts, indices, strict=True)]
    return drawn


@pytest.mark.parametrize(
    "stages",
    [
        [{"until_steps": 5}, {"data": {"corpus": HALF}}],
        [
            {"until_steps": 6},
            {"data": {"corpus": [A, {**B, "later": [{"step": 3, "weight": 4.0}, {"step": 9, "weight": 0.0}]}]}},
        ],
        [{"until_steps": 4}, {"until_steps": 7, "data": {"corpus": [B]}}, {"data": {"corpus": [B, A]}}],
        [
            {"until_steps": 4},
            {"until_steps": 6, "batch": {"global_sequences": 3}},
            {"optimizer": {"schedule": "constant"}},
        ],
    ],
)
def test_each_source_is_read_on_without_a_gap_and_without_a_window_twice(stages) -> None:
    found = windows(course(stages), None)
    assert len(set(found)) == len(found)
    for key, count in Counter(key for key, _ in found).items():
        assert {index for each, index in found if each == key} == set(range(count))


def test_stages_with_one_blend_and_length_read_as_one_run(blended) -> None:  # noqa: F811
    plain = course([])
    staged = course(
        [{"until_steps": 3}, {"until_steps": 7, "optimizer": {"schedule": "linear"}}, {"layout": {"tp": 2}}]
    )
    full = GlobalBatches.of_run(blended, plain.stages[0].config, place_of(plain, plain.stages[0]))
    for stage in staged.stages:
        own = GlobalBatches.of_run(blended, stage.config, place_of(staged, stage))
        for step in range(stage.begin, stage.end):
            assert (own.batch(step, range(G)).tokens == full.batch(step, range(G)).tokens).all()


@pytest.mark.parametrize("blend", [HALF, [A, {**B, "later": [{"step": 8, "weight": 4.0}]}]])
def test_batches_of_a_stage_with_another_blend_go_on_in_each_source(blended, blend) -> None:  # noqa: F811
    staged = course([{"until_steps": 5}, {"data": {"corpus": blend}}])
    read: dict[int, list[int]] = {0: [], 1: []}
    for stage in staged.stages:
        batches = GlobalBatches.of_run(blended, stage.config, place_of(staged, stage))
        for step in range(stage.begin, stage.end):
            for sample in batches.samples(step, range(G)):
                read[sample.part].append(sample.index)
    assert all(indices == list(range(len(indices))) and len(indices) > 5 for indices in read.values())


def test_a_ramp_reads_the_same_samples_in_other_steps(blended) -> None:  # noqa: F811
    ramp = course([], ramp=[{"global_sequences": 1, "by": 1, "until_steps": 3}])
    plain = course([])
    rising, level = (GlobalBatches.of_run(blended, c.stages[0].config, place_of(c, c.stages[0])) for c in (ramp, plain))
    rows = [rising.batch(step, range(ramp.batch_at(step).sequences)).tokens for step in range(12)]
    samples = np.concatenate(rows)
    expected = np.concatenate([level.batch(step, range(G)).tokens for step in range(12)])
    assert (samples == expected[: len(samples)]).all()
    with pytest.raises(ValueError, match="a row below 1"):
        rising.batch(0, [1])


def test_windows_of_another_length_are_another_shuffle_and_come_back_where_they_were_left() -> None:
    stages = [
        {"until_steps": 4},
        {"until_steps": 6, "batch": {"sequence_length": 2 * S}},
        {"batch": {"sequence_length": S}},
    ]
    found = course(stages)
    first, longer, last = (place_of(found, stage) for stage in found.stages)
    assert longer.drawn == (0, 0)
    assert list(last.drawn) == Blend([(0, [3.0, 1.0])]).drawn(4 * G)
    assert first.keys == longer.keys == last.keys


@pytest.mark.parametrize("weights", [[1.0], [3.0, 1.0], [0.2, 0.5, 0.3], [1.0, 1.0, 1.0, 5.0]])
def test_a_blend_counts_as_it_deals(weights) -> None:
    blend = Blend([(0, weights)])
    for samples in (0, 1, 7, 100, 1001):
        parts, _ = blend.locate(np.arange(samples))
        assert blend.drawn(samples) == [int((parts == part).sum()) for part in range(len(weights))]


def test_data_left_out_across_a_border_are_those_of_each_side() -> None:
    found = course([{"until_steps": 6}, {"data": {"corpus": HALF}}])
    skips = [SkippedData(step=4, sequences=2 * G), SkippedData(step=6, sequences=3 * G)]
    plain, other = (place_of(found, found.stages[1], each) for each in ((), skips))
    assert [other.first(step) - plain.first(step) for step in (6, 7, 11)] == [3 * G] * 3
    assert sum(other.drawn) == sum(plain.drawn) + 2 * G
