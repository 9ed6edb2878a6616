"""Token ids, templates and other keys of a folder are in the one that its model is exported to: transformers reads the same."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from fourfold.checkpoint import KEPT, WeightFolder, keep_origin, read_origin, write_huggingface
from fourfold.config import ModelConfig, ModelSection, UserError
from fourfold.huggingface import resolve_model
from fourfold.model.spec import build_segments
from tests.support.config_mutations import write_base
from tests.support.config_values import BASES

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn>", "<end_of_turn>"]
TEMPLATE = "{% for m in messages %}<turn>{{ m['content'] }}<end_of_turn>{% endfor %}"
GENERATION = {"bos_token_id": 2, "eos_token_id": [1, 5], "pad_token_id": 0, "temperature": 0.7, "do_sample": True}
IDS = {"bos_token_id": 2, "eos_token_id": [1, 5], "pad_token_id": 0}
WRITTEN = ("architectures", "dtype", "_name_or_path", "transformers_version")
"""Keys of transformers that are of the file, not of the model."""


def tokenizer_folder(folder: Path) -> None:
    """A tokenizer of bytes that puts bos before a text, with templates, as transformers 4 and 5 hold them."""
    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = tokenizers.Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(SPECIAL)
    made.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    made.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **named, "model_max_length": 77}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "special_tokens_map.json").write_text(json.dumps(named))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text(TEMPLATE + "x")
    (folder / "tokenizer.model").write_bytes(b"\x00\xff binary")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))


def original(folder: Path, base: str = "llama", **keys: Any) -> ModelConfig:
    write_base(base, folder)
    tokenizer_folder(folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, **IDS, "custom_note": "kept", **keys}))
    return resolve_model(ModelSection(hf=str(folder), mtp_layers=0))


def exported(source: Path, model: ModelConfig, folder: Path, **options: Any) -> Path:
    weights = WeightFolder(source)
    weights.check_against(resolve_model(ModelSection(hf=str(source), mtp_layers=0)))
    tensors = ((spec.name, weights.get(spec.name)) for s in build_segments(model) for spec in s.parameters)
    options = {"tokenizer_file": source / "tokenizer.json", "eos": 1, "origin": read_origin(source), **options}
    write_huggingface(folder, model, tensors, dtype="fp64", **options)
    return folder


def theirs(folder: Path) -> dict[str, Any]:
    config = AutoConfig.from_pretrained(folder).to_dict()
    return {key: value for key, value in config.items() if key not in WRITTEN}


@pytest.mark.parametrize("base", BASES)
def test_transformers_reads_the_same_configuration(base: str, tmp_path: Path) -> None:
    model = original(tmp_path / "in", base, n_ctx=64)
    out = exported(tmp_path / "in", model, tmp_path / "out")
    before, after = theirs(tmp_path / "in"), theirs(out)
    if "num_nextn_predict_layers" in before:  # it states a module and has no tensors of one
        assert (before.pop("num_nextn_predict_layers"), after["num_nextn_predict_layers"]) == (1, 0)
    assert {key: after.get(key, "none") for key in before} == before
    assert after["custom_note"] == "kept"
    assert resolve_model(ModelSection(hf=str(out))) == model


def test_kimi_k2_is_written_as_the_deepseek_v3_that_it_is(tmp_path: Path) -> None:
    """The name needs Python of the folder, which is not carried; transformers knows no class of it."""
    more = {"model_type": "kimi_k2", "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}}
    model = original(tmp_path / "in", "deepseek_v3 yarn", **more)
    out = exported(tmp_path / "in", model, tmp_path / "out")
    written = json.loads((out / "config.json").read_text())
    assert (written["model_type"], "auto_map" in written) == ("deepseek_v3", False)
    assert AutoConfig.from_pretrained(out).model_type == "deepseek_v3"
    assert resolve_model(ModelSection(hf=str(out))) == model


def test_the_form_of_transformers_4_stays(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "finetuned": True}
    original(tmp_path / "in")
    raw = json.loads((tmp_path / "in" / "config.json").read_text())
    del raw["rope_parameters"]
    raw.update(rope_theta=5e5, rope_scaling=scaling)
    (tmp_path / "in" / "config.json").write_text(json.dumps(raw))
    model = resolve_model(ModelSection(hf=str(tmp_path / "in")))
    out = exported(tmp_path / "in", model, tmp_path / "out")
    written = json.loads((out / "config.json").read_text())
    assert (written["rope_theta"], written["rope_scaling"]) == (5e5, scaling)
    assert resolve_model(ModelSection(hf=str(out))) == model
    other = replace(model, rope_theta=1e6, yarn_scaling=None)
    again = exported(tmp_path / "in", other, tmp_path / "other")
    assert resolve_model(ModelSection(hf=str(again))) == other
    assert AutoConfig.from_pretrained(again).rope_parameters == {"rope_type": "default", "rope_theta": 1e6}


def test_files_of_the_tokenizer_stay_byte_for_byte(tmp_path: Path) -> None:
    model = original(tmp_path / "in")
    out = exported(tmp_path / "in", model, tmp_path / "out")
    names = [p.relative_to(tmp_path / "in") for p in (tmp_path / "in").rglob("*") if p.is_file()]
    kept = [name for name in names if name.name not in ("config.json", "model.safetensors")]
    assert len(kept) == 7
    assert all((out / name).read_bytes() == (tmp_path / "in" / name).read_bytes() for name in kept)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer("a")["input_ids"][0] == 2
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "<turn>hi<end_of_turn>"
    assert GenerationConfig.from_pretrained(out).eos_token_id == [1, 5]


@pytest.mark.parametrize(("eos", "kept"), [(1, [1, 5]), (5, [1, 5]), (4, 4), (None, [1, 5])])
def test_the_end_of_text_of_the_run_is_one_of_the_folders_or_takes_their_place(
    eos: int | None, kept: Any, tmp_path: Path
) -> None:
    model = original(tmp_path / "in")
    out = exported(tmp_path / "in", model, tmp_path / "out", eos=eos)
    for name in ("config.json", "generation_config.json"):
        stated = json.loads((out / name).read_text())
        assert (stated["bos_token_id"], stated["eos_token_id"], stated["pad_token_id"]) == (2, kept, 0)
    assert json.loads((out / "generation_config.json").read_text())["temperature"] == 0.7


def test_another_tokenizer_takes_nothing_of_the_folders(tmp_path: Path) -> None:
    """Another tokenizer's ids would be other tokens."""
    model = original(tmp_path / "in")
    document = json.loads((tmp_path / "in" / "tokenizer.json").read_text())
    document["added_tokens"][4]["content"] = "<other>"
    (tmp_path / "other.json").write_text(json.dumps(document))
    out = exported(tmp_path / "in", model, tmp_path / "out", tokenizer_file=tmp_path / "other.json", eos=5)
    stated = json.loads((out / "config.json").read_text())
    assert (stated["bos_token_id"], stated["eos_token_id"], stated.get("pad_token_id")) == (5, 5, None)
    assert not (out / "chat_template.jinja").exists()
    assert json.loads((out / "generation_config.json").read_text()) == {"bos_token_id": 5, "eos_token_id": 5}
    assert stated["custom_note"] == "kept"


def test_changed_dimensions_are_written_and_the_rest_is_kept(tmp_path: Path) -> None:
    model = replace(original(tmp_path / "in", "qwen2 windowed"), max_position=512, sliding_window=None)
    after = theirs(exported(tmp_path / "in", model, tmp_path / "out"))
    assert (after["max_position_embeddings"], after["sliding_window"]) == (512, None)
    assert after["layer_types"] == ["full_attention"] * 2
    assert after["custom_note"] == "kept"


def test_a_model_of_another_family_takes_the_ids_alone(tmp_path: Path) -> None:
    original(tmp_path / "in")
    model = resolve_model(ModelSection(hf=str(tmp_path / "in"), family="mistral"))
    assert model.family == "mistral"
    out = exported(tmp_path / "in", model, tmp_path / "out")
    stated = json.loads((out / "config.json").read_text())
    assert (stated["model_type"], stated["pad_token_id"], "custom_note" in stated) == ("mistral", 0, False)


def test_a_run_keeps_what_its_folder_had(tmp_path: Path) -> None:
    """The folder may be gone when the run is exported."""
    model = original(tmp_path / "in")
    direct = exported(tmp_path / "in", model, tmp_path / "direct")
    (tmp_path / "run").mkdir()
    assert keep_origin(tmp_path / "in", tmp_path / "run") is None
    kept = exported(tmp_path / "in", model, tmp_path / "kept", origin=read_origin(tmp_path / "run" / KEPT))
    assert {p.relative_to(kept): p.read_bytes() for p in kept.rglob("*") if p.is_file()} == {
        p.relative_to(direct): p.read_bytes() for p in direct.rglob("*") if p.is_file()
    }
    (tmp_path / "in" / "config.json").write_text("{}")
    assert keep_origin(tmp_path / "in", tmp_path / "run") is None
    assert "custom_note" in (tmp_path / "run" / KEPT / "config.json").read_text(), "the first stays"
    assert keep_origin(tmp_path / "none", tmp_path / "other") is None
    assert not (tmp_path / "other").exists()


def test_a_run_goes_on_where_nothing_can_be_kept(tmp_path: Path) -> None:
    original(tmp_path / "in")
    (tmp_path / "run").write_text("a file")
    assert "are not kept for an export" in str(keep_origin(tmp_path / "in", tmp_path / "run"))


def test_folders_without_and_with_broken_files(tmp_path: Path) -> None:
    assert read_origin(tmp_path / "gone") is None
    original(tmp_path / "in")
    (tmp_path / "in" / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match="which the weights came from, cannot be read"):
        read_origin(tmp_path / "in")
