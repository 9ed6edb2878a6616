"""A run of stages is priced as the sum of its stages, each as if it were a run of its own."""

from typing import Any

import pytest

import fourfold as ff
from fourfold.config import UserError, parse_run
from fourfold.config.stages import course_of

MODEL = {"num_layers": 4, "hidden_size": 256, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 704, "vocab_size": 4096}
CLUSTER = "dgx-h100:8"


def run(**sections: Any) -> dict[str, Any]:
    batch = {"global_sequences": 64, "sequence_length": 512, "steps": 1000, **sections.pop("batch", {})}
    return {"model": MODEL, "batch": batch, "precision": {"compute": "bf16"}, "layout": {"zero": 1}, **sections}


STAGES = [
    {"name": "short", "until_steps": 600},
    {"until_steps": 900, "batch": {"sequence_length": 2048, "global_sequences": 16}, "layout": {"cp": 2}},
    {"layout": {"tp": 2, "cp": 1, "pp": 2}},
]


def test_the_length_of_a_run_is_the_sum_of_its_stages() -> None:
    found = ff.simulate(run(stage=STAGES), cluster=CLUSTER)
    assert found.campaign is not None
    alone = [ff.simulate(run(stage=STAGES), f"stage={n}", cluster=CLUSTER).step_seconds for n in (1, 2, 3)]
    assert [stage.step_seconds for stage in found.campaign.stages] == alone
    assert [stage.steps for stage in found.campaign.stages] == [600, 300, 100]
    assert found.campaign.training_seconds == pytest.approx(
        sum(s * n for s, n in zip(alone, (600, 300, 100), strict=True))
    )
    longest = max(found.campaign.stages, key=lambda stage: stage.seconds)
    assert found.step_seconds == longest.step_seconds
    assert (found.campaign.steps, found.campaign.tokens) == (1000, course_of(parse_run(run(stage=STAGES))).tokens)
    told = found.to_json(advice=False)["run"]["stages"]
    assert [each["name"] for each in told] == ["short", "", ""]
    assert any("stage 2" in line and "2,048 tokens" in line for line in found.lines())


def test_every_batch_of_a_ramp_is_priced_by_itself() -> None:
    ramp = [{"global_sequences": 16, "by": 16, "until_steps": 300}]
    found = ff.simulate(run(batch={"ramp": ramp}), cluster=CLUSTER)
    sizes = {16: 100, 32: 100, 48: 100, 64: 700}
    seconds = sum(
        count * ff.simulate(run(batch={"global_sequences": size}), cluster=CLUSTER).step_seconds
        for size, count in sizes.items()
    )
    assert found.campaign is not None
    assert found.campaign.training_seconds == pytest.approx(seconds)
    assert found.campaign.tokens == 512 * sum(size * count for size, count in sizes.items())


def test_batches_between_those_that_are_simulated_lie_on_lines() -> None:
    ramp = [{"global_sequences": 8, "by": 8, "until_steps": 380}]
    rising = run(batch={"ramp": ramp, "global_sequences": 160})
    found = ff.simulate(rising, cluster=CLUSTER)
    exact = sum(
        (each.end - each.step)
        * ff.simulate(run(batch={"global_sequences": each.sequences}), cluster=CLUSTER).step_seconds
        for each in course_of(parse_run(rising)).batches
    )
    assert found.campaign is not None
    assert found.campaign.training_seconds == pytest.approx(exact, rel=0.01)


def test_a_stage_that_does_not_fit_is_told() -> None:
    stages = [
        {"until_steps": 900},
        {"batch": {"sequence_length": 131072, "global_sequences": 8}, "model": {"max_position": 131072}},
    ]
    found = ff.simulate(run(stage=stages, model={**MODEL, "num_layers": 40, "hidden_size": 2048}), cluster=CLUSTER)
    assert found.campaign is not None
    assert [stage.fits for stage in found.campaign.stages] == [True, False]
    assert not found.fits
    assert any("DOES NOT FIT" in line for line in found.lines())


def test_what_looks_at_one_step_asks_for_a_stage() -> None:
    with pytest.raises(UserError, match="this run has 3 stages"):
        ff.verify(run(stage=STAGES))
    assert ff.verify(run(stage=STAGES), "stage=3").sound
    with pytest.raises(UserError, match="allowed: 1 to 3"):
        ff.verify(run(stage=STAGES), "stage=4")
    with pytest.raises(UserError, match="this run has no"):
        ff.verify(run(), "stage=1")


def test_a_stage_that_cannot_be_is_named() -> None:
    stages = [{"until_steps": 600}, {"layout": {"tp": 3}}]
    with pytest.raises(UserError, match="stage 2: layout"):
        ff.simulate(run(stage=stages), cluster=CLUSTER)
    with pytest.raises(UserError, match="12 sequences"):
        ff.simulate(run(batch={"ramp": [{"global_sequences": 12, "until_steps": 5}]}), cluster=CLUSTER)


def test_a_plan_prices_the_run_with_the_layout_that_it_found() -> None:
    stages = [
        {**STAGES[0], "until_steps": 900},
        {"batch": {"sequence_length": 1024}, "layout": {"cp": 2, "microbatch_sequences": 1, "dp_replicate": 1}},
    ]
    found = ff.plan(run(stage=stages), cluster=CLUSTER, budget=0.2)
    assert found.notes[0].startswith("stage 1 (short) of 2 is planned")
    again = ff.simulate(found.run(), cluster=CLUSTER)
    assert found.training is not None
    assert again.campaign is not None
    assert found.training.training_seconds == pytest.approx(again.campaign.training_seconds)
    assert [each["layout"] for each in found.run().model_dump()["stage"]][1] == stages[1]["layout"]
    with pytest.raises(UserError, match="the run has stages"):
        ff.plan(run(stage=stages), cluster=CLUSTER, tokens="1G")


def test_a_plan_prices_all_stages_by_the_software_as_it_is_stated() -> None:
    """The kernels too: norms that are not fused take longer in every stage."""
    stages, seconds = [STAGES[0], {"batch": {"sequence_length": 1024}}], []
    for kernels in ((), "norms=unfused"):
        found = ff.plan(run(stage=stages), cluster=CLUSTER, budget=0.2, software="megatron", kernels=kernels)
        assert found.training is not None
        first, second = found.training.stages
        seconds.append((first.step_seconds, second.step_seconds))
    assert all(slower > usual for usual, slower in zip(*seconds, strict=True))


def test_a_layout_that_does_not_do_for_the_full_run_is_told() -> None:
    stages = [
        STAGES[0],
        {"batch": {"global_sequences": 4}, "layout": {"cp": 2, "dp_replicate": 1, "microbatch_sequences": 2}},
    ]
    found = ff.plan(run(stage=stages), cluster=CLUSTER, budget=0.2)
    assert found.best is not None
    assert found.training is None
    assert "row 1 does not do for the full run: stage 2" in found.notes[-1]
