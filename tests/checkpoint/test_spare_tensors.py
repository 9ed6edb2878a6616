"""A tensor that no parameter takes is a copy of what is known, compared by its content, or it is named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from fourfold.checkpoint import WeightFolder
from fourfold.config import ModelConfig, ModelSection, UserError
from fourfold.huggingface import resolve_model
from tests.checkpoint.huggingface_models import MODELS, STATED, named_tensors, write

LLAMA, TIED = MODELS["llama"], MODELS["llama tied"]
MODULE = resolve_model(ModelSection(**{**STATED["deepseek_v3"], "mtp_layers": 1}))


def with_more(folder: Path, model: ModelConfig, more: dict[str, Tensor]) -> WeightFolder:
    write(folder, model, named_tensors(model))
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, **more}, folder / "model.safetensors")
    return WeightFolder(folder)


def their_frequencies(model: ModelConfig) -> Tensor:
    """The buffer that transformers computes; of long ago, folders hold it."""
    config = AutoConfig.for_model(
        "llama", hidden_size=32, num_attention_heads=4, head_dim=model.head_dim, num_hidden_layers=1, vocab_size=96,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_theta},
    )  # fmt: skip
    found: Tensor = AutoModelForCausalLM.from_config(config).model.rotary_emb.inv_freq
    return found.clone()


MASK = torch.ones(64, 64).tril().view(1, 1, 64, 64)
EMBEDDING = named_tensors(TIED)["model.embed_tokens.weight"]
OWN = named_tensors(MODULE)
COPIES: dict[str, tuple[ModelConfig, str, Tensor]] = {
    "head": (TIED, "lm_head.weight", EMBEDDING),
    "frequencies": (LLAMA, "model.layers.1.self_attn.rotary_emb.inv_freq", their_frequencies(LLAMA)),
    "frequencies in bf16": (LLAMA, "model.rotary_emb.inv_freq", their_frequencies(LLAMA).bfloat16()),
    "frequencies before scaling": (MODELS["llama scaled rope"], "model.rotary_emb.inv_freq",
                                   their_frequencies(MODELS["llama scaled rope"])),
    "mask": (MODELS["gpt2"], "transformer.h.1.attn.bias", MASK),
    "mask of bytes": (MODELS["gpt2"], "h.2.attn.bias", MASK.to(torch.uint8)),
    "masked value": (MODELS["gpt2"], "h.2.attn.masked_bias", torch.tensor(-1e4)),
    "embedding of a module": (MODULE, "model.layers.3.embed_tokens.weight", OWN["model.embed_tokens.weight"]),
    "head of a module": (MODULE, "model.layers.3.shared_head.head.weight", OWN["lm_head.weight"]),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_passed_over_and_what_differs_in_one_element_is_refused(name: str, tmp_path: Path) -> None:
    model, tensor, content = COPIES[name]
    weights = with_more(tmp_path / "same", model, {tensor: content})
    assert weights.check_against(model) == ()
    assert torch.equal(weights.get("model.norm.weight"), named_tensors(model)["model.norm.weight"])
    other = content.clone()
    other.view(-1)[-1] = 1 - other.view(-1)[-1] if content.numel() > 1 else 3
    with pytest.raises(UserError) as caught:
        with_more(tmp_path / "other", model, {tensor: other}).check_against(model)
    assert f"{tensor}, which differs from" in str(caught.value)
    if name == "head":
        assert "model.tie_embeddings = false" in str(caught.value)
        WeightFolder(tmp_path / "other").check_against(replace(model, tie_embeddings=False))


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_of_another_shape_is_refused(name: str, tmp_path: Path) -> None:
    model, tensor, _content = COPIES[name]
    with pytest.raises(UserError, match="differs from"):
        with_more(tmp_path / "x", model, {tensor: torch.zeros(5, 3)}).check_against(model)


def test_a_bias_of_a_router_that_there_is_not_is_unexpected(tmp_path: Path) -> None:
    model = MODELS["deepseek_v3"]
    for layer, words in ((0, "unexpected: "), (1, "instead of [8]")):  # the first layer is dense
        name = f"model.layers.{layer}.mlp.gate.e_score_correction_bias"
        with pytest.raises(UserError) as caught:
            with_more(tmp_path / str(layer), model, {name: torch.zeros(3)}).check_against(model)
        assert name in str(caught.value)
        assert words in str(caught.value)


def test_modules_that_the_model_has_not_are_named(tmp_path: Path) -> None:
    write(tmp_path / "x", MODULE, OWN)
    weights = WeightFolder(tmp_path / "x")
    assert weights.check_against(MODULE) == ()
    (note,) = weights.check_against(replace(MODULE, mtp_layers=0, mtp_loss=0.0))
    assert "model.layers.3." in note
    assert "model.mtp_layers = 1 reads them" in note


def test_a_tensor_that_the_index_leaves_out_is_there_all_the_same(tmp_path: Path) -> None:
    """transformers loads whole files."""
    write(tmp_path / "x", LLAMA, named_tensors(LLAMA), max_shard_bytes=20_000)
    path = tmp_path / "x" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    del index["weight_map"]["model.norm.weight"]
    path.write_text(json.dumps(index))
    weights = WeightFolder(tmp_path / "x")
    assert weights.check_against(LLAMA) == ()
    assert torch.equal(weights.get("model.norm.weight"), named_tensors(LLAMA)["model.norm.weight"])
    last = tmp_path / "x" / max(index["weight_map"].values())
    save_file({**load_file(last), "model.norm.bias": torch.ones(32)}, last)
    with pytest.raises(UserError, match=r"unexpected: model\.norm\.bias"):
        WeightFolder(tmp_path / "x").check_against(LLAMA)


def test_other_files_are_named(tmp_path: Path) -> None:
    write(tmp_path / "x", LLAMA, named_tensors(LLAMA))
    save_file({"lora": torch.ones(2)}, tmp_path / "x" / "adapter\x1b[31m.safetensors")
    (note,) = WeightFolder(tmp_path / "x").check_against(LLAMA)
    assert "not read: 'adapter\\x1b[31m.safetensors'" in note


def test_the_advice_makes_the_weights_fit(tmp_path: Path) -> None:
    """Each change that a refusal names is made, and the folder is read."""
    write(tmp_path / "llama", LLAMA, named_tensors(LLAMA))
    write(tmp_path / "module", MODULE, OWN)
    write(tmp_path / "none", MODELS["deepseek_v3"], named_tensors(MODELS["deepseek_v3"]))
    wrong = {
        ("llama", 3): (replace(LLAMA, num_layers=3), "model.num_layers = 2", "num_hidden_layers", LLAMA),
        ("llama", 1): (replace(LLAMA, num_layers=1), "model.num_layers = 2", "num_hidden_layers", LLAMA),
        ("none", 1): (replace(MODELS["deepseek_v3"], mtp_layers=1, mtp_loss=0.3), "model.mtp_layers = 0",
                      "num_nextn_predict_layers", MODELS["deepseek_v3"]),
        ("module", 2): (replace(MODULE, mtp_layers=2), "model.mtp_layers = 1", "num_nextn_predict_layers", MODULE),
    }  # fmt: skip
    for (folder, _), (model, cure, key, fits) in wrong.items():
        with pytest.raises(UserError) as caught:
            WeightFolder(tmp_path / folder).check_against(model)
        assert cure in str(caught.value)
        assert key in str(caught.value)
        assert "model.hf" not in str(caught.value)
        WeightFolder(tmp_path / folder).check_against(fits)


def test_no_advice_says_what_the_folder_says_already(tmp_path: Path) -> None:
    write(tmp_path / "x", LLAMA, named_tensors(LLAMA))
    tensors = load_file(tmp_path / "x" / "model.safetensors")
    save_file(
        {**tensors, "model.layers.0.self_attn.q_norm.weight": torch.ones(8)}, tmp_path / "x" / "model.safetensors"
    )
    with pytest.raises(
        UserError, match=r"unexpected: .*q_norm.*describes this model \(model_type = 'llama'\).*correct config"
    ):
        WeightFolder(tmp_path / "x").check_against(LLAMA)
    with pytest.raises(UserError, match="build the model from the same folder"):
        WeightFolder(tmp_path / "x").check_against(replace(LLAMA, vocab_size=97))
