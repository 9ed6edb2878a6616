"""Ways in which a folder may hold the same weights, and parts of them that are read alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fourfold.checkpoint import WeightFolder
from fourfold.checkpoint.huggingface import WeightFile, write_weights
from fourfold.checkpoint.tensor_file import TensorEntry
from fourfold.config import ModelConfig, UserError
from fourfold.huggingface.tensors import written_forms
from fourfold.model.spec import build_segments
from tests.checkpoint.huggingface_models import MODELS, named_tensors, write


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
        weights.check_against(model)
        assert all(torch.equal(weights.get(n), tensor) for n, tensor in tensors.items()), form


def _on_disk(folder: Path, model: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the files, in the form of a family."""
    folder.mkdir()
    shapes = {spec.name: spec.shape for segment in build_segments(model) for spec in segment.parameters}
    entries = {
        piece.name: TensorEntry(piece.name, torch.float32, piece.shape)
        for form in written_forms(shapes, model.family).values()
        for piece in form
    }
    write_weights(folder, model, [WeightFile("a.safetensors", tuple(entries.values()))], tensors.items())
    return dict(load_file(folder / "a.safetensors"))


def test_the_names_of_openais_gpt2(tmp_path: Path) -> None:
    model = MODELS["gpt2"]
    tensors = named_tensors(model)
    content = {n.removeprefix("transformer."): t for n, t in _on_disk(tmp_path / "x", model, tensors).items()}
    weights = _copy(tmp_path, "openai", {**content, "h.0.attn.bias": torch.ones(1, 1, 64, 64).tril()})
    weights.check_against(model)
    assert all(torch.equal(weights.get(n), tensor) for n, tensor in tensors.items())


def test_modules_of_multi_token_prediction_are_passed_over(tmp_path: Path) -> None:
    model = MODELS["deepseek_v3"]
    content = _on_disk(tmp_path / "x", model, named_tensors(model))
    more = {
        "model.layers.3.eh_proj.weight": torch.ones(1),
        "model.layers.3.mlp.experts.0.up_proj.weight": torch.ones(1),
    }
    _copy(tmp_path, "mtp", {**content, **more}).check_against(model)
    with pytest.raises(UserError, match=r"unexpected: model\.layers\.4\.mlp"):
        _copy(tmp_path, "no", {**content, "model.layers.4.mlp.x": torch.ones(1)}).check_against(model)


def test_an_expert_that_is_missing_is_named(tmp_path: Path) -> None:
    model = MODELS["mixtral"]
    content = _on_disk(tmp_path / "x", model, named_tensors(model))
    del content["model.layers.1.block_sparse_moe.experts.2.w3.weight"]
    with pytest.raises(UserError, match=r"missing: model\.layers\.1\.block_sparse_moe\.experts\.2\.w3\.weight; build"):
        _copy(tmp_path, "less", content).check_against(model)


def test_a_range_or_box_of_stacked_experts_reads_no_other_expert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS["deepseek_v3"]
    tensors = named_tensors(model)
    write(tmp_path / "out", model, tensors)
    weights = WeightFolder(tmp_path / "out")
    weights.check_against(model)
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
    weights.check_against(model)
    for key, tensor in tensors.items():
        box = tuple((size // 3, size - size // 4) for size in tensor.shape)
        part = tensor[tuple(slice(*interval) for interval in box)].flatten()
        assert torch.equal(weights.box(key, box), part)
        assert torch.equal(weights.box(key, box, 1, part.numel() - 1), part[1:-1])
