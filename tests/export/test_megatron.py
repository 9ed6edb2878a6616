"""Megatron-LM's own parser takes every flag and value, its known assertions hold, and what it cannot say is said."""

import re
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fourfold.config.model_config import YarnScaling
from fourfold.config.optimizers import AdamWSection
from fourfold.export.deepspeed import deepspeed
from fourfold.export.job import TrainerJob
from fourfold.export.megatron import megatron
from fourfold.export.torchtitan import torchtitan
from tests.export.cases import DEFAULT, asked, drawn_jobs, job, jobs, traits
from tests.export.launched import Launched, launched
from tests.export.megatron_rules import RULES, groups_fill_the_pipeline, unrolled
from tests.export.recorded import parser
from tests.plan.test_bounds import EXPERTS, request
from tests.plan.test_pricer import LAYOUT

ALLOWED = {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"}
"""Megatron-LM's --recompute-modules."""
JOBS = jobs()


def started(exported: TrainerJob, folder: Path) -> tuple[Namespace, Launched]:
    """The arguments that `pretrain_gpt.py` parses, and how it was launched."""
    run = launched(megatron(exported).text, folder)
    return parser("megatron").parse_args(run.after("pretrain_gpt.py")), run


def check(exported: TrainerJob, folder: Path) -> None:
    args, run = started(exported, folder)
    refused = any("it will refuse" in text for text in megatron(exported).left_out)
    for rule in RULES:
        assert (refused and rule is groups_fill_the_pipeline) or rule(
            args, exported.request.devices, run.environment
        ), f"{rule.__name__}: {exported.title()}"
    layout = exported.layout
    assert args.tensor_model_parallel_size == layout.tp
    assert args.global_batch_size == exported.request.global_sequences
    assert _launched_devices(run.arguments) == exported.request.devices


def _launched_devices(arguments: list[str]) -> int:
    number = {
        name: arguments[arguments.index(name) + 1] for name in ("--nnodes", "--nproc-per-node") if name in arguments
    }
    return int(number.get("--nnodes", 1)) * int(number["--nproc-per-node"])


@pytest.mark.grid(1, of=traits)
@pytest.mark.parametrize("name", JOBS)
def test_its_parser_takes_every_flag(name: str, tmp_path: Path) -> None:
    check(JOBS[name], tmp_path)


def test_its_parser_takes_layouts_that_the_planner_draws(tmp_path: Path) -> None:
    for number, drawn in enumerate(drawn_jobs(8, seed=3)):
        check(drawn, tmp_path / str(number))


@pytest.mark.parametrize(
    "wrong", [["--no-such-flag"], ["--recompute-granularity", "some"], ["--lr", "fast"], ["--bf16", "true"]]
)
def test_the_recorded_parser_refuses_what_megatron_refuses(wrong: list[str]) -> None:
    with pytest.raises(AssertionError):
        parser("megatron").parse_args(wrong)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"global_batch_size": 47}, "batch_divides"),
        ({"tensor_model_parallel_size": 3}, "heads_divide"),
        ({"pipeline_model_parallel_layout": "Et*2|t*3L"}, "stages_hold_the_model"),
        ({"num_virtual_stages_per_pipeline_rank": 3, "global_batch_size": 12}, "groups_fill_the_pipeline"),
        ({"recompute_method": "uniform"}, "recomputation_is_complete"),
        ({"ckpt_format": "fsdp_dtensor"}, "fsdp_has_its_checkpoints"),
        ({"moe_router_num_groups": 3}, "router_is_consistent"),
    ],
)
def test_a_rule_finds_what_breaks_it(change: dict, rule: str, tmp_path: Path) -> None:
    args, run = started(job("experts", {"pp": 2, "tp": 2, "ep": 2}), tmp_path)
    kept = {each.__name__ for each in RULES if each(args, 16, run.environment)}
    assert rule in kept
    broken = Namespace(**{**vars(args), **change})
    assert not next(each for each in RULES if each.__name__ == rule)(broken, 16, run.environment)


@pytest.mark.parametrize("name", ["pp uneven", "interleaved uneven", "pp 3"])
@pytest.mark.parametrize("model", ["dense", "latent"])
def test_its_stages_are_those_that_were_priced(model: str, name: str, tmp_path: Path) -> None:
    exported = JOBS[f"{model}: {name}"]
    args, _ = started(exported, tmp_path)
    if hasattr(args, "pipeline_model_parallel_layout"):
        assert tuple(unrolled(args.pipeline_model_parallel_layout)) == exported.stages
    else:
        assert exported.has_even_stages


def test_settings_of_the_run_are_stated(tmp_path: Path) -> None:
    args, _ = started(JOBS["dense, wsd"], tmp_path)
    section = JOBS["dense, wsd"].optimizer
    assert isinstance(section, AdamWSection)
    assert (args.lr, args.lr_warmup_iters, args.clip_grad) == (section.lr, 100, 0.5)
    assert (args.lr_decay_style, args.lr_wsd_decay_style) == ("WSD", "linear")
    assert (args.train_iters, args.lr_wsd_decay_iters) == (5000, 1000)
    assert (args.adam_beta1, args.adam_beta2) == section.betas
    assert started(JOBS["dense, sgd"], tmp_path / "sgd")[0].optimizer == "sgd"
    assert any("nesterov" in text for text in megatron(JOBS["dense, sgd"]).left_out)


@pytest.mark.parametrize(
    ("options", "stated"),
    [
        ("fp8", {"fp8_format": "hybrid", "fp8_recipe": "tensorwise"}),
        ("fp8 in blocks", {"fp8_format": "e4m3", "fp8_recipe": "blockwise"}),
        ("mxfp8", {"fp8_format": "e4m3", "fp8_recipe": "mxfp8"}),
        ("nvfp4", {"fp4_format": "e2m1", "fp4_recipe": "nvfp4"}),
        ("bf16 gradients", {"bf16": True, "grad_reduce_in_bf16": True}),
        ("documents", {"dataloader_inter_document_masking": True}),
        ("deepseek", {"use_precision_aware_optimizer": True, "exp_avg_dtype": "bf16"}),
    ],
)
def test_precision_and_masks_are_stated(options: str, stated: dict, tmp_path: Path) -> None:
    args, _ = started(JOBS[f"dense, {options}"], tmp_path)
    assert stated.items() <= vars(args).items()
    assert not hasattr(started(JOBS["dense, fp32"], tmp_path / "fp32")[0], "bf16")


def test_what_a_price_has_beside_computation_is_stated(tmp_path: Path) -> None:
    names = ("dense, overlapped: tp", "dense: tp", "ep, hybridep")
    overlapped, plain, experts = (started(JOBS[name], tmp_path / str(n))[0] for n, name in enumerate(names))
    assert overlapped.tp_comm_overlap
    assert overlapped.sequence_parallel
    assert not hasattr(plain, "tp_comm_overlap")
    assert (experts.moe_token_dispatcher_type, experts.moe_flex_dispatcher_backend) == ("flex", "hybridep")
    for exporter in (megatron, torchtitan, deepspeed):
        assert any(text.startswith("launches = graph") for text in exporter(JOBS["dense, graph"]).left_out)
    left_out = {
        exporter: " ".join(exporter(JOBS["ep, hybridep"]).left_out) for exporter in (megatron, torchtitan, deepspeed)
    }
    assert ["dispatcher = hybridep" in text for text in left_out.values()] == [False, False, True]
    assert "tp_collectives = overlapped" in " ".join(deepspeed(JOBS["dense, overlapped: tp"]).left_out)


def test_every_part_of_deepseek_v3_is_stated(tmp_path: Path) -> None:
    args, _ = started(JOBS["deepseek-v3, 128 devices"], tmp_path)
    assert (args.q_lora_rank, args.kv_lora_rank, args.qk_pos_emb_head_dim, args.v_head_dim) == (1536, 512, 64, 128)
    assert (args.mtp_num_layers, args.num_experts, args.moe_router_topk) == (1, 256, 8)
    assert (args.moe_router_num_groups, args.moe_router_group_topk, args.moe_router_score_function) == (8, 4, "sigmoid")
    assert args.moe_layer_freq == "([0]*3+[1]*58)"
    assert args.moe_shared_expert_intermediate_size == 2048


def test_a_vocabulary_that_tp_does_not_divide_is_padded(tmp_path: Path) -> None:
    odd = TrainerJob(asked("gpt3-175b", 128), replace(DEFAULT, tp=16, dp_shard=8))
    assert odd.model.vocab_size % 16
    args, _ = started(odd, tmp_path)
    assert args.padded_vocab_size == -(-odd.model.vocab_size // 16) * 16
    assert args.position_embedding_type == "learned_absolute"


@pytest.mark.parametrize("more", [{}, EXPERTS], ids=["dense", "experts"])
def test_megatron_recomputes_modules_that_it_knows(more: dict) -> None:
    text, missing = megatron(TrainerJob(request(16, **more), replace(LAYOUT, recompute="selective")))
    modules = re.search(r"--recompute-modules ([\w ]+)", text)
    assert modules is not None
    assert set(modules[1].split()) <= ALLOWED
    assert any("activation function" in each for each in missing) == (not more)


@pytest.mark.parametrize("original", [4096, 8192])
def test_yarn_of_mla_is_taken_with_megatrons_own_range(original: int) -> None:
    yarn = YarnScaling(factor=4.0, original_max_position=original, mscale=1.0, mscale_all_dim=1.0)
    request_of_mla = asked("deepseek-v3", 128)
    model = replace(request_of_mla.model, yarn_scaling=yarn)
    _, missing = megatron(TrainerJob(replace(request_of_mla, model=model), replace(DEFAULT, dp_shard=128)))
    assert any("it will take (4096, 32.0, 1.0)" in each for each in missing) == (original != 4096)


@pytest.mark.parametrize("exporter", [megatron, torchtitan])
def test_a_factor_of_yarn_that_no_key_states_is_named(exporter: Any) -> None:
    yarn = YarnScaling(factor=4.0, original_max_position=4096, attention_factor=1.5)
    asked_for = request(16)
    exported = TrainerJob(replace(asked_for, model=replace(asked_for.model, yarn_scaling=yarn)), LAYOUT)
    assert any("yarn_scaling.attention_factor" in each for each in exporter(exported).left_out)


def test_megatrons_fsdp_has_the_checkpoints_that_it_asks_for() -> None:
    text, missing = megatron(TrainerJob(request(16), replace(LAYOUT, pp=1, dp_shard=8, zero=3)))
    assert "--use-megatron-fsdp" in text
    assert "--ckpt-format fsdp_dtensor" in text
    assert any("CUDA_DEVICE_MAX_CONNECTIONS" in each for each in missing)


def test_megatron_runs_the_schedule_that_its_stages_make() -> None:
    for schedule, stages, usual in (("zb_h1", 1, "run 1F1B"), ("zb_v", 2, "run interleaved 1F1B")):
        _, missing = megatron(TrainerJob(request(16), replace(LAYOUT, schedule=schedule, virtual_stages=stages)))
        assert any(usual in each for each in missing)
