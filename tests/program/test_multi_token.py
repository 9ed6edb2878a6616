"""Programs with multi-token prediction: proved under every layout, what they share is whole, the modules stay with the head."""

from dataclasses import replace
from typing import Any

import pytest

from fourfold.config import UserError
from fourfold.program import Op, rank_view
from fourfold.program.capabilities import buffer_bytes
from fourfold.program.lower import lower_pipeline
from fourfold.program.stage_map import stage_map
from fourfold.program.verify import verify
from tests.support.programs import by_rank, deepseek, evaluation_pipeline, make_spec

MODELS: dict[str, dict[str, Any]] = {
    "deepseek": deepseek(mtp_layers=1),
    "two": {"mtp_layers": 2},
    "two, tied": {"mtp_layers": 2, "tie_embeddings": True},
}
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"pp": 2, "schedule": "zb_h1"},
    {"pp": 4, "schedule": "zb_h2"},
    {"pp": 2, "virtual_stages": 2, "schedule": "zb_v"},
    {"pp": 2, "virtual_stages": 2, "schedule": "interleaved_1f1b"},
    {"dp_shard": 2, "zero": 3},
    {"dp_shard": 2, "dp_replicate": 2, "zero": 2, "pp": 2},
    {"tp": 2, "sequence_parallel": True},
    {"cp": 2, "pp": 2, "zero": 3, "recompute": "full"},
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_programs_are_proved(name: str, layout: dict[str, Any]) -> None:
    spec = make_spec(MODELS[name], accumulation=4, **layout)
    assert verify(by_rank(lower_pipeline(spec), spec), spec) == []
    assert verify(by_rank(evaluation_pipeline(spec), spec), spec) == []


@pytest.mark.parametrize("name", MODELS)
def test_the_modules_are_the_last_stages(name: str) -> None:
    spec = make_spec(MODELS[name], accumulation=4, pp=4)
    kinds = [segment.depth > 0 or segment.kind == "head" for segment in stage_map(spec).stages[3]]
    assert sum(kinds) == 1 + spec.model.mtp_layers
    assert sum(len(stage_map(spec).stages[stage]) for stage in range(4)) == len(spec.segments)


def test_a_stated_division_leaves_the_modules_out() -> None:
    spec = make_spec({"mtp_layers": 2}, accumulation=4, pp=2, segments_per_stage=[3, 1])
    assert spec.layout.segments_per_stage == (3, 3)
    with pytest.raises(UserError, match=r"4 segments"):
        make_spec({"mtp_layers": 2}, accumulation=4, pp=2, segments_per_stage=[3, 3])


def test_without_the_sum_over_both_holders_of_the_embedding_there_is_no_proof() -> None:
    """Untied heads too: the modules on the last stage embed the tokens that they look ahead to."""
    spec = make_spec({"mtp_layers": 1}, accumulation=4, pp=2)
    programs = lower_pipeline(spec)
    for program in programs:
        assert [step.segment for step in program.instructions if step.op is Op.REDUCE_TIED] == ["embed"]
    lacking = [
        replace(p, instructions=tuple(s for s in p.instructions if "T embed" not in (s.short, s.handle)))
        for p in programs
    ]
    assert verify(by_rank(lacking, spec), spec)
    assert rank_view(make_spec({}, accumulation=4, pp=2)).tied_unit is None


def test_every_depths_hidden_states_reach_the_head() -> None:
    spec = make_spec({"mtp_layers": 2}, accumulation=4)
    sizes = [buffer_bytes(rank_view(spec), f"hidden/{segment}/m0") for segment in ("b1", "mtp0", "mtp1", "head")]
    assert sizes == [sizes[0], sizes[0], 2 * sizes[0], 3 * sizes[0]]
