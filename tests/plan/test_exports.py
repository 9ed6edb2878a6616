"""Flags and files of other trainers are ones that they take; what they cannot say is said."""

import re
from dataclasses import replace
from math import ceil

import pytest

from fourfold.plan.exports import megatron, torchtitan
from tests.plan.test_bounds import EXPERTS, request
from tests.plan.test_pricer import LAYOUT

ALLOWED = {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"}
"""Megatron-LM's --recompute-modules."""


@pytest.mark.parametrize("more", [{}, EXPERTS], ids=["dense", "experts"])
def test_megatron_recomputes_modules_that_it_knows(more: dict) -> None:
    text, missing = megatron(request(16, **more), replace(LAYOUT, recompute="selective"))
    modules = re.search(r"--recompute-modules ([\w ]+)", text)
    assert modules is not None
    assert set(modules[1].split()) <= ALLOWED
    assert any("activation function" in each for each in missing) == (not more)


def test_megatrons_fsdp_has_the_checkpoints_that_it_asks_for() -> None:
    text, missing = megatron(request(16), replace(LAYOUT, pp=1, dp_shard=8, zero=3))
    assert "--use-megatron-fsdp" in text
    assert "--ckpt-format fsdp_dtensor" in text
    assert any("CUDA_DEVICE_MAX_CONNECTIONS" in each for each in missing)


def test_megatron_runs_the_schedule_that_its_stages_make() -> None:
    for stages, usual in ((1, "run 1F1B"), (2, "run interleaved 1F1B")):
        _, missing = megatron(request(16), replace(LAYOUT, schedule="zb_v", virtual_stages=stages))
        assert any(usual in each for each in missing)


@pytest.mark.parametrize("virtual", [1, 2, 3, 4])
@pytest.mark.parametrize("pp", [2, 4])
def test_torchtitans_layers_a_stage_make_as_many_stages_as_are_asked_for(pp: int, virtual: int) -> None:
    asked = request(16)
    layers = asked.model.num_layers + 2  # embedding and head count as one each
    text, missing = torchtitan(asked, replace(LAYOUT, pp=pp, virtual_stages=virtual))
    found = re.search(r"pipeline_parallel_layers_per_stage = (\d+)", text)
    if found is not None:
        assert ceil(layers / int(found[1])) == pp * virtual
    else:
        assert virtual <= 2 or any("stages there" in each for each in missing)
