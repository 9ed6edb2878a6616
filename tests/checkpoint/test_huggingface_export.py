"""Exports of checkpoints: transformers loads them and generates; what is not known or does not fit is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fourfold.checkpoint import export_checkpoint
from fourfold.config import ModelSection, UserError
from fourfold.data.tokenizer import ByteTokenizer
from fourfold.huggingface import resolve_model
from fourfold.huggingface.tensors import balance_bias
from tests.checkpoint.huggingface_models import LLAMA, MODELS, STATED, check_same, loaded, named_tensors, write
from tests.checkpoint.ranks import MODEL, Run, layout_of


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
    extras = {"b1.balance_bias": bias} if model.is_mla else {}
    run.save(tmp_path / "checkpoints", 1, extras=lambda rank: extras if rank == 0 else {})
    export_checkpoint(tmp_path / "checkpoints" / "step-000001", model, tmp_path / "out")
    theirs = loaded(tmp_path / "out")
    check_same(model, run.parameters(), theirs)
    if model.is_mla:
        assert torch.equal(theirs.state_dict()[balance_bias(1)], bias)
        assert torch.equal(theirs.state_dict()[balance_bias(2)], torch.zeros_like(bias))


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
