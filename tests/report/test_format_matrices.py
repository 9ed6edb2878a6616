"""The optimizer's lines of a simulation: Muon's cost beside AdamW's, and who computes what."""

from dataclasses import replace
from typing import Any

import pytest

from fourfold.config.optimizers import AdamWSection, MuonSection
from fourfold.plan.planner import make_plan
from fourfold.plan.pricing import candidate_spec
from fourfold.report.format_plan import plan_lines
from fourfold.report.format_simulation import matrix_lines
from fourfold.simulate.prediction import predict_step
from fourfold.simulate.summary import StepSummary
from tests.plan.test_bounds import request
from tests.plan.test_pricer import LAYOUT


def _lines(optimizer: Any, **layout: Any) -> list[str]:
    asked = request(16, 64, optimizer=optimizer)
    spec = candidate_spec(asked, replace(LAYOUT, **layout))
    return matrix_lines(StepSummary(predict_step(spec, asked.prices(spec.layout)), spec.layout.num_microbatches))


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        ("shard", "every rank orthogonalizes what it has parts of, "),
        ("owner", "GFLOP on the busiest in place of "),
    ],
)
def test_the_placement_and_its_reason_are_told(placement: Any, words: str) -> None:
    first, *units = _lines(MuonSection(name="muon", placement=placement))
    assert first.startswith("optimizer  ")
    assert "AdamW's update would take" in first
    assert len(units) == 1  # the blocks are alike
    assert words in units[0]
    assert units[0].endswith(f"optimizer.placement = {placement}")


def test_auto_says_what_decided() -> None:
    (line,) = _lines(MuonSection(name="muon"), zero=0)[1:]
    assert "saves more than sending results costs" in line or "save less than sending results costs" in line


def test_a_plan_says_so_of_its_best_layout() -> None:
    asked = request(8, 16, optimizer=MuonSection(name="muon"))
    plan = make_plan(asked, budget=5.0, keep=1)
    assert plan.best_step is not None
    text, lines = "\n".join(plan_lines(plan)), matrix_lines(plan.best_step)
    assert len(lines) > 1
    assert "\n".join(lines) in text


def test_adamw_has_no_such_lines() -> None:
    assert _lines(AdamWSection()) == []
