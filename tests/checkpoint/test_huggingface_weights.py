"""transformers loads what is written here and computes the same logits; what transformers writes is read here."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from fourfold.checkpoint import WeightFolder, export_checkpoint, read_parameters, write_huggingface
from fourfold.checkpoint.released import balance_bias, released_form
from fourfold.checkpoint.tensor_file import TensorEntry
from fourfold.checkpoint.weight_writer import WeightFile, write_weights
from fourfold.config import ModelConfig, ModelSection, UserError, resolve_model
from fourfold.config.schema import RopeScaling
from fourfold.data.tokenizer import ByteTokenizer
from fourfold.model.spec import build_segments
from tests.checkpoint.ranks import MODEL, Run, layout_of
from tests.support.plain_model import PlainModel, random_tokens

LLAMA = ModelConfig(
    num_layers=2, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=8, ffn_size=48, vocab_size=96, max_position=128
)
STRETCHED = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=16)
DENSE = {
    "llama": LLAMA,
    "llama tied": replace(LLAMA, tie_embeddings=True),
    "llama scaled rope": replace(LLAMA, rope_scaling=STRETCHED, rope_theta=5e5),
    "llama wide heads": replace(LLAMA, head_dim=12, num_kv_heads=4),
    "mistral": replace(LLAMA, family="mistral", rope_theta=1e6, norm_eps=1e-6),
    "mistral window": replace(LLAMA, family="mistral", sliding_window=64),
    "qwen2": replace(LLAMA, family="qwen2", qkv_bias=True, tie_embeddings=True),
    "qwen3": replace(LLAMA, family="qwen3", qk_norm=True, head_dim=16),
}
_SIZES: dict[str, Any] = {"num_layers": 3, "hidden_size": 32, "num_heads": 4, "ffn_size": 48, "vocab_size": 96}
_LATENT: dict[str, Any] = {
    "key_value_rank": 16, "query_rank": 24, "rope_head_dim": 4, "nope_head_dim": 8, "value_head_dim": 6,
    "family": "deepseek_v3", "top_k": 3, "num_shared_experts": 2, "moe_ffn_size": 24,
}  # fmt: skip
STATED: dict[str, dict[str, Any]] = {
    "mixtral": {**_SIZES, "num_experts": 4, "top_k": 2, "num_kv_heads": 2},
    "qwen3_moe": {
        **_SIZES, "family": "qwen3_moe", "num_experts": 6, "top_k": 2, "moe_ffn_size": 20, "first_dense_layers": 1,
        "tie_embeddings": True,
    },
    "deepseek_v3": {
        **_SIZES, **_LATENT, "num_experts": 8, "first_dense_layers": 1, "num_expert_groups": 4, "top_groups": 2,
        "routed_scaling": 2.5,
    },
    "deepseek_v3 without a query rank": {**_SIZES, **_LATENT, "num_experts": 4, "query_rank": 0},
    "gpt2": {**_SIZES, "family": "gpt2", "max_position": 64},
    "gpt2 untied": {**_SIZES, "family": "gpt2", "max_position": 64, "tie_embeddings": False},
}  # fmt: skip
MODELS = {**DENSE, **{name: resolve_model(ModelSection(**stated)) for name, stated in STATED.items()}}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> ModelConfig:
    return MODELS[request.param]


def named_tensors(model: ModelConfig) -> dict[str, Tensor]:
    """Random parameters, norms and biases too, so that none of them can be lost unseen."""
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for segment in build_segments(model):
        for spec in segment.parameters:
            values = torch.randn(spec.shape, generator=generator) * 0.2
            tensors[spec.name] = values + 1 if spec.init_std is None else values
    return tensors


def write(folder: Path, model: ModelConfig, tensors: dict[str, Tensor], dtype: str = "fp32", **rest: Any) -> None:
    options = {"tokenizer_file": None, "eos": None, **rest}
    write_huggingface(folder, model, tensors.items(), dtype=dtype, **options)


def loaded(folder: Path) -> Any:
    """The model as transformers loads it, with nothing missing and nothing left over."""
    theirs, problems = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(problems.values()), problems
    return theirs.eval()


def as_in_memory(name: str, theirs: dict[str, Tensor]) -> Tensor:
    """transformers' own tensor of one of our parameters."""
    gpt2 = {
        "embed_tokens": "wte", "embed_positions": "wpe", "model.norm": "ln_f", "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2", "o_proj": "attn.c_proj", "up_proj": "mlp.c_fc", "down_proj": "mlp.c_proj",
        "q_proj": "attn.c_attn", "k_proj": "attn.c_attn", "v_proj": "attn.c_attn",
    }  # fmt: skip
    if name in theirs:
        return theirs[name]
    key = next(key for key in gpt2 if key in name)
    parts = name.split(".")
    where = f"transformer.h.{parts[2]}." if parts[1] == "layers" else "transformer."
    tensor = theirs[where + gpt2[key] + "." + parts[-1]]
    tensor = tensor.t() if tensor.dim() == 2 and parts[1] == "layers" else tensor
    return tensor.chunk(3)["qkv".index(key[0])] if gpt2[key].endswith("c_attn") else tensor


def check_same(model: ModelConfig, tensors: dict[str, Tensor], theirs: Any) -> None:
    """Every parameter is the one that transformers computes with, bit for bit."""
    state = theirs.state_dict()
    for name, tensor in tensors.items():
        assert torch.equal(as_in_memory(name, state).reshape(tensor.shape), tensor), name
    biases = [name for name in state if name.endswith("e_score_correction_bias")]
    assert len(biases) == (sum(map(model.is_moe, range(model.num_layers))) if model.is_latent else 0)


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
    weights.check_against(build_segments(model))
    tensors = {spec.name: weights.get(spec.name) for segment in build_segments(model) for spec in segment.parameters}
    check_same(model, tensors, theirs)
    for name, whole in tensors.items():
        for start, end in ((0, whole.numel()), (3, 5), (whole.numel() // 3, whole.numel() - 1), (7, 7)):
            assert torch.equal(weights.range(name, start, end), whole.flatten()[start:end])
    biases = {balance_bias(layer): weights.balance_bias(layer) for layer in range(model.num_layers)}
    write(tmp_path / "again", model, {**tensors, **{n: bias for n, bias in biases.items() if bias is not None}})
    tokens = torch.randint(0, model.vocab_size, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(tokens).logits
        assert expected.abs().max() > 0.5, "logits near zero would prove nothing"
        assert torch.equal(loaded(tmp_path / "again")(tokens).logits, expected)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp64"])
def test_what_is_written_is_read_back(tmp_path: Path, model: ModelConfig, dtype: str) -> None:
    tensors = named_tensors(model)
    write(tmp_path / "out", model, dict(reversed(tensors.items())), dtype, eos=3, max_shard_bytes=15_000)
    weights = WeightFolder(tmp_path / "out")
    weights.check_against(build_segments(model))
    for name, tensor in tensors.items():
        kind = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}[dtype]
        assert torch.equal(weights.get(name), tensor.to(kind))
    for layer in range(model.num_layers):
        bias = weights.balance_bias(layer)
        assert (bias is not None) == (model.is_latent and model.is_moe(layer))
        assert bias is None or torch.equal(bias, torch.zeros(model.num_experts)), "fp32 zeros where none is given"
    assert resolve_model(ModelSection(hf=str(tmp_path / "out"))) == model


# Ways in which a folder may hold the same weights


def _copy(folder: Path, name: str, tensors: dict[str, Tensor]) -> WeightFolder:
    (folder / name).mkdir()
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / name / "model.safetensors")
    return WeightFolder(folder / name)


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_stacked_experts_and_those_of_the_other_families_are_read_too(tmp_path: Path, name: str) -> None:
    model = MODELS[name]
    tensors = named_tensors(model)
    forms = {
        "stacked": {n: t.flatten(1, 2) if n.endswith("gate_up_proj") else t for n, t in tensors.items()},
        "mixtral": _on_disk(tmp_path / "m", replace(model, family="mixtral"), tensors),
        "deepseek": _on_disk(tmp_path / "d", replace(model, family="deepseek_v3"), tensors),
    }
    for form, content in forms.items():
        weights = _copy(tmp_path, form, content)
        weights.check_against(build_segments(model))
        assert all(torch.equal(weights.get(n), tensor) for n, tensor in tensors.items()), form


def _on_disk(folder: Path, model: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the files, in the form of a family."""
    folder.mkdir()
    entries = {
        piece.name: TensorEntry(piece.name, torch.float32, piece.shape)
        for segment in build_segments(model)
        for spec in segment.parameters
        for piece in released_form(spec, model.family)
    }
    write_weights(folder, model, [WeightFile("a.safetensors", tuple(entries.values()))], tensors.items())
    return dict(load_file(folder / "a.safetensors"))


def test_the_names_of_openais_gpt2(tmp_path: Path) -> None:
    model = MODELS["gpt2"]
    tensors = named_tensors(model)
    content = {n.removeprefix("transformer."): t for n, t in _on_disk(tmp_path / "x", model, tensors).items()}
    weights = _copy(tmp_path, "openai", {**content, "h.0.attn.bias": torch.ones(1, 1, 64, 64)})
    weights.check_against(build_segments(model))
    assert all(torch.equal(weights.get(n), tensor) for n, tensor in tensors.items())


def test_modules_of_multi_token_prediction_are_passed_over(tmp_path: Path) -> None:
    model = MODELS["deepseek_v3"]
    content = _on_disk(tmp_path / "x", model, named_tensors(model))
    more = {
        "model.layers.3.eh_proj.weight": torch.ones(1),
        "model.layers.3.mlp.experts.0.up_proj.weight": torch.ones(1),
    }
    _copy(tmp_path, "mtp", {**content, **more}).check_against(build_segments(model))
    with pytest.raises(UserError, match=r"unexpected: model\.layers\.4\.mlp"):
        _copy(tmp_path, "no", {**content, "model.layers.4.mlp.x": torch.ones(1)}).check_against(build_segments(model))


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    model = MODELS["mixtral"]
    content = _on_disk(tmp_path / "x", model, named_tensors(model))
    del content["model.layers.1.block_sparse_moe.experts.2.w3.weight"]
    with pytest.raises(UserError, match=r"missing: model\.layers\.1\.block_sparse_moe\.experts\.2\.w3\.weight; build"):
        _copy(tmp_path, "less", content).check_against(build_segments(model))


def test_a_range_or_box_of_stacked_experts_reads_no_other_expert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS["deepseek_v3"]
    tensors = named_tensors(model)
    write(tmp_path / "out", model, tensors)
    weights = WeightFolder(tmp_path / "out")
    weights.check_against(build_segments(model))
    read: list[str] = []
    file = next(iter(weights._files.values()))
    original = file.read_range
    monkeypatch.setattr(file, "read_range", lambda name, *rest: read.append(name) or original(name, *rest))
    name = "model.layers.1.mlp.experts.gate_up_proj"
    size = tensors[name][0].numel()
    assert torch.equal(weights.range(name, 3 * size, 4 * size), tensors[name][3].flatten())
    assert {n.split(".")[5] for n in read} == {"3"}
    read.clear()
    box = ((2, 4), (0, 2), (12, 24), (0, 32))
    part = tensors[name][2:4, :, 12:24].flatten()
    assert torch.equal(weights.box(name, box), part)
    assert {n.split(".")[5] for n in read} == {"2", "3"}
    read.clear()
    assert torch.equal(
        weights.box(name, box, part.numel() // 2 + 5, part.numel() - 3), part[part.numel() // 2 + 5 : -3]
    )
    assert {n.split(".")[5] for n in read} == {"3"}
    assert weights.box(name, box, 4, 4).numel() == 0


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_boxes_of_any_parameter(tmp_path: Path, name: str) -> None:
    model = MODELS[name]
    tensors = named_tensors(model)
    write(tmp_path / "out", model, tensors)
    weights = WeightFolder(tmp_path / "out")
    weights.check_against(build_segments(model))
    for key, tensor in tensors.items():
        box = tuple((size // 3, size - size // 4) for size in tensor.shape)
        part = tensor[tuple(slice(*interval) for interval in box)].flatten()
        assert torch.equal(weights.box(key, box), part)
        assert torch.equal(weights.box(key, box, 1, part.numel() - 1), part[1:-1])


# Exports of checkpoints


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("llama", {}),
        ("llama tied", {"dp_shard": 3}),
        ("qwen3", {"tp": 2, "tp_head": 2, "pp": 2}),
        ("mixtral", {"dp_shard": 4, "ep": 4}),
        ("qwen3_moe", {"dp_shard": 2, "tp": 2, "tp_head": 2, "ep": 2, "etp": 2}),
        ("deepseek_v3", {"pp": 2, "dp_shard": 2, "ep": 2}),
        ("gpt2", {"tp": 2, "tp_head": 2}),
    ],
)
def test_a_checkpoint_exported_loads_in_transformers(tmp_path: Path, name: str, degrees: dict[str, int]) -> None:
    model = MODELS[name]
    run = Run(model=model, layout=layout_of(degrees))
    bias = torch.arange(model.num_experts, dtype=torch.float32)
    extras = {"b1.balance_bias": bias} if model.is_latent else {}
    run.save(tmp_path / "checkpoints", 1, extras=lambda rank: extras if rank == 0 else {})
    export_checkpoint(tmp_path / "checkpoints" / "step-000001", model, tmp_path / "out")
    theirs = loaded(tmp_path / "out")
    check_same(model, run.parameters(), theirs)
    if model.is_latent:
        assert torch.equal(theirs.state_dict()[balance_bias(1)], bias)
        assert torch.equal(theirs.state_dict()[balance_bias(2)], torch.zeros_like(bias))


def test_parameters_may_come_in_pieces(tmp_path: Path, model: ModelConfig) -> None:
    run = Run(model=model)
    run.save(tmp_path, 1)
    reader = read_parameters(tmp_path / "step-000001")
    pieces = list(reader.pieces(max_bytes=3000))
    assert len(pieces) > len(reader.names())
    write_huggingface(tmp_path / "out", model, iter(pieces), dtype="fp32", tokenizer_file=None, eos=None)
    check_same(model, run.parameters(), loaded(tmp_path / "out"))


def test_a_model_of_no_family_is_not_exported(tmp_path: Path) -> None:
    model = resolve_model(ModelSection(**{**STATED["mixtral"], "router": "sigmoid"}))
    with pytest.raises(UserError, match="no Hugging Face family has this model"):
        write(tmp_path / "out", model, named_tensors(model))
    assert not (tmp_path / "out").exists()


def test_transformers_generates_from_an_export(tmp_path: Path) -> None:
    model = replace(LLAMA, vocab_size=320)
    ByteTokenizer().save(tmp_path / "tokenizer.json")
    tensors = named_tensors(model)
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
    write(tmp_path / "out", LLAMA, named_tensors(LLAMA))
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
    write(tmp_path / "out", LLAMA, named_tensors(LLAMA), eos=1)
    for name in ("config.json", "generation_config.json"):
        assert json.loads((tmp_path / "out" / name).read_text())["eos_token_id"] == 1
