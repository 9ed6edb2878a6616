"""`fourfold import` of a folder with experts: a run file that resolves to the folder's model and finds its weights whole."""

from pathlib import Path

import pytest
import tokenizers
from transformers import AutoConfig, AutoModelForCausalLM

from fourfold.checkpoint import WeightFolder
from fourfold.cli.huggingface import import_
from fourfold.config import load_run
from fourfold.huggingface import resolve_model
from fourfold.model.spec import build_segments


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
    WeightFolder(Path(run.model.initial)).check_against(build_segments(model))


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
