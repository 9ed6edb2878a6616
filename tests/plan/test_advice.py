"""Advice: changes that were simulated, that help by what is printed, and that nobody refuses."""

from typing import Any

import pytest

import fourfold as ff
from fourfold.plan.advice import HELPS, MOST, candidate_of
from fourfold.report.format_outlook import advice_lines, advice_record
from fourfold.results.record import document as json_document
from fourfold.simulate.summary import IMBALANCE

BIG = {"model": {"preset": "llama3-405b"}, "batch": {"global_sequences": 512, "sequence_length": 8192}}
BIG |= {"precision": {"compute": "bf16"}, "layout": {"tp": 8, "zero": 1}}


@pytest.mark.parametrize(
    ("run", "overrides"),
    [
        ("preset:llama3.1-8b-128", []),
        ("preset:mixtral-8x22b-256", ["layout.recompute=full"]),
        pytest.param("preset:deepseek-v3-2k", [], marks=pytest.mark.rest),
        pytest.param("preset:gpt3-175b", ["layout.tp=4", "layout.pp=16"], marks=pytest.mark.rest),
    ],
)
def test_a_change_that_is_advised_gains_what_is_printed(run: str, overrides: list[str]) -> None:
    found = ff.simulate(run, overrides)
    advice = found.advice
    assert advice is not None
    assert 1 <= len(advice.changes) <= MOST
    for change in advice.changes:
        again = ff.simulate(run, [*overrides, *change.overrides])
        assert again.step_seconds == change.seconds <= (1 - HELPS) * found.step_seconds
        assert again.memory_bytes == change.memory_bytes
        assert again.fits
    lines = advice_lines(advice, found.summary)
    assert len(lines) == len(advice.changes)
    assert lines[0].startswith("change  layout.")
    assert "less time" in lines[0]


def test_where_nothing_fits_changes_make_it_smaller() -> None:
    """More of a degree that the devices have not is never advised."""
    found = ff.simulate(BIG, cluster="dgx-h100:128")
    assert not found.fits
    advice = found.advice
    assert advice is not None
    held = [change.memory_bytes for change in advice.changes]
    assert held == sorted(held)
    assert all(each <= (1 - HELPS) * found.memory_bytes for each in held)
    for change in advice.changes:
        assert ff.simulate(BIG, change.overrides, cluster="dgx-h100:128").memory_bytes == change.memory_bytes
    assert "still" in advice_lines(advice, found.summary)[0]


def test_the_limit_of_the_step_is_named_where_nothing_helps() -> None:
    planned = ff.plan(model="llama3-8b", cluster="dgx-h100:8", sequence_length=8192, batch_sequences=128, keep=1)
    advice, summary = planned.found.advice, planned.found.best_step
    assert advice is not None
    assert summary is not None
    assert advice.changes == ()
    (line,) = advice_lines(advice, summary)
    assert line.startswith("change  no single change helps; the step is matmuls")
    document: Any = json_document(advice_record(advice, summary))
    assert document["changes"] == []
    assert document["limit"].startswith("no single change helps")


@pytest.mark.parametrize(
    "layout",
    [
        {"recompute": "selective"},
        {"recompute": "full:3"},
        {"recompute": ["full", "none"] * 16},
        {"offload": "activations:5", "recompute": "full:2"},
        {"pp": 4, "schedule": "interleaved_1f1b", "virtual_stages": 2, "outermost": "dp", "zero": 1},
        {"offload_optimizer": True, "dp_replicate": 2, "dp_shard": 16, "zero": 3},
    ],
)
def test_a_run_has_the_same_step_by_the_planner(layout: dict[str, Any]) -> None:
    from fourfold.api.simulation import request_of
    from fourfold.plan.pricing import Pricer

    run = {"model": {"preset": "llama3-8b"}, "batch": {"global_sequences": 64, "sequence_length": 4096}}
    found = ff.simulate(run | {"precision": {"compute": "bf16"}, "layout": layout}, cluster="dgx-h100:32")
    candidate = candidate_of(found.resolved.layout, 32)
    assert candidate is not None
    step = Pricer(request_of(found)).predict(candidate)
    assert step.seconds == pytest.approx(found.step_seconds, rel=1e-9)
    assert max(step.device_bytes) == found.memory_bytes


def test_imbalance_is_no_bubble() -> None:
    """Equal stages have none of it; the ranks of a model with a large head wait for the last one, however many microbatches."""
    run = {"model": {"preset": "llama3-8b"}, "precision": {"compute": "bf16"}}
    run |= {"layout": {"pp": 8, "tp": 1}, "batch": {"global_sequences": 256, "sequence_length": 4096}}
    uneven = ff.simulate(run, cluster="dgx-h100:8").summary
    assert uneven.imbalance_fraction > 0.01
    rank = uneven.busiest_rank
    assert uneven.spent[rank].get(IMBALANCE, 0.0) == 0.0
    shares = uneven.time_shares
    total = shares["compute"] + sum(shares["exposed"].values()) + shares["bubble"] + shares["imbalance"]  # type: ignore[union-attr, operator]
    assert total == pytest.approx(1.0)
    more = ff.simulate(run, ["batch.global_sequences=1024"], cluster="dgx-h100:8").summary
    assert more.bubble_fraction < 0.4 * uneven.bubble_fraction
    assert more.imbalance_fraction > 0.95 * uneven.imbalance_fraction
    one = ff.simulate(run, ["layout.pp=1", "layout.zero=1"], cluster="dgx-h100:8").summary
    assert one.imbalance_fraction == 0.0
