"""Folders that cannot be read or written are refused, in one message that names the file and what to do."""

import errno
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fourfold.checkpoint import WeightFolder, folders, huggingface, write_huggingface
from fourfold.config import ModelConfig, RunFailure, UserError
from fourfold.model.spec import build_segments
from tests.checkpoint.ranks import MODEL, entries

INDEX = "model.safetensors.index.json"


def tensors_of(model: ModelConfig) -> dict[str, Tensor]:
    return {spec.name: torch.ones(spec.shape) for segment in build_segments(model) for spec in segment.parameters}


def write(folder: Path, model: ModelConfig = MODEL, tensors: Any = None, **options: Any) -> None:
    options = {"dtype": "fp32", "tokenizer_file": None, "eos": None, **options}
    write_huggingface(folder, model, (tensors or tensors_of(model)).items(), **options)


@pytest.fixture
def single(tmp_path: Path) -> Path:
    write(tmp_path / "single")
    return tmp_path / "single"


@pytest.fixture
def several(tmp_path: Path) -> Path:
    write(tmp_path / "several", max_shard_bytes=4000)
    assert len(list((tmp_path / "several").glob("*.safetensors"))) > 3
    return tmp_path / "several"


def check_refused(folder: Path, *words: str, kind: type[UserError] = RunFailure) -> None:
    with pytest.raises(kind) as caught:
        WeightFolder(folder)
    for word in (str(folder), *words):
        assert word in str(caught.value), f"{word!r} not in {caught.value}"


@pytest.mark.parametrize("length", [0, 5, 200, -100])
def test_a_truncated_file(single: Path, length: int) -> None:
    path = single / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    check_refused(single, "model.safetensors", "truncated or corrupt", f"download or export {single} again")


def test_a_truncated_file_among_several(several: Path) -> None:
    path = sorted(several.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-1])
    check_refused(several, path.name, "truncated")


def test_a_file_that_the_index_names_is_missing(several: Path) -> None:
    path = sorted(several.glob("*.safetensors"))[1]
    path.unlink()
    check_refused(several, path.name, "missing", INDEX)


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".hidden.safetensors", "", 3, None, ["a"]],
)
def test_an_index_that_leads_elsewhere(several: Path, name: Any) -> None:
    save_file({"a": torch.ones(1)}, several.parent / "outside.safetensors")
    document = json.loads((several / INDEX).read_text())
    document["weight_map"]["model.norm.weight"] = name
    (several / INDEX).write_text(json.dumps(document))
    check_refused(several, INDEX, "not a plain file name")


def test_an_index_that_names_the_wrong_file(several: Path) -> None:
    document = json.loads((several / INDEX).read_text())
    document["weight_map"]["model.norm.weight"] = document["weight_map"]["model.embed_tokens.weight"]
    (several / INDEX).write_text(json.dumps(document))
    check_refused(several, "lacks model.norm.weight")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"weight_map": 3}', "[" * 100_000])
def test_an_index_that_is_none(several: Path, text: str) -> None:
    (several / INDEX).write_text(text)
    check_refused(several, INDEX)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    check_refused(tmp_path / "absent", "is not a folder", kind=UserError)
    check_refused(tmp_path, "holds neither", kind=UserError)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    check_refused(tmp_path, "pytorch_model.bin", "pickle", "safe_serialization", kind=UserError)


def check_misfit(folder: Path, model: ModelConfig, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        WeightFolder(folder).check_against(model)
    for word in (str(folder), *words):
        assert word in str(caught.value), f"{word!r} not in {caught.value}"


def test_weights_that_do_not_fit(single: Path) -> None:
    check_misfit(single, replace(MODEL, num_layers=3), "missing: model.layers.2.", "and 5 more")
    check_misfit(single, replace(MODEL, num_layers=1), "unexpected: model.layers.1.")
    check_misfit(single, replace(MODEL, vocab_size=40), "lm_head.weight [37, 12] instead of [40, 12]")
    both = replace(MODEL, qkv_bias=True, ffn_size=24)
    check_misfit(single, both, "missing: ", "q_proj.bias", "wrong shape: ", "gate_proj.weight", "model.hf")


def test_what_an_mtp_module_holds_is_unexpected_in_a_block(tmp_path: Path) -> None:
    """Behind the last block it is passed over."""
    last = MODEL.num_layers
    for layer in (last - 1, last):
        more = {f"model.layers.{layer}.{name}.weight": torch.ones(2) for name in ("eh_proj", "hnorm")}
        folder = tmp_path / str(layer)
        write(folder)
        save_file(tensors_of(MODEL) | more, folder / "model.safetensors")
        if layer < last:
            check_misfit(folder, MODEL, f"unexpected: model.layers.{layer}.eh_proj.weight")
        else:
            WeightFolder(folder).check_against(MODEL)


def test_tied_and_untied(tmp_path: Path, single: Path) -> None:
    tied = replace(MODEL, tie_embeddings=True)
    WeightFolder(single).check_against(tied)  # an lm_head that stands beside and is the embedding
    write(tmp_path / "tied", tied)
    assert "lm_head.weight" not in WeightFolder(tmp_path / "tied").names()
    check_misfit(tmp_path / "tied", MODEL, "missing: lm_head.weight", "model.tie_embeddings = true")


def test_weights_of_integers_are_refused(tmp_path: Path) -> None:
    tensors = tensors_of(MODEL)
    tensors["model.layers.1.mlp.down_proj.weight"] = torch.ones(12, 20, dtype=torch.int8)
    save_file(tensors, tmp_path / "model.safetensors")
    check_misfit(tmp_path, MODEL, "number format", "model.layers.1.mlp.down_proj.weight as I8")


def test_half_precision_is_read(tmp_path: Path) -> None:
    save_file({name: tensor.half() for name, tensor in tensors_of(MODEL).items()}, tmp_path / "model.safetensors")
    weights = WeightFolder(tmp_path)
    weights.check_against(MODEL)
    assert weights.get("model.norm.weight").dtype == torch.float16


def test_a_range_that_is_none(single: Path) -> None:
    with pytest.raises(ValueError, match="12 elements"):
        WeightFolder(single).range("model.norm.weight", 3, 13)


def test_nothing_is_overwritten(single: Path) -> None:
    before = entries(single)
    with pytest.raises(UserError, match="not empty and is not overwritten; name a new folder"):
        write(single)
    assert entries(single) == before
    with pytest.raises(UserError, match="is a file"):
        write(single / "config.json")


def test_an_empty_folder_and_a_new_tree_are_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    write(tmp_path / "empty")
    write(tmp_path / "new" / "tree")
    monkeypatch.chdir(tmp_path)
    write(Path("relative"))
    for name in ("empty", "new/tree", "relative"):
        WeightFolder(tmp_path / name)
    assert entries(tmp_path) == ["empty", "new", "relative"]


def test_what_a_crash_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".tmp-out").mkdir()
    (tmp_path / ".tmp-out" / "half").write_text("")
    write(tmp_path / "out")
    assert entries(tmp_path) == ["out"]


@pytest.mark.parametrize("fails", ["emit", "write_text", "require_space"])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(huggingface if fails == "emit" else folders, fails, full)
    with pytest.raises(
        RunFailure, match=r"out was not written: .*No space left on device.*needs .* kB, and .* free in"
    ):
        write(tmp_path / "out")
    assert entries(tmp_path) == []


def drop(tensors: dict[str, Tensor]) -> None:
    del tensors["model.norm.weight"]


def add(tensors: dict[str, Tensor]) -> None:
    tensors["model.extra"] = torch.ones(1)


def reshape(tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.weight"] = torch.ones(13)


@pytest.mark.parametrize(
    ("change", "word"), [(drop, "not given"), (add, "no parameter of the model"), (reshape, "has shape")]
)
def test_tensors_must_be_those_of_the_model(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], None], word: str
) -> None:
    tensors = tensors_of(MODEL)
    change(tensors)
    with pytest.raises(ValueError, match=word):
        write(tmp_path / "out", tensors=tensors)
    assert entries(tmp_path) == []


def test_a_source_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def source() -> Iterator[tuple[str, Tensor]]:
        yield "model.norm.weight", torch.ones(12)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_huggingface(tmp_path / "out", MODEL, source(), dtype="fp32", tokenizer_file=None, eos=None)
    assert entries(tmp_path) == []


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"model": {"vocab": 3}}'])
def test_a_tokenizer_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer"):
        write(tmp_path / "out", tokenizer_file=tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match=r"absent\.json cannot be read"):
        write(tmp_path / "out", tokenizer_file=tmp_path / "absent.json")


def test_an_end_of_text_beyond_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": [["a", 0.0], ["b", -1.0]]}}')
    with pytest.raises(UserError, match="eos = 7 is no token"):
        write(tmp_path / "out", tokenizer_file=tmp_path / "tokenizer.json", eos=7)


def test_a_number_format_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dtype = 'int8' is unknown; allowed: fp64, fp32, bf16"):
        write(tmp_path / "out", dtype="int8")
