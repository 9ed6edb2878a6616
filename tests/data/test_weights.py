"""Weights that change along a run: every source is read on from where it was, and has its share in every stretch."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import RunConfig, UserError, dump_run, load_run, parse_run
from fourfold.config.stages import course_of
from fourfold.data.blend import Blend
from fourfold.data.weights import MOST_PIECES, fixed_shares, largest_remainder, shares_by_step, weight_phases

G, S = 4, 8


def run(*sources: Any, **batch: int) -> RunConfig:
    """A run of sources: each a weight, or (weight, later)."""
    parts = [
        {"path": f"{number}", "weight": float(each)}
        if not isinstance(each, tuple)
        else {"path": f"{number}", "weight": float(each[0]), "later": each[1]}
        for number, each in enumerate(sources)
    ]
    table = {"global_sequences": G, "sequence_length": S, "steps": 100, **batch}
    return parse_run({"data": {"corpus": parts}, "batch": table})


@st.composite
def changing_weights(draw: st.DrawFn) -> list[tuple[int, list[float]]]:
    sources = draw(st.integers(1, 6))
    starts = [0, *sorted(draw(st.sets(st.integers(1, 2000), max_size=6)))]
    weight = st.one_of(st.just(0.0), st.floats(0.01, 100))
    lists = st.lists(weight, min_size=sources, max_size=sources).filter(any)
    return [(start, draw(lists)) for start in starts]


@settings(max_examples=200, deadline=None)
@given(changing_weights())
def test_no_sample_is_repeated_or_left_out_where_weights_change(phases: list[tuple[int, list[float]]]) -> None:
    total = 2500
    blend = Blend(phases)
    sources, indices = blend.locate(np.arange(total))
    for source in range(len(phases[0][1])):
        assert np.array_equal(indices[sources == source], np.arange((sources == source).sum()))
    for samples in (0, 1, 700, total):
        assert blend.drawn(samples) == np.bincount(sources[:samples], minlength=len(phases[0][1])).tolist()
    # A source without a weight has no sample.
    for (start, weights), (stop, _) in pairwise([*phases, (total, [])]):
        assert all(weights[source] for source in np.unique(sources[start:stop]))


@settings(max_examples=200, deadline=None)
@given(changing_weights())
def test_each_source_has_its_share_of_every_phase_together(phases: list[tuple[int, list[float]]]) -> None:
    """Rounding does not add up over changes: half a sample for each split that a source is below, and for what a change moved."""
    total = 2500
    blend, num_sources = Blend(phases), len(phases[0][1])
    expected = np.zeros(num_sources)
    for (start, weights), (stop, _) in pairwise([*phases, (total, [])]):
        expected += (stop - start) * np.array(weights) / sum(weights)
        off = np.abs(np.array(blend.drawn(stop)) - expected).max()
        assert off < 0.5 * num_sources * len(phases) + 1e-6


def test_a_thousand_changes_add_no_error() -> None:
    """A source of 1 in 2,000 would never be seen if each phase of 100 samples were rounded by itself."""
    phases = [(100 * number, [1.0, 0.0005 + 1e-9 * number, 0.3]) for number in range(1000)]
    blend = Blend(phases)
    expected = sum(100 * np.array(weights) / sum(weights) for _, weights in phases)
    assert np.abs(np.array(blend.drawn(100_000)) - expected).max() < 2


@settings(max_examples=100, deadline=None)
@given(changing_weights(), st.integers(2001, 4000))
def test_samples_before_a_change_do_not_depend_on_it(phases: list[tuple[int, list[float]]], change: int) -> None:
    samples = np.arange(change)
    later = Blend([*phases, (change, phases[0][1][::-1])])
    assert np.array_equal(np.stack(Blend(phases).locate(samples)), np.stack(later.locate(samples)))


def test_any_samples_in_any_order_are_what_they_are_among_all() -> None:
    blend = Blend([(0, [0.5, 0.3, 0.2]), (20, [0, 0.1, 0.9]), (41, [1, 1, 1])])
    every = np.stack(blend.locate(np.arange(60)), 1)
    picked = np.array([49, 2, 2, 15, 41, 40, 20, 19])
    assert np.array_equal(np.stack(blend.locate(picked), 1), every[picked])


def test_a_place_far_on_is_found_without_a_walk() -> None:
    """By the cursors that a billion steps of 1,024 sequences leave."""
    far = 10**12
    blend = Blend([(0, [0.7, 0.3]), (far, [0.2, 0.8]), (2 * far, [0.0, 1.0])])
    assert blend.drawn(far) == [7 * far // 10, 3 * far // 10]
    sources, indices = blend.locate(2 * far + np.arange(5))
    assert sources.tolist() == [1] * 5
    assert indices.tolist() == [11 * far // 10 + number for number in range(5)]


def test_weights_by_steps_and_by_tokens_hold_from_the_next_step_on() -> None:
    config = run((3, [{"step": 10, "weight": 1.0}]), (1, [{"tokens": 20 * G * S - 1, "weight": 3.0}]))
    assert shares_by_step(config.data, course_of(config).step_after) == [
        (0, [0.75, 0.25]),
        (10, [0.5, 0.5]),
        (20, [0.25, 0.75]),
    ]
    assert [start for start, _ in weight_phases(config)] == [0, 10 * G, 20 * G]
    exactly = run((3, [{"tokens": 20 * G * S, "weight": 1.0}]))
    assert [start for start, _ in weight_phases(exactly)] == [0, 20 * G]


@pytest.mark.parametrize("steps", [7, 256, 10_000])
def test_a_linear_change_has_the_mean_of_its_ends(steps: int) -> None:
    """And is a line on its way: the drawn share follows the integral of the weights, which sum to 1 here."""
    config = run((1, [{"step": 50, "weight": 1.0}, {"step": 50 + steps, "weight": 0.0, "linear": True}]), (0, [
        {"step": 50, "weight": 0.0}, {"step": 50 + steps, "weight": 1.0, "linear": True}]))  # fmt: skip
    phases = weight_phases(config)
    assert len(phases) == 2 + min(steps, MOST_PIECES)
    blend = Blend(phases)
    for done in (0, steps // 3, steps // 2, steps):
        line = G * (done - done**2 / (2 * steps))
        piece = G * steps / min(steps, MOST_PIECES)
        assert abs(blend.drawn(G * (50 + done))[0] - (50 * G + line)) < 1 + piece / 8
    assert abs(blend.drawn(G * (50 + steps))[0] - (50 * G + G * steps / 2)) <= 1
    assert blend.drawn(G * (60 + steps))[0] == blend.drawn(G * (50 + steps))[0]


def test_two_sources_may_slope_at_different_times() -> None:
    slope = [{"step": 10, "weight": 2.0, "linear": True}]
    config = run(1, (1, slope), (1, [{"step": 4, "weight": 0.0}]))
    shares = dict(shares_by_step(config.data, course_of(config).step_after))
    assert list(shares) == list(range(11))
    assert shares[3] == pytest.approx([1 / 3.35, 1.35 / 3.35, 1 / 3.35])
    assert shares[4] == pytest.approx([1 / 2.45, 1.45 / 2.45, 0])
    assert shares[10] == pytest.approx([1 / 3, 2 / 3, 0])


def test_validation_has_each_source_by_its_largest_weight() -> None:
    assert fixed_shares(run((3, [{"step": 5, "weight": 1.0}]), (0, [{"step": 5, "weight": 1.0}])).data) == [0.75, 0.25]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ((0, []), "a source has a weight greater than 0 at some time: weight = 1.0"),
        ((1, [{"weight": 2.0}]), r"each change of a source states step, or each states tokens: later = \[{step = 1000"),
        ((1, [{"step": 1, "tokens": 3, "weight": 2.0}]), "each change of a source states step"),
        ((1, [{"step": 1, "weight": 2.0}, {"tokens": 900, "weight": 1.0}]), "each change of a source states step"),
        ((1, [{"step": 9, "weight": 2.0}, {"step": 9, "weight": 1.0}]), "changes of a weight rise in their step or tokens"),
        ((1, [{"step": 0, "weight": 2.0}]), r"later 1: step = 0: input should be greater than 0"),
        ((1, [{"step": 3, "weight": -1.0}]), r"later 1: weight = -1\.0"),
    ],
)  # fmt: skip
def test_weights_that_cannot_be_are_refused_by_their_key(source: tuple[int, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"data\.corpus 2.*{message}"):
        run(1, source)


def test_a_time_without_any_weight_and_a_weight_hardly_seen_are_refused() -> None:
    with pytest.raises(UserError, match=r"data\.corpus: no source has a weight above 0 from step 7 on; .* works: 1\.0"):
        weight_phases(run((1, [{"step": 7, "weight": 0.0}])))
    with pytest.raises(UserError, match=r"data\.corpus: weight 1e-09 is less .*a weight that works: 0\.001"):
        weight_phases(run(1, 1e-9))
    with pytest.raises(UserError, match=r"data\.corpus: weight 1e-09 from step 7 on is less"):
        weight_phases(run(1, (1, [{"step": 7, "weight": 1e-9}])))


def test_a_run_file_with_later_weights_reads_back_unchanged(tmp_path: Path) -> None:
    config = run(1, (1, [{"step": 7, "weight": 2.0, "linear": True}]))
    (tmp_path / "run.toml").write_text(dump_run(config))
    assert load_run(tmp_path / "run.toml", as_written=True) == config


def test_constant_weights_are_divided_as_they_always_were() -> None:
    """Runs that began before weights could change go on with the same samples."""
    sources, indices = Blend([(0, [0.7, 0.2985, 0.0015])]).locate(np.arange(10**6, 10**6 + 2000))
    assert np.bincount(sources).tolist() == [1400, 597, 3]
    assert np.flatnonzero(sources == 2).tolist() == [331, 998, 1664]
    assert largest_remainder([0.7, 0.2985, 0.0015], 2000) == [1400, 597, 3]
    assert indices[sources == 2].tolist() == [1500, 1501, 1502]
