"""Which software ran a row, and of which year."""

import pytest

from software import Trainer, trainer_of, usual_trainer


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ('NVIDIA-NeMo/Megatron-Bridge docs "25.11 NeMo Container"', "nemo-2025"),
        ("Megatron-LM paper of 2019 and 2020", "megatron-2025"),
        ("torchtitan report, 2024", "torchtitan-2024"),
        ("a blog", "unknown"),
        ("recipes/07c-deepseekv3-671b/README (raw Megatron-LM, 2026)", "megatron-2026"),
        ("DeepSeek-V3 technical report, 2024", "deepseek-2024"),
        ("Nemotron-4 trained with Megatron-LM, 2025", "megatron-2025"),
        ("NeMo 26.04 container, 2026", "nemo-2026"),
        ("BioNeMo recipes: PyTorch FSDP2, 2026", "fsdp-2026"),
        ("Alpaca's full fine-tuning with DeepSpeed, 2023", "deepspeed-2023"),
        ("an llm-config of 2025, FSDP", "fsdp-2025"),
        ("karpathy/llm.c, 2024", "llm.c-2024"),
        ("a trainer in JAX (Flax), 2026", "maxtext-2026"),
        ("SimuMax, measured on B200 (Megatron-LM), 2025", "megatron-simumax-2025"),
    ],
)
def test_trainers_come_from_the_source_alone(source: str, name: str) -> None:
    assert trainer_of(source).name == name


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("benchmarks/llama3_h100_202412_torchtitan.md", "torchtitan-2024"),
        ("benchmarks/llama3_8b_h200_2025-06_torchtitan.md", "torchtitan-2025"),
        ("torchtitan run 20241211", "torchtitan-2025"),
        ("Narayanan et al. 2021, arXiv 2104.04473", "megatron-2021"),
    ],
)
def test_the_year_is_the_one_that_the_source_states(source: str, name: str) -> None:
    assert trainer_of(source).name == name


@pytest.mark.parametrize(
    ("framework", "source", "name"),
    [
        ("Megatron-LM (2023), a fork", "Sky, arXiv 2310.19341, Table 10", "megatron-2023"),
        ("", "Sky by Megatron-LM, arXiv 2310.19341", "megatron-2023"),
        ("VeOmni, FSDP2", "VeOmni, arXiv 2508.02317", "veomni-2025"),
        ("an own trainer, FSDP2", "a report, arxiv.org/abs/2508.02317", "fsdp-2025"),
        ("JAX", "Levanter README, 2025", "levanter-2025"),
        ("a trainer (PyTorch)", "", "pytorch-2024"),
        ("NeMo (2023)", 'a page of "25.04"', "nemo-2023"),
        ("DeepSpeed ZeRO-3", "torchtitan beside others, 2024", "deepspeed-2024"),
        ("torchtitan (2025)", "a paper, arXiv 2410.06511", "torchtitan-2025"),
        ("Megatron-LM", "Zero bubble, arXiv 2012.12345", "megatron-2020"),
        ("", "Zero bubble, arXiv 2401.10241", "megatron-zero-bubble-2023"),
        ("Megatron Bridge 2026 (Megatron-Core)", "cards", "nemo-2026"),
        ("own trainer", "a blog", "unknown"),
        ("", "Nemotron-4 340B, arXiv 2406.11704", "megatron-2024"),
        ("", "Megatron-Turing NLG, arXiv 2201.11990", "megatron-deepspeed-2021"),
        ("NeMo (2025)", "Nemotron-H pretraining", "nemo-2025"),
        ("", "SmolLM3, a blog of 2025", "nanotron-2025"),
        ("", "OPT, arXiv 2205.01068", "unknown-2022"),
        ("Hugging Face Trainer, 2023", "microsoft/DeepSpeedExamples", "pytorch-2023"),
        ("Hugging Face Trainer with DeepSpeed ZeRO-3, 2023", "a blog", "deepspeed-2023"),
        ("Hugging Face Trainer (DDP, no DeepSpeed), 2023", "a blog", "pytorch-2023"),
        ("Megatron-Bridge (NeMo container 25.11.01)", "", "nemo-2025"),
        ("Megatron-Bridge (July 2026, container nemo:26.08)", "", "nemo-2026.06"),
    ],
)
def test_what_a_row_calls_its_framework_comes_first_and_papers_date_trainers(
    framework: str, source: str, name: str
) -> None:
    assert trainer_of(source, "", framework).name == name


def test_what_notes_deny_is_no_trainer() -> None:
    assert trainer_of("a blog, 2023", "plain DDP, no FSDP or DeepSpeed").name == "unknown-2023"
    assert trainer_of("a blog, 2023", "DeepSpeed ZeRO-2").name == "deepspeed-2023"


def test_releases_that_changed_much_are_profiles_of_their_own() -> None:
    page = 'NVIDIA-NeMo/Megatron-Bridge docs/performance-summary.md "{}" / Pre-Training Performance'
    names = [
        trainer_of(page.format(f"{release} NeMo Container")).name for release in ("25.11", "26.04.01", "26.06", "26.08")
    ]
    assert names == ["nemo-2025", "nemo-2026", "nemo-2026.06", "nemo-2026.06"]
    assert trainer_of("NVIDIA/NeMo-Framework-Launcher README.md (NeMo Framework 23.07 and before)").name == "nemo-2023"
    assert trainer_of("exercises; Megatron-Bridge, NeMo 25.11, 2025-2026").name == "nemo-2025"


@pytest.mark.parametrize(
    ("device", "devices", "degrees", "name"),
    [
        ("h100-sxm", 8, (1, 2, False), "megatron-2024"),
        ("h100-sxm", 8, (8, 1, False), "unknown"),
        ("h100-sxm", 64, (8, 1, False), "megatron-2024"),
        ("h100-sxm", 64, (8, 2, True), "unknown"),
        ("mi300x", 8, (1, 2, False), "megatron-rocm-2024"),
        ("tpu-v5p", 8, (1, 1, True), "maxtext-2024"),
    ],
)
def test_a_trainer_without_a_name_is_known_by_what_it_does(
    device: str, devices: int, degrees: tuple[int, int, bool], name: str
) -> None:
    tp, pp, fsdp = degrees
    assert usual_trainer(Trainer("unknown", 0), device, devices, tp, pp, fsdp).name == name
