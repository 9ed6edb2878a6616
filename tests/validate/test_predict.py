"""Predictions of cases: those of `simulate`; what is stated of the software; how memory is counted; what cannot be predicted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fourfold.hardware import load_cluster
from fourfold.launch.resolve import resolve_run
from fourfold.program.view import rank_views
from fourfold.simulate.prediction import predict_step
from fourfold.simulate.run_prices import prices_for
from fourfold.validate import Case, MeasuredStep, Software, checked_prediction, predict_case, read_cases
from fourfold.validate.outcome import host_update_seconds
from tests.support.programs import make_spec

CASES = {case.name: case for case in read_cases(Path(__file__).parent / "cases.toml")}


def with_software(case: Case, **stated: Any) -> Case:
    return replace(case, software=case.software.model_copy(update=stated))


def seconds(case: Case) -> float:
    found = predict_case(case).step_seconds
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["fsdp", "own"])
def test_a_prediction_is_that_of_simulate(name: str) -> None:
    case = CASES[name]
    run = resolve_run(case.run, None, None, case.transport)
    software = None if case.software.is_own else case.software.name
    step = predict_step(run.spec, prices_for(run.config, run.spec, case.cluster, software))
    assert seconds(case) == step.seconds


@pytest.mark.parametrize(
    ("stated", "slower"),
    [
        ({"eager": True}, True),
        ({"attention": "math"}, True),
        ({"attention": "unfused"}, True),
        ({"attention": "flash-2"}, True),
        ({"attention": "flash-3"}, False),
        ({"gemm_dtype": "fp8"}, False),
        ({"launches": "graph"}, False),
        ({"offload": "optimizer"}, True),
    ],
)
def test_what_is_stated_of_the_software_changes_the_step(stated: dict[str, Any], slower: bool) -> None:
    case = CASES["fsdp"]
    plain = seconds(with_software(case, attention="flash-3") if stated == {"attention": "flash-2"} else case)
    assert (seconds(with_software(case, **stated)) > plain) == slower
    assert seconds(with_software(case, **stated)) != plain


def test_a_cases_run_may_say_that_its_steps_are_graphs() -> None:
    case = CASES["fsdp"]
    own = case.run.run.model_copy(update={"cuda_graphs": True})
    replayed = replace(case, run=case.run.model_copy(update={"run": own}))
    assert seconds(replayed) == seconds(with_software(case, launches="graph")) < seconds(case)


@pytest.mark.parametrize(
    ("stated", "more"),
    [
        ({"loss": "chunked"}, False),
        ({"optimizer_state_bytes": 2.0}, False),
        ({"master_bytes": 0.0}, False),
        ({"attention": "math"}, True),
    ],
)
def test_what_is_stated_of_the_software_changes_the_memory(stated: dict[str, Any], more: bool) -> None:
    case = CASES["ddp"]
    before, after = predict_case(case).memory_bytes, predict_case(with_software(case, **stated)).memory_bytes
    assert before is not None
    assert after is not None
    assert after != before
    assert (after > before) == more


def test_memory_is_counted_as_the_figure_is() -> None:
    def held(**measured: Any) -> float:
        case = replace(CASES["fsdp"], measured=MeasuredStep(step_seconds=1.0, **measured))
        return predict_case(case).memory_bytes or 0.0

    assert held() == held(memory_counts="allocated") < held(memory_counts="reserved") < held(memory_counts="device")
    stages = replace(CASES["ddp"], run=CASES["ddp"].run.model_copy(update={"layout": CASES["ddp"].run.layout.model_copy(
        update={"pp": 2, "dp_shard": 4, "microbatch_sequences": 1})}))  # fmt: skip
    by_rank = {
        rank: predict_case(replace(stages, measured=MeasuredStep(mfu=0.4, memory_rank=rank))).memory_bytes
        for rank in ("largest", "first", "last")
    }
    assert by_rank["first"] != by_rank["last"]
    assert by_rank["largest"] == max(by_rank["first"] or 0, by_rank["last"] or 0)


def test_states_on_the_host_leave_memory_open() -> None:
    for what in ("optimizer", "activations"):
        found = predict_case(with_software(CASES["fsdp"], offload=what))
        assert (found.memory_bytes, found.fits) == (None, None)


def test_attention_share_takes_attention_away() -> None:
    case = CASES["fsdp"]
    assert seconds(replace(case, attention_share=0.1)) < seconds(case) == seconds(replace(case, attention_share=1.0))


def test_a_case_that_cannot_be_is_refused_with_its_reason() -> None:
    case = CASES["fsdp"]
    odd = case.run.layout.model_copy(update={"dp_shard": 3})
    found = checked_prediction(replace(case, run=case.run.model_copy(update={"layout": odd})))
    assert found.step_seconds is None
    assert "dp_shard" in (found.refused or "")
    small = replace(case, cluster=replace(case.cluster, devices=4))
    assert "needs 8 devices" in (checked_prediction(small).refused or "")


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("fourfold", True),
        ("megatron-2031", True),
        ("megatron-fork-2024", True),
        ("unknown-2024", True),
        ("mega-2024", False),
    ],
)
def test_software_is_known_by_its_framework_or_what_it_forks(name: str, known: bool) -> None:
    assert Software(name=name).is_known == known


def test_an_optimizer_step_on_the_host_takes_as_long_as_its_copies() -> None:
    """16 bytes of each parameter of the fullest stage, over the device's link."""
    device = load_cluster("dgx-h100").device
    for zero, shards in ((0, 1), (1, 4)):
        spec = make_spec(pp=2, dp_shard=4, zero=zero)
        numbers = [sum(p.numel for s in view.segments for p in s.parameters) for view in rank_views(spec)]
        found = host_update_seconds(spec, device) * device.host_link_bytes_per_second / 16
        assert max(numbers) / shards <= found <= max(numbers) / shards * 1.05
