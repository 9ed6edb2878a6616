"""Megatron-Bridge's dataclasses take every keyword of the recipe, which says what Megatron-LM's command says."""

import ast
from pathlib import Path

import pytest

from fourfold.export.bridge import bridge
from fourfold.export.job import TrainerJob
from fourfold.export.megatron import megatron
from tests.export.cases import job, jobs, traits
from tests.export.launched import launched
from tests.export.recorded import check_python

JOBS = jobs()


def recipe(exported: TrainerJob, folder: Path) -> str:
    return (launched(bridge(exported).text, folder).folder / "pretrain.py").read_text()


def keywords(text: str) -> dict[str, str]:
    """Every keyword of the recipe with its value, as text."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {key.arg: ast.unparse(key.value) for call in calls for key in call.keywords if key.arg}


@pytest.mark.grid(1, of=traits)
@pytest.mark.parametrize("name", JOBS)
def test_its_dataclasses_take_every_keyword(name: str, tmp_path: Path) -> None:
    assert check_python("bridge", "megatron", recipe(JOBS[name], tmp_path)) == 15


@pytest.mark.parametrize(
    "wrong",
    [
        "GPTModelProvider(no_such_key=1)",
        "GPTModelProvider(num_layers='six')",
        "GPTModelProvider(recompute_granularity='some')",
        "GPTModelProvider(q_lora_rank=8)",
    ],
)
def test_what_they_do_not_take_is_found(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check_python("bridge", "megatron", f"from megatron.bridge.models.gpt_provider import GPTModelProvider\n{wrong}")


def test_it_leaves_out_what_megatron_leaves_out() -> None:
    for name, each in JOBS.items():
        assert set(megatron(each).left_out) <= set(bridge(each).left_out), name


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        ("dense: tp", {"tensor_model_parallel_size": "4", "sequence_parallel": "True", "gated_linear_unit": "True"}),
        ("dense: hsdp", {"data_parallel_sharding_strategy": "'optim_grads_params'", "ckpt_format": "'fsdp_dtensor'"}),
        ("dense: interleaved", {"virtual_pipeline_model_parallel_size": "3"}),
        ("dense, fp8 in blocks", {"fp8": "'e4m3'", "fp8_recipe": "'blockwise'", "bf16": "True"}),
        ("dense, wsd", {"lr": "0.001", "train_iters": "5000", "lr_wsd_decay_iters": "1000", "adam_beta2": "0.99"}),
        ("experts: ep, etp", {"num_moe_experts": "8", "expert_tensor_parallel_size": "2", "moe_router_topk": "2"}),
        ("latent: zero 1", {"q_lora_rank": "256", "multi_latent_attention": "True", "mtp_num_layers": "1"}),
        ("latent: zero 2", {"apply_rope_fusion": "False", "kv_lora_rank": "128"}),
        ("dense, constant", {"weight_decay": "0.1", "start_weight_decay": "0.1", "end_weight_decay": "0.1"}),
        ("dense, fp32", {"fp32": "True", "pipeline_dtype": "torch.float32"}),
        ("llama3.2-1b, 16 devices", {"rope_scaling": "True", "rope_scaling_factor": "32.0"}),
    ],
)
def test_settings_are_stated(name: str, stated: dict[str, str], tmp_path: Path) -> None:
    assert stated.items() <= keywords(recipe(JOBS[name], tmp_path)).items()


def test_the_provider_is_the_one_of_its_attention(tmp_path: Path) -> None:
    assert "model=MLAModelProvider(" in recipe(job("latent", {}), tmp_path / "latent")
    assert "model=GPTModelProvider(" in recipe(job("dense", {}), tmp_path / "dense")
