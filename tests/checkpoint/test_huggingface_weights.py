"""transformers loads what is written here and computes the same logits; what transformers writes is read here."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from fourfold.checkpoint import WeightFolder, export_checkpoint, write_huggingface
from fourfold.config import ModelConfig, ModelSection, UserError, resolve_model
from fourfold.config.schema import RopeScaling
from fourfold.data.tokenizer import ByteTokenizer
from fourfold.model.head import head_logits
from fourfold.model.rope import rope_tables
from fourfold.model.segments import Microbatch, block_forward, embedding_forward
from fourfold.model.spec import build_segments
from fourfold.model.weights import FlatUnit, bind_weights
from tests.checkpoint.ranks import MODEL, Run

LLAMA = ModelConfig(
    num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, ffn_size=48, vocab_size=96, max_position=128
)
STRETCHED = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=16)
MODELS = {
    "llama": LLAMA,
    "llama tied": replace(LLAMA, tie_embeddings=True),
    "llama scaled rope": replace(LLAMA, rope_scaling=STRETCHED, rope_theta=5e5),
    "llama wide heads": replace(LLAMA, head_dim=12, num_kv_heads=4),
    "mistral": replace(LLAMA, family="mistral", rope_theta=1e6, norm_eps=1e-6),
    "mistral window": replace(LLAMA, family="mistral", sliding_window=64),
    "qwen2": replace(LLAMA, family="qwen2", qkv_bias=True, tie_embeddings=True),
    "qwen3": replace(LLAMA, family="qwen3", qk_norm=True, head_dim=16),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> ModelConfig:
    return MODELS[request.param]


def flat_units(model: ModelConfig) -> dict[str, FlatUnit]:
    """Random parameters, norms and biases too, so that none of them can be lost unseen."""
    generator = torch.Generator().manual_seed(0)
    units = {}
    for segment in build_segments(model):
        parts = []
        for spec in segment.parameters:
            values = torch.randn(spec.numel, generator=generator) * 0.2
            parts.append(values + 1 if spec.init_std is None else values)
        flat = torch.cat(parts)
        units[segment.name] = FlatUnit(segment, flat, torch.zeros_like(flat))
    return units


def named_tensors(model: ModelConfig, units: dict[str, FlatUnit]) -> dict[str, Tensor]:
    return {
        spec.name: units[segment.name].weight(spec.name).data.view(spec.shape)
        for segment in build_segments(model)
        for spec in segment.parameters
    }


@torch.no_grad()
def own_logits(model: ModelConfig, units: dict[str, FlatUnit], tokens: Tensor) -> Tensor:
    cos, sin = rope_tables(model, tokens.shape[1], torch.float32, torch.device("cpu"))
    batch = Microbatch(tokens, tokens, cos[:, None, :], sin[:, None, :])
    embedding, *blocks, head = [(segment, bind_weights(segment, model, units)) for segment in build_segments(model)]
    x: Any = embedding_forward(tokens, embedding[1])  # type: ignore[arg-type]
    for _, weights in blocks:
        x = block_forward(x, weights, model, batch)  # type: ignore[arg-type]
    return head_logits(x, head[1], model)  # type: ignore[arg-type]


def write(folder: Path, model: ModelConfig, tensors: dict[str, Tensor], dtype: str = "fp32", **rest: Any) -> None:
    options = {"tokenizer_file": None, "eos": None, **rest}
    write_huggingface(folder, model, tensors.items(), dtype=dtype, **options)


@torch.no_grad()
def check_loads(folder: Path, model: ModelConfig, units: dict[str, FlatUnit]) -> None:
    theirs, problems = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(problems.values()), problems
    tokens = torch.randint(0, model.vocab_size, (2, 40), generator=torch.Generator().manual_seed(1))
    expected = theirs.eval()(tokens).logits
    assert expected.abs().max() > 0.5, "logits near zero would prove nothing"
    torch.testing.assert_close(own_logits(model, units, tokens), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("max_shard_bytes", [5e9, 20_000])
def test_transformers_computes_the_same_logits(tmp_path: Path, model: ModelConfig, max_shard_bytes: float) -> None:
    units = flat_units(model)
    write(tmp_path / "out", model, named_tensors(model, units), max_shard_bytes=max_shard_bytes)
    assert (tmp_path / "out" / "model.safetensors").exists() == (max_shard_bytes == 5e9)
    check_loads(tmp_path / "out", model, units)


@pytest.mark.parametrize("max_shard_size", ["5GB", "20KB"])
def test_what_transformers_saves_is_read(tmp_path: Path, model: ModelConfig, max_shard_size: str) -> None:
    write(tmp_path / "first", model, named_tensors(model, flat_units(model)))
    config = AutoConfig.from_pretrained(tmp_path / "first")
    torch.manual_seed(3)
    theirs = AutoModelForCausalLM.from_config(config)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size=max_shard_size)
    assert resolve_model(ModelSection(hf=str(tmp_path / "theirs"))) == model
    weights = WeightFolder(tmp_path / "theirs")
    weights.check_against(build_segments(model))
    expected = theirs.state_dict()
    for segment in build_segments(model):
        for spec in segment.parameters:
            whole = weights.get(spec.name)
            assert torch.equal(whole, expected[spec.name])
            for start, end in ((0, spec.numel), (3, 5), (spec.numel // 3, spec.numel - 1), (7, 7)):
                assert torch.equal(weights.range(spec.name, start, end), whole.flatten()[start:end])


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
def test_what_is_written_is_read_back(tmp_path: Path, model: ModelConfig, dtype: str) -> None:
    tensors = named_tensors(model, flat_units(model))
    write(tmp_path / "out", model, dict(reversed(tensors.items())), dtype, eos=3, max_shard_bytes=15_000)
    weights = WeightFolder(tmp_path / "out")
    weights.check_against(build_segments(model))
    assert set(weights.names()) == set(tensors)
    for name, tensor in tensors.items():
        kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}[dtype]
        assert torch.equal(weights.get(name), tensor.to(kind))
    assert resolve_model(ModelSection(hf=str(tmp_path / "out"))) == model
    sizes = [path.stat().st_size for path in (tmp_path / "out").glob("*.safetensors")]
    largest = max(tensor.numel() for tensor in tensors.values()) * kind.itemsize
    assert all(size < max(15_000, largest) + 4096 for size in sizes)


@pytest.mark.parametrize("num_shards", [1, 3])
def test_a_checkpoint_exported_loads_in_transformers(tmp_path: Path, num_shards: int) -> None:
    model = replace(LLAMA, vocab_size=320)
    run = Run(num_shards, model=model)
    for state in run.state.values():
        state["master"].mul_(0.2)  # larger weights make logits chaotic, and 1e-5 unreachable
    run.save(tmp_path / "checkpoints", 1)
    ByteTokenizer().save(tmp_path / "tokenizer.json")
    out = tmp_path / "out"
    export_checkpoint(
        tmp_path / "checkpoints" / "step-000001", model, out, tokenizer_file=tmp_path / "tokenizer.json", eos=256
    )
    units = {
        segment.name: FlatUnit(segment, master, torch.zeros_like(master))
        for segment in build_segments(model)
        for master in (run.state[segment.name]["master"],)
    }
    check_loads(out, model, units)


def test_transformers_generates_from_an_export(tmp_path: Path) -> None:
    model = replace(LLAMA, vocab_size=320)
    ByteTokenizer().save(tmp_path / "tokenizer.json")
    tensors = named_tensors(model, flat_units(model))
    write(tmp_path / "out", model, tensors, "bf16", tokenizer_file=tmp_path / "tokenizer.json", eos=256)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "Grüße, 世界"
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode()), "no token is added before or after"
    assert tokenizer.decode(ids) == text
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|endoftext|>", 256)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert theirs.dtype == torch.bfloat16
    assert theirs.generation_config.eos_token_id == 256
    out = theirs.generate(torch.tensor([ids]), max_new_tokens=4, do_sample=False, pad_token_id=256)
    assert len(ids) < out.shape[1] <= len(ids) + 4


def test_an_end_of_text_that_is_not_known_is_not_made_up(tmp_path: Path) -> None:
    write(tmp_path / "out", LLAMA, named_tensors(LLAMA, flat_units(LLAMA)))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert theirs.config.eos_token_id is None
    assert theirs.generation_config.eos_token_id is None


def test_an_export_of_another_model(tmp_path: Path) -> None:
    Run(2).save(tmp_path, 1)
    for other, word in ((replace(MODEL, num_layers=3), "layers.2"), (replace(MODEL, vocab_size=38), "[37, 12] there")):
        with pytest.raises(UserError, match="another model") as caught:
            export_checkpoint(tmp_path / "step-000001", other, tmp_path / "out")
        assert word in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_config_has_only_plain_json(tmp_path: Path) -> None:
    write(tmp_path / "out", LLAMA, named_tensors(LLAMA, flat_units(LLAMA)), eos=1)
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / name).read_text())["eos_token_id"] == 1
