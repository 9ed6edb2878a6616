"""Presets have the published sizes, and change where a dimension is stated beside them."""

import pytest

from fourfold.config import ModelConfig, ModelSection, preset_names
from fourfold.huggingface import resolve_model, to_config
from fourfold.model.counts import num_active_parameters, num_parameters

PUBLISHED = {
    "gemma2-2b": 2_614_341_888,
    "gemma2-9b": 9_241_705_984,
    "gemma2-27b": 27_227_128_320,
    "gemma3-1b": 999_885_952,
    "gemma3-27b": 27_009_346_304,
    "llama2-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "llama3.1-8b": 8_030_261_248,
    "llama3.2-1b": 1_235_814_400,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "mistral-7b": 7_248_023_552,
    "olmo2-7b": 7_298_617_344,
    "olmo3-7b": 7_298_011_136,
    "olmo-hybrid-7b": 7_430_870_688,
    "olmo3-32b": 32_233_522_176,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "smollm2-135m": 134_515_008,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,  # "141B"
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v3": 671_026_404_352,  # 671,026,419,200 with its balancing biases, 58 x 256; without multi-token prediction
    "kimi-k2": 1_026_408_209_408,  # 1,026,408,232,448 with its balancing biases, 60 x 384
    "glm-4.5": 352_797_814_784,  # "355B", without its balancing biases and multi-token prediction
    "qwen3-next-80b-a3b": 79_674_391_296,  # "80B", without its MTP module
    "kimi-linear-48b-a3b": 49_122_675_072,  # "48B", without its balancing biases
    "qwen3.5-27b": 26_895_998_464,  # "27B", without its MTP module
    "qwen3.5-35b-a3b": 34_660_610_688,  # "35B", without its MTP module
    "lfm2-1.2b": 1_170_340_608,  # "1.17B"
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "llama4-scout": 107_769_861_120,  # "109B" with its parts for pictures
    "llama4-maverick": 400_711_848_960,  # "400B"
    "gpt3-175b": 174_604_259_328,  # "174.6B": table 2.1's "175.0B" is rounded
    "mt-nlg-530b": 529_600_819_200,  # "530B"
    "megatron-1t": 1_008_038_758_400,  # "1008.0B", table 1
}
ACTIVE = {
    "mixtral-8x7b": 12.88e9,
    "mixtral-8x22b": 39.15e9,
    "qwen3-30b-a3b": 3.35e9,
    "qwen3-235b-a22b": 22.19e9,
    "deepseek-v3": 37.55e9,
    "kimi-k2": 32.86e9,
    "gpt-oss-20b": 4.19e9,  # "3.61B" and the embedding
    "qwen3-next-80b-a3b": 3.875e9,
    "kimi-linear-48b-a3b": 3.484e9,  # "3B"
    "qwen3.5-35b-a3b": 3.455e9,
    "llama4-scout": 17.17e9,
    "llama4-maverick": 17.18e9,
    "llama3-405b": 405.85e9,
}


def _resolve(preset: str) -> ModelConfig:
    return resolve_model(ModelSection(preset=preset), 1000)


def test_every_preset_but_the_toy_has_a_published_size() -> None:
    assert set(preset_names()) - {"tiny"} == set(PUBLISHED)


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_preset_has_the_published_number_of_parameters(preset: str) -> None:
    assert num_parameters(_resolve(preset)) == PUBLISHED[preset]


@pytest.mark.parametrize("preset", ACTIVE)
def test_a_token_passes_the_published_number_of_parameters(preset: str) -> None:
    assert num_active_parameters(_resolve(preset)) == pytest.approx(ACTIVE[preset], rel=1e-3)


def test_narayanans_formula_for_the_size_of_a_gpt_model() -> None:
    """Formula 2 of Narayanan et al. 2021, which leaves out the last LayerNorm."""
    for preset in ("gpt3-175b", "mt-nlg-530b", "megatron-1t"):
        m = _resolve(preset)
        layers, hidden, vocab, length = m.num_layers, m.hidden_size, m.vocab_size, m.max_position
        formula = layers * hidden * (12 * hidden + 13) + (vocab + length) * hidden
        assert num_parameters(m) == formula + 2 * hidden


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_preset_has_the_size_of_the_model_that_transformers_builds_from_it(preset: str) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = to_config(_resolve(preset))
    config = AutoConfig.for_model(raw.pop("model_type"), **raw)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    parameters = {id(p): p.numel() for p in model.parameters()}
    assert sum(parameters.values()) == PUBLISHED[preset]


def test_a_dimension_beside_a_preset_overrides_it() -> None:
    plain = _resolve("llama3-8b")
    changed = resolve_model(ModelSection(preset="llama3-8b", num_layers=2, rope_theta=1e4))
    assert (changed.num_layers, changed.rope_theta) == (2, 1e4)
    assert changed.hidden_size == plain.hidden_size
    narrow = resolve_model(ModelSection(preset="qwen3-8b", hidden_size=512, num_heads=16, num_kv_heads=4))
    assert narrow.head_dim == 32


def test_a_preset_stripped_of_its_bias_is_no_longer_of_its_family() -> None:
    assert resolve_model(ModelSection(preset="qwen2.5-7b", qkv_bias=False)).family == "llama"
    assert resolve_model(ModelSection(preset="qwen3-8b", qk_norm=False)).family == "llama"
