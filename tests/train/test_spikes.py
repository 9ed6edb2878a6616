"""Spikes: found by what came before, the same on every launch, and gone back from as if their data had never been."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

import fourfold
from fourfold.config.schema import SkippedData, SpikesSection
from fourfold.data.skipped import FILE, INTENT, begin_rollback
from fourfold.runtime.step import StepResult
from fourfold.train.spikes import SpikeDetector, target_of
from tests.train.test_stages import staged
from tests.train.test_training import corpus

__all__ = ["corpus"]


def step(loss: float, norm: float = 1.0, skipped: bool = False) -> StepResult:
    return StepResult(loss, norm, skipped, 1)


def shown(section: SpikesSection, losses: list[float], detector: SpikeDetector | None = None) -> list[str | None]:
    detector = detector or SpikeDetector(section)
    return [None if (found := detector.look(step(loss))) is None else found.name for loss in losses]


def test_a_value_far_above_those_before_is_a_spike_and_a_low_one_is_none() -> None:
    section = SpikesSection(window=5, threshold=4.0)
    assert shown(section, [3.0, 3.1, 2.9, 3.05, 2.95, 3.2, 9.0, 1.0]) == [*[None] * 6, "loss", None]
    assert shown(section, [3.0, 9.0, 3.0, 9.0]) == [None] * 4  # fewer than the window


def test_the_score_is_that_of_the_median_and_its_absolute_deviation() -> None:
    detector = SpikeDetector(SpikesSection(window=5, threshold=2.0))
    for norm in (1.0, 2.0, 3.0, 4.0, 10.0):
        detector.look(step(1.0, norm))
    found = detector.look(step(1.0, 9.0))
    assert found is not None
    assert (found.name, found.median) == ("gradient norm", 3.0)
    assert found.score == pytest.approx((9.0 - 3.0) / (1.4826 * 1.0))


def test_a_run_that_goes_on_finds_what_an_undisturbed_one_finds() -> None:
    section = SpikesSection(window=4, threshold=3.0)
    losses = [5.0, 4.0, 4.5, 4.2, 4.1, 8.0, 4.0, 12.0, 3.9]
    for cut in range(len(losses)):
        first = SpikeDetector(section)
        before = shown(section, losses[:cut], first)
        after = shown(section, losses[cut:], SpikeDetector(section, json.loads(json.dumps(first.recent))))
        assert before + after == shown(section, losses)


def test_norms_beyond_the_threshold_are_skipped_but_not_for_ever() -> None:
    detector = SpikeDetector(SpikesSection(policy="skip", window=4, threshold=3.0, max_skips=2))
    assert detector.largest_norm() == math.inf
    for norm in (1.0, 1.1, 0.9, 1.0):
        detector.look(step(1.0, norm))
    limit = detector.largest_norm()
    assert limit == pytest.approx(1.0 + 3.0 * 1.4826 * 0.05)
    for _ in range(2):
        assert detector.largest_norm() == limit
        detector.look(step(1.0, 50.0, skipped=True))
    assert detector.largest_norm() == math.inf


@pytest.mark.parametrize(
    ("saved", "made", "target"),
    [([10, 20, 30], 0, 20), ([25, 30], 0, None), ([10], 3, None), ([], 0, None), ([21, 22], 0, 22)],
)
def test_a_run_goes_back_to_the_newest_checkpoint_that_is_far_enough_before(saved, made, target) -> None:
    assert target_of(saved, 32, SpikesSection(rollback_steps=10, max_rollbacks=3), made) == target


def run(corpus: Path, folder: Path, **sections: Any) -> dict[str, Any]:
    table = staged(corpus, folder, [{}, {}, {}])
    del table["stage"], table["batch"]["ramp"]
    table["batch"]["steps"] = 24
    table["optimizer"] |= {"schedule": "constant", "lr": 3e-2}
    for name, keys in sections.items():
        table[name] = {**table.get(name, {}), **keys}
    return table


def test_a_run_that_went_back_is_one_that_was_told_to_leave_the_data_out(tmp_path: Path, corpus: Path) -> None:
    spikes = {"policy": "rollback", "window": 6, "threshold": 0.5, "rollback_steps": 2, "max_rollbacks": 2}
    table = run(corpus, tmp_path, spikes=spikes)
    back = fourfold.train(table, ranks=1, out=tmp_path / "back", quiet=True)
    skips = json.loads((tmp_path / "back" / FILE).read_text())["skipped"]
    rolled = [event for event in back.events if event["event"] == "rollback"]
    assert [event["to"] for event in rolled] == [skip["step"] for skip in skips]
    assert skips
    told = fourfold.train(
        run(corpus, tmp_path, data={"skip_sequences": skips}, spikes={"policy": "off"}),
        ranks=1,
        out=tmp_path / "told",
        quiet=True,
    )
    for key in ("step", "tokens", "loss", "grad_norm", "lr"):
        assert [row[key] for row in back.metrics] == [row[key] for row in told.metrics], key
    plain = fourfold.train(run(corpus, tmp_path, spikes={"policy": "off"}), ranks=1, out=tmp_path / "plain", quiet=True)
    first = skips[0]["step"]
    losses = [[row["loss"] for row in each.metrics] for each in (back, plain)]
    assert losses[0][:first] == losses[1][:first]
    assert losses[0][first:] != losses[1][first:]


@pytest.mark.rest
@pytest.mark.parametrize("layout", [{"zero": 3}, {"pp": 2}, {"tp": 2}], ids=str)
def test_steps_that_change_nothing_are_the_same_under_every_layout(tmp_path: Path, corpus: Path, layout) -> None:
    spikes = {"policy": "skip", "window": 5, "threshold": 0.2, "max_skips": 2}
    alone = fourfold.train(run(corpus, tmp_path, spikes=spikes), ranks=1, out=tmp_path / "alone", quiet=True)
    split = run(corpus, tmp_path, spikes=spikes)
    split["layout"] = layout
    found = fourfold.train(split, ranks=2, out=tmp_path / "split", quiet=True)
    skipped = [row["skipped_steps"] for row in alone.metrics]
    assert 0 < skipped[-1] < 20
    assert [row["skipped_steps"] for row in found.metrics] == skipped
    for key in ("loss", "grad_norm"):
        expected = [row[key] for row in alone.metrics]
        assert [row[key] for row in found.metrics] == pytest.approx(expected, rel=1e-8), key
    assert [event["step"] for event in found.events if event["event"] == "skip"]


def test_a_return_that_is_cut_short_is_ended_by_whoever_starts_next(tmp_path: Path, corpus: Path) -> None:
    spikes = {"policy": "rollback", "window": 6, "threshold": 0.5, "rollback_steps": 2, "max_rollbacks": 1}
    full = fourfold.train(run(corpus, tmp_path, spikes=spikes), ranks=1, out=tmp_path / "full", quiet=True)
    [back] = [event for event in full.events if event["event"] == "rollback"]
    short = run(corpus, tmp_path, spikes={"policy": "off"}, checkpoint={"keep": 20})
    short["batch"]["steps"] = 24
    fourfold.train(short, ranks=1, out=tmp_path / "cut", quiet=True)
    begin_rollback(tmp_path / "cut", back["to"], [SkippedData(**entry) for entry in back["skipped"]])
    again = fourfold.train(
        {**short, "batch": {**short["batch"], "steps": 25}}, ranks=1, out=tmp_path / "cut", quiet=True
    )
    assert not (tmp_path / "cut" / INTENT).exists()
    assert [row["loss"] for row in again.metrics][: back["to"]] == [row["loss"] for row in full.metrics][: back["to"]]
    assert [row["loss"] for row in again.metrics][:24] == [row["loss"] for row in full.metrics]
