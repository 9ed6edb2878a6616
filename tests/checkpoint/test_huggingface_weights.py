"""transformers loads what is written here and computes the same logits; what transformers writes is read here."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from fourfold.checkpoint import WeightFolder, read_parameters, write_huggingface
from fourfold.config import ModelConfig, ModelSection
from fourfold.huggingface import resolve_model
from fourfold.huggingface.tensors import balance_bias
from fourfold.model.spec import build_segments
from tests.checkpoint.huggingface_models import BALANCED, DENSE, MODELS, check_same, loaded, named_tensors, write
from tests.checkpoint.ranks import Run
from tests.support.plain_model import PlainModel, random_tokens


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> ModelConfig:
    return MODELS[request.param]


@pytest.mark.grid(1)
@pytest.mark.parametrize("max_shard_bytes", [5e9, 20_000])
def test_transformers_loads_what_is_written(tmp_path: Path, model: ModelConfig, max_shard_bytes: float) -> None:
    tensors = named_tensors(model)
    write(tmp_path / "out", model, tensors, max_shard_bytes=max_shard_bytes)
    assert (tmp_path / "out" / "model.safetensors").exists() == (max_shard_bytes == 5e9)
    check_same(model, tensors, loaded(tmp_path / "out"))


@pytest.mark.parametrize("name", DENSE)
def test_transformers_computes_the_same_loss(tmp_path: Path, name: str) -> None:
    ours = PlainModel(DENSE[name])
    write(tmp_path / "out", DENSE[name], ours.parameters(), "fp64")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float64).eval()
    tokens, targets = random_tokens(DENSE[name], 2, 40)
    logits = theirs(tokens).logits.flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
    assert ours.loss(ours.microbatch(tokens, targets)).item() == pytest.approx(expected.item(), rel=1e-7)


@pytest.mark.grid(1)
@pytest.mark.parametrize("max_shard_size", ["5GB", "20KB"])
def test_what_transformers_saves_is_read(tmp_path: Path, model: ModelConfig, max_shard_size: str) -> None:
    """And written again, it computes the same logits."""
    write(tmp_path / "first", model, named_tensors(model))
    torch.manual_seed(3)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path / "first")).eval()
    for parameter in theirs.state_dict().values():
        if parameter.is_floating_point():
            parameter.normal_(std=0.2)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size=max_shard_size)
    assert resolve_model(ModelSection(hf=str(tmp_path / "theirs"))) == model
    weights = WeightFolder(tmp_path / "theirs")
    weights.check_against(model)
    tensors = {spec.name: weights.get(spec.name) for segment in build_segments(model) for spec in segment.parameters}
    check_same(model, tensors, theirs)
    for name, full in tensors.items():
        for start, end in ((0, full.numel()), (3, 5), (full.numel() // 3, full.numel() - 1), (7, 7)):
            assert torch.equal(weights.range(name, start, end), full.flatten()[start:end])
    biases = {balance_bias(layer): weights.balance_bias(layer) for layer in range(model.num_layers)}
    write(tmp_path / "again", model, {**tensors, **{n: bias for n, bias in biases.items() if bias is not None}})
    tokens = torch.randint(0, model.vocab_size, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(tokens).logits
        assert expected.abs().max() > 0.5 * (model.logit_softcap or 1), "logits near zero would prove nothing"
        assert torch.equal(loaded(tmp_path / "again")(tokens).logits, expected)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
def test_what_is_written_is_read_back(tmp_path: Path, model: ModelConfig, dtype: str) -> None:
    tensors = named_tensors(model)
    write(tmp_path / "out", model, dict(reversed(tensors.items())), dtype, eos=3, max_shard_bytes=15_000)
    weights = WeightFolder(tmp_path / "out")
    weights.check_against(model)
    for name, tensor in tensors.items():
        kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}[dtype]
        assert torch.equal(weights.get(name), tensor.to(kind))
    for layer in range(model.num_layers):
        bias = weights.balance_bias(layer)
        assert (bias is not None) == (model.family in BALANCED and model.is_moe(layer))
        assert bias is None or torch.equal(bias, torch.zeros(model.num_experts)), "fp32 zeros where none is given"
    assert resolve_model(ModelSection(hf=str(tmp_path / "out"))) == model


def test_parameters_may_come_in_pieces(tmp_path: Path, model: ModelConfig) -> None:
    run = Run(model=model)
    run.save(tmp_path, 1)
    reader = read_parameters(tmp_path / "step-000001")
    pieces = list(reader.pieces(max_bytes=3000))
    assert len(pieces) > len(reader.names())
    write_huggingface(tmp_path / "out", model, iter(pieces), dtype="fp32", tokenizer_file=None, eos=None)
    check_same(model, run.parameters(), loaded(tmp_path / "out"))
