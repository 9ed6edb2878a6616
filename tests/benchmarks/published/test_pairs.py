"""Published cases as pairs: what groups them, what does not count, what the null model knows, the healthy part."""

from collections.abc import Sequence
from dataclasses import replace

from case import PublishedCase, SettledPrediction
from pairs import measure_published, pair_of
from tests.support.published import CASES


def _timed(seconds: Sequence[float], **changes: object) -> list[PublishedCase]:
    """Cases of one cell with these measured step times."""
    base = CASES["sweep:0"]
    return [
        replace(base, id=str(i), measured=replace(base.measured, step_seconds=t, **changes))  # type: ignore[arg-type]
        for i, t in enumerate(seconds)
    ]


def _predicted(seconds: Sequence[float]) -> list[SettledPrediction]:
    return [SettledPrediction(step_seconds=t) for t in seconds]


def test_cases_of_a_device_and_a_precision_share_a_constant() -> None:
    hopper = CASES["sweep:0"]
    others = [replace(hopper, device="b200"), replace(hopper, precision=replace(hopper.precision, low="fp8"))]
    groups = {pair_of(case, SettledPrediction(step_seconds=1.0)).null_group for case in (hopper, *others)}
    assert groups == {("h100-sxm", "bf16"), ("b200", "bf16"), ("h100-sxm", "fp8")}


def test_the_null_model_knows_no_layouts() -> None:
    split = CASES["vendor:1"]
    unsplit = replace(split, model=replace(split.model, vocab_size=split.vocab_size), layout=CASES["sweep:1"].layout)
    assert split.model.vocab_size > split.vocab_size, "padded for tp = 4"
    flops = [pair_of(case, SettledPrediction()).device_flops for case in (split, unsplit)]
    assert flops[0] == flops[1] > 0


def test_the_healthy_part_is_small_and_near_the_best() -> None:
    cases = _timed([1.0, 2.9, 3.1])
    assert measure_published(cases, _predicted([1.0, 1.0, 1.0])).healthy.count == 2
    large = [replace(c, num_devices=72) for c in cases]
    assert measure_published(large, _predicted([1.0, 1.0, 1.0])).healthy.count == 0


def test_times_that_do_not_count_are_left_out() -> None:
    cases = _timed([1.0, 2.0], time_counts=False)
    assert measure_published(cases, _predicted([1.0, 2.0])).step.count == 0
