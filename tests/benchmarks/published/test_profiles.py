"""The software profile of a trainer: a dozen families, whose members' makers document flags."""

import pytest

import fit_file
from fourfold.cost.fitted import fitted
from profiles import FAMILIES, PROFILES, Documented, documented, profile_of
from software import trainer_of


@pytest.mark.parametrize(
    ("source", "profile"),
    [
        ("Megatron-LM (2021)", "megatron"),
        ("MegaScale, 2024", "megatron"),
        ("GPT-NeoX, 2022", "megatron-deepspeed"),
        ("bigscience-workshop/bigscience chronicles", "megatron-deepspeed"),
        ("Megatron Bridge 26.06", "nemo"),
        ("prime-rl, 2026", "torchtitan-2026"),
        ("torchtitan, 2025", "torchtitan"),
        ("NeMo AutoModel, 2026", "automodel"),
        ("an own trainer, FSDP2", "pytorch"),
        ("llm-foundry, 2023", "pytorch"),
        ("XTuner, 2024", "deepspeed"),
        ("Levanter, JAX, 2025", "maxtext"),
        ("a blog", "unknown"),
    ],
)
def test_a_source_has_the_profile_of_its_family(source: str, profile: str) -> None:
    assert trainer_of(source, "", source).profile == profile


def test_a_platform_is_a_profile_where_its_kernels_are_others() -> None:
    assert profile_of("megatron", "rocm") == profile_of("megatron-deepspeed", "rocm") == "megatron-rocm"
    assert profile_of("torchtitan", "xpu") == "torchtitan"


def test_a_framework_is_of_one_family_and_every_profile_ships() -> None:
    members = [framework for frameworks in FAMILIES.values() for framework in frameworks]
    assert len(members) == len(set(members))
    assert set(members).isdisjoint(PROFILES)
    assert 12 <= len(PROFILES) <= 15
    assert set(fitted().profiles) == {*PROFILES, "default", "fourfold"}
    assert set(fit_file.read(fit_file.PRIOR)["software"]) <= {*PROFILES, "default", "fourfold"}


def test_what_makers_document() -> None:
    assert documented("megatron-simumax", (2025, 0)).overlap is False
    dispatchers = [documented("nemo", version).kernels.dispatcher for version in ((2025, 0), (2026, 0), (2026, 6))]
    assert dispatchers == ["deepep", "hybridep", "hybridep"]
    assert [documented("nemo", version).kernels.experts for version in ((2026, 0), (2026, 6))] == [None, "fused"]
    assert documented("torchtitan", (2026, 0)) == Documented()
