"""Runs of the literature load by name, resolve, and have the devices, tokens a step and degrees that were published."""

import tomllib
from pathlib import Path

import pytest

from fourfold.config import UserError, dump_run, load_run, parse_run, run_preset_names
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout

PUBLISHED = {  # devices, tokens a step, (tp, cp, pp, dp)
    "llama3-405b-8k": (8192, 2**24, (8, 1, 16, 64)),
    "llama3-405b-16k": (16384, 2**24, (8, 1, 16, 128)),
    "llama3-405b-128k": (16384, 2**24, (8, 16, 16, 8)),
    "llama3-405b-128k-24k": (24576, 192 * 2**17, (8, 16, 16, 12)),
    "llama3-70b": (64, 2**20, (4, 2, 4, 2)),
    "deepseek-v3-2k": (2048, 15360 * 4096, (1, 1, 16, 128)),
    "llama3.1-8b-128": (128, 2**21, (1, 1, 1, 128)),
    "mixtral-8x22b-256": (256, 2**22, (2, 1, 8, 16)),
    "gpt3-175b": (64, 64 * 2048, (8, 1, 8, 1)),
    "mt-nlg-530b": (2240, 1920 * 2048, (8, 1, 35, 8)),
    "megatron-1t": (3072, 3072 * 2048, (8, 1, 64, 6)),
}


def test_every_run_preset_is_a_published_one() -> None:
    assert set(run_preset_names()) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_run_preset_has_the_published_layout(name: str) -> None:
    config = load_run(Path(f"preset:{name}"))
    model = resolve_model(config.model)
    layout = resolve_layout(config, model)
    devices, tokens, degrees = PUBLISHED[name]
    assert layout.world_size == devices
    assert config.batch.global_sequences * config.batch.sequence_length == tokens
    assert (layout.tp, layout.cp, layout.pp, layout.data_degree) == degrees
    assert (config.batch.steps is None) != (config.batch.tokens is None)
    if config.layout.segments_per_stage is not None:
        assert len(config.layout.segments_per_stage) == layout.pp * layout.virtual_stages
        assert sum(config.layout.segments_per_stage) == model.num_layers + 2
    assert parse_run(tomllib.loads(dump_run(config))) == config


def test_a_run_preset_takes_overrides() -> None:
    config = load_run(Path("preset:llama3-405b-16k"), ["layout.dp_shard=64", "batch.global_sequences=1024"])
    assert resolve_layout(config, resolve_model(config.model)).world_size == 8192


@pytest.mark.parametrize(
    ("name", "near"), [("llama3-405b-16", "preset:llama3-405b-16k?"), ("../presets/tiny", "allowed")]
)
def test_a_run_preset_that_is_none(name: str, near: str) -> None:
    with pytest.raises(UserError) as caught:
        load_run(Path(f"preset:{name}"))
    assert f"preset:{name}: no such run" in str(caught.value)
    assert near in str(caught.value)
    assert "preset:deepseek-v3-2k" in str(caught.value)
