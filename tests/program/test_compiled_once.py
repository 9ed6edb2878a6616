"""A spec is a plain record; what is worked out of it lies in caches that somebody holds, and is worked out once."""

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest

from fourfold.program import StepSpec, compiled, footprints, lower_pipeline, verify
from fourfold.program.compiled import CompiledStages
from fourfold.program.lower import each_program
from fourfold.simulate.prediction import predict_step
from tests.support.programs import QWEN3_MOE, by_rank, make_spec
from tests.support.simulated import real_prices

LAYOUT: dict[str, Any] = {"pp": 2, "dp_shard": 2, "zero": 2, "ep": 2, "accumulation": 2, "recompute": "full:1"}


def spec_of(**layout: Any) -> StepSpec:
    return make_spec({**QWEN3_MOE, "num_layers": 4}, transport="native", **{**LAYOUT, **layout})


def test_a_spec_keeps_nothing_of_what_is_worked_out_of_it() -> None:
    spec = spec_of(accumulation=40)
    stated = {field.name for field in fields(StepSpec)}
    assert verify(by_rank(lower_pipeline(spec), spec), spec) == []
    assert predict_step(spec, real_prices(spec)).seconds > 0
    assert vars(spec).keys() == stated
    assert vars(spec.layout).keys() == {field.name for field in fields(spec.layout)}


def test_a_prediction_works_out_each_kind_of_segment_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[tuple[str, bool, str]] = Counter()
    original = footprints.segment_footprint

    def counted(segment: Any, model: Any, shape: Any, policy: str) -> Any:
        asked[segment.kind, segment.moe, policy] += 1
        return original(segment, model, shape, policy)

    spec = spec_of(accumulation=40)
    monkeypatch.setattr(footprints, "segment_footprint", counted)
    predict_step(spec, real_prices(spec))
    assert asked == {
        ("embedding", False, "none"): 1,
        ("block", True, "full"): 1,
        ("block", True, "none"): 1,
        ("head", False, "none"): 1,
    }


def test_steps_that_differ_in_data_parallelism_share_what_ranks_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    first = spec_of()
    second = replace(first, layout=replace(first.layout, dp_shard=4, dp_replicate=2, zero=3, outermost="dp"))
    shared = CompiledStages(first)
    compiled_alone = [lower_pipeline(each) for each in (first, second)]
    assert list(each_program(shared, shared.views(first))) == compiled_alone[0]
    monkeypatch.setattr(compiled, "expand_segments", None)  # nothing may be compiled again
    assert list(each_program(shared, shared.views(second))) == compiled_alone[1]
