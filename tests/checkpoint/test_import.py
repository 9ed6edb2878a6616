"""`fourfold import` of a folder with experts: a run file that resolves to the folder's model and finds its weights whole."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from fourfold.checkpoint import WeightFolder
from fourfold.cli.checkpoint import import_
from fourfold.config import ModelSection, UserError, load_run
from fourfold.huggingface import resolve_model
from tests.checkpoint.huggingface_models import named_tensors, write


@pytest.mark.parametrize("family", ["mixtral", "deepseek_v3"])
def test_a_folder_with_experts(tmp_path: Path, family: str) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    experts = {
        "intermediate_size": 24,
        "moe_intermediate_size": 8,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    }
    count = {"mixtral": {"num_local_experts": 4}, "deepseek_v3": {"n_routed_experts": 8, "n_group": 2, "topk_group": 2}}
    config = AutoConfig.for_model(family, vocab_size=320, **sizes, **experts, **count[family])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "hf")
    assert import_(tmp_path / "hf", out=tmp_path / "run.toml", tokenizer="bytes") == 0
    run = load_run(tmp_path / "run.toml")
    model = resolve_model(run.model)
    assert (model.family, model.mtp_layers) == (family, 0)
    assert model.num_experts == (4 if family == "mixtral" else 8)
    assert run.model.initial is not None
    WeightFolder(Path(run.model.initial)).check_against(model)


@pytest.mark.parametrize(("stated", "kept"), [(3, 3), ([4, 5], 4), (None, None)])
def test_the_folders_end_of_text_is_kept(tmp_path: Path, stated: int | list[int] | None, kept: int | None) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    config = AutoConfig.for_model("llama", vocab_size=32, eos_token_id=stated, bos_token_id=None, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "hf")
    words = {word: number for number, word in enumerate(["a", "b", "c", "<stop>", "<end>", "</s>"])}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a")).save(
        str(tmp_path / "hf" / "tokenizer.json")
    )
    assert import_(tmp_path / "hf", out=tmp_path / "run.toml") == 0
    assert load_run(tmp_path / "run.toml").data.eos == kept


SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 320,
}


def test_modules_that_are_there_are_kept_and_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders of one model, with a module and without: each is imported as it is."""
    keys = {
        "family": "deepseek_v3", "num_layers": 2, "hidden_size": 16, "num_heads": 2, "ffn_size": 24, "vocab_size": 320,
        "key_value_rank": 8, "rope_head_dim": 4, "nope_head_dim": 4, "value_head_dim": 4,
    }  # fmt: skip
    for stated, held in ((1, 1), (1, 0), (0, 1), (2, 1)):
        model = resolve_model(ModelSection(**keys, mtp_layers=held))
        folder = tmp_path / f"{stated} {held}"
        write(folder, model, named_tensors(model))
        raw = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**raw, "num_nextn_predict_layers": stated}))
        assert import_(folder, out=tmp_path / f"{stated}-{held}.toml", tokenizer="bytes") == 0
        read = resolve_model(load_run(tmp_path / f"{stated}-{held}.toml").model)
        assert (read.mtp_layers, read.mtp_loss) == (held, 0.3 if held else 0.0)
        output = capsys.readouterr().out
        assert (f"config.json has {stated} MTP modules (num_nextn_predict_layers)" in output) == (stated != held)


@pytest.mark.parametrize(
    ("family", "keys", "named"),
    [
        ("llama", {"attention_dropout": 0.2}, "attention_dropout = 0.2"),
        ("gpt2", {"n_embd": 16, "n_layer": 2, "n_head": 2, "embd_pdrop": 0.0}, "resid_pdrop = 0.1"),
    ],
)
def test_dropout_is_refused_and_left_out_when_asked(
    family: str, keys: dict[str, Any], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = SIZES if family == "llama" else {"vocab_size": 320}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **sizes, **keys)).save_pretrained(tmp_path / "hf")
    with pytest.raises(UserError, match=rf"{named}: .*model\.dropout = 0.*--without-dropout"):
        import_(tmp_path / "hf", out=tmp_path / "run.toml", tokenizer="bytes")
    assert import_(tmp_path / "hf", out=tmp_path / "run.toml", tokenizer="bytes", without_dropout=True) == 0
    output = capsys.readouterr().out
    assert named in output
    assert "trained without" in output
    assert resolve_model(load_run(tmp_path / "run.toml").model) == resolve_model(
        ModelSection(hf=str(tmp_path / "hf"), dropout=0)
    )


def test_keys_that_nothing_reads_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES)).save_pretrained(tmp_path / "hf")
    assert import_(tmp_path / "hf", out=tmp_path / "plain.toml", tokenizer="bytes") == 0
    assert "not read" not in capsys.readouterr().out, "no key that transformers writes"
    raw = json.loads((tmp_path / "hf" / "config.json").read_text())
    more = {"attn_logit_softcapping": 50.0, "no_numbers": None, "off": False, "\x1b[31m": 1}
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**raw, **more}))
    assert import_(tmp_path / "hf", out=tmp_path / "run.toml", tokenizer="bytes") == 0
    output = capsys.readouterr().out
    assert "not read, nor known for llama: attn_logit_softcapping, '\\x1b[31m'\n" in output
