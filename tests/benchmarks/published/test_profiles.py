"""Flags that the makers of trainers document, and the families that their software profiles are of."""

import pytest

import fit_file
from fit_table import constants_of
from fourfold.cost.fitted import fitted
from profiles import Documented, documented
from software import on_platform, trainer_of


@pytest.mark.parametrize(
    ("source", "family"),
    [
        ("Megatron-LM (2021)", "megatron"),
        ("MegaScale, 2024", "megatron"),
        ("GPT-NeoX, 2022", "megatron-deepspeed"),
        ("bigscience-workshop/bigscience chronicles", "megatron-deepspeed"),
        ("Megatron Bridge 26.06", "nemo"),
        ("prime-rl, 2026", "torchtitan"),
        ("an own trainer, FSDP2", "pytorch"),
        ("llm-foundry, 2023", "pytorch"),
        ("XTuner, 2024", "deepspeed"),
        ("Levanter, JAX, 2025", "maxtext"),
        ("a blog", "unknown"),
    ],
)
def test_a_source_is_of_the_family_of_its_trainer(source: str, family: str) -> None:
    assert fitted().family(trainer_of(source, "", source).name) == family


def test_megatron_on_amd_is_one_family_wherever_it_comes_from() -> None:
    for source in ("Megatron-LM, 2025", "NeMo, 2025", "Megatron-DeepSpeed, 2023"):
        assert fitted().family(on_platform(trainer_of(source), "mi300x").name) == "megatron-rocm"
    assert fitted().family("torchtitan-xpu-2026") == "torchtitan"


def test_what_ships_inherits_as_the_prior_does() -> None:
    prior = constants_of(fit_file.read(fit_file.PRIOR))
    for name in fitted().profiles:
        assert fitted().family(name) == prior.family(name), name


def test_what_makers_document() -> None:
    assert documented("megatron-simumax", (2025, 0)).overlap is False
    dispatchers = [documented("nemo", version).dispatcher for version in ((2025, 0), (2026, 0), (2026, 6))]
    assert dispatchers == ["deepep", "hybridep", "hybridep"]
    assert [documented("nemo", version).fused_experts for version in ((2026, 0), (2026, 6))] == [False, True]
    assert documented("torchtitan", (2026, 0)) == Documented()
