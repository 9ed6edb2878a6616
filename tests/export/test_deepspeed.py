"""Megatron-DeepSpeed's parser takes every flag, DeepSpeed reads the file, and what neither can say is said."""

import json
from argparse import Namespace
from pathlib import Path

import pytest

from fourfold.export.deepspeed import ITS_OWN, KEPT, RENAMED, deepspeed
from fourfold.export.job import TrainerJob
from tests.export.cases import jobs, traits
from tests.export.launched import Launched, launched
from tests.export.recorded import lines, parser

JOBS = jobs()
LAUNCHER = ("--deepspeed", "--deepspeed_config")
"""Flags that `deepspeed.add_config_arguments` adds."""


def started(exported: TrainerJob, folder: Path) -> tuple[Namespace, dict, Launched]:
    """The arguments of `pretrain_gpt.py`, DeepSpeed's file, and how it was launched."""
    run = launched(deepspeed(exported).text, folder)
    arguments = run.after("pretrain_gpt.py")
    assert arguments.count("--deepspeed") == 1
    at = arguments.index("--deepspeed_config")
    file = json.loads((folder / arguments[at + 1]).read_text())
    own = [each for each in (*arguments[:at], *arguments[at + 2 :]) if each not in LAUNCHER]
    flags = [each for each in own if each.startswith("--")]
    assert len(flags) == len(set(flags)), "a flag twice"
    return parser("megatron-deepspeed").parse_args(own), file, run


@pytest.mark.grid(1, of=traits)
@pytest.mark.parametrize("name", JOBS)
def test_its_parser_takes_every_flag(name: str, tmp_path: Path) -> None:
    exported = JOBS[name]
    args, file, _ = started(exported, tmp_path)
    layout, dp = exported.layout, exported.layout.dp
    assert file["train_batch_size"] == args.global_batch_size == exported.request.global_sequences
    assert file["train_batch_size"] == file["gradient_accumulation_steps"] * args.micro_batch_size * dp
    assert file["zero_optimization"]["stage"] == args.zero_stage <= (1 if layout.pp > 1 else 3)
    assert hasattr(args, "no_pipeline_parallel") == (layout.pp == 1)
    assert file["bf16"]["enabled"] == hasattr(args, "bf16")


@pytest.mark.parametrize("name", ["dense: zero 3", "dense: hsdp", "dense: pp", "dense: cp ulysses", "dense, fp32"])
def test_deepspeed_reads_the_file(name: str, tmp_path: Path) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    _, file, _ = started(JOBS[name], tmp_path)
    dp = JOBS[name].layout.dp
    one_rank = file | {"train_batch_size": file["train_batch_size"] // dp}
    read = config.DeepSpeedConfig(one_rank)
    assert read.zero_optimization_stage == file["zero_optimization"]["stage"]
    assert read.gradient_accumulation_steps == file["gradient_accumulation_steps"]
    assert read.bfloat16_config.enabled == file["bf16"]["enabled"]
    with pytest.raises(ValueError, match="stag"):
        config.DeepSpeedConfig(one_rank | {"zero_optimization": {"stag": 1}})


def test_every_flag_of_the_tables_is_one() -> None:
    megatron, own = ({line.split()[0] for line in lines(name)} for name in ("megatron", "megatron-deepspeed"))
    assert {f"--{name}" for name in (*KEPT, *RENAMED.values())} - {f"--{name}" for name in RENAMED} <= own
    assert {f"--{name}" for name in (*KEPT, *RENAMED, *ITS_OWN)} <= megatron


def test_it_is_started_on_every_device(tmp_path: Path) -> None:
    _, _, run = started(JOBS["llama3-405b, 128 devices"], tmp_path)
    assert run.arguments[:6] == ["--hostfile", "hosts", "--num_nodes", "16", "--num_gpus", "8"]
    assert run.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert (tmp_path / ".deepspeed_env").read_text() == "CUDA_DEVICE_MAX_CONNECTIONS=1\n"
    _, _, alone = started(JOBS["dense: zero 1"], tmp_path / "alone")
    assert alone.arguments[:2] == ["--num_gpus", "4"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dense: pp, zero 3", "ZeRO-1 is written instead"),
        ("dense: interleaved", "1F1B with one stage a rank"),
        ("dense: cp ring", "Ulysses alone"),
        ("dense: hsdp, zero 1", "HSDP"),
        ("dense: hsdp", "HSDP"),
        ("dense: selective", "recompute selective"),
        ("dense: data outermost", "outermost"),
        ("latent: zero 1", "--multi-latent-attention"),
        ("latent: zero 1", "--mtp-num-layers 1"),
        ("dense, fp8", "--fp8-format hybrid"),
        ("dense, wsd", "--lr-decay-style WSD"),
        ("llama3.2-1b, 16 devices", "--use-rope-scaling"),
        ("experts after dense: zero 1", "first_dense_layers = 2"),
        ("experts: ep, pp", "experts in a pipeline"),
    ],
)
def test_it_names_what_deepspeed_cannot_do(name: str, words: str) -> None:
    assert any(words in text for text in deepspeed(JOBS[name]).left_out)


def test_experts_are_stated(tmp_path: Path) -> None:
    args, _, _ = started(JOBS["experts: ep"], tmp_path)
    assert (args.num_experts, args.topk, args.moe_expert_parallel_size, args.ffn_hidden_size) == ([8], 2, 4, 1024)
    assert hasattr(args, "disable_moe_token_dropping")


def test_the_zero_bubble_schedule_is_its_own(tmp_path: Path) -> None:
    args, _, _ = started(JOBS["dense: zero bubble"], tmp_path)
    assert hasattr(args, "enable_zbh1_pipeline")
    assert not any("schedule" in text for text in deepspeed(JOBS["dense: zero bubble"]).left_out)
