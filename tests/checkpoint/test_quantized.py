"""Matrices in fp8 are read as value x scale of their block; others that are quantized are refused with a cure."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from fourfold.checkpoint import WeightFolder
from fourfold.config import ModelConfig, ModelSection, UserError
from fourfold.huggingface import resolve_model
from tests.checkpoint.huggingface_models import MODELS, STATED, named_tensors, write


def quantized(folder: Path, model: ModelConfig, block: tuple[int, int]) -> dict[str, Tensor]:
    """Writes a folder whose matrices in blocks are fp8; returns what each then is, element by element."""
    write(folder, model, named_tensors(model))
    tensors, expected = {}, {}
    for name, value in load_file(folder / "model.safetensors").items():
        tensors[name] = expected[name] = value
        if value.dim() == 2 and (".layers." in name or ".h." in name):
            rows, columns = value.shape
            scale = torch.rand(-(-rows // block[0]), -(-columns // block[1])) + 0.5
            tensors[name] = value.to(torch.float8_e4m3fn)
            tensors[f"{name}_scale_inv"] = scale
            by_hand = [
                [float(tensors[name][i, j]) * float(scale[i // block[0], j // block[1]]) for j in range(columns)]
                for i in range(rows)
            ]
            expected[name] = torch.tensor(by_hand)
    save_file(tensors, folder / "model.safetensors")
    _state(folder, {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(block)})
    return expected


def _state(folder: Path, quantization: dict[str, Any]) -> None:
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "quantization_config": quantization}))


@pytest.mark.parametrize("name", ["llama", "phi3", "gpt2", "deepseek_v3", "glm4_moe", "deepseek_v3 of Kimi-K2"])
def test_any_part_is_value_times_scale(name: str, tmp_path: Path) -> None:
    """Phi-3 fuses matrices and GPT-2 transposes them, so that parts begin within a block and cross it."""
    model = MODELS[name]
    on_disk = quantized(tmp_path, model, (5, 7))
    weights = WeightFolder(tmp_path)
    (note,) = weights.check_against(model)
    assert "quantization_config: 'fp8'" in note
    assert "value x scale_inv" in note
    write(tmp_path / "plain", model, named_tensors(model))
    save_file({name: tensor.contiguous() for name, tensor in on_disk.items()}, tmp_path / "plain" / "model.safetensors")
    plain = WeightFolder(tmp_path / "plain")
    assert plain.check_against(model) == ()
    for parameter in named_tensors(model):
        wanted = plain.get(parameter)
        assert torch.equal(weights.get(parameter), wanted), parameter
        part = (size := wanted.numel()) // 3, size - 1
        assert torch.equal(weights.range(parameter, *part), plain.range(parameter, *part)), parameter


@pytest.mark.parametrize("scales", [torch.float32, torch.bfloat16, torch.float8_e8m0fnu], ids=str)
@pytest.mark.parametrize("name", ["llama", "deepseek_v3 of Kimi-K2"])
def test_values_are_those_of_transformers_to_the_bit(name: str, scales: torch.dtype, tmp_path: Path) -> None:
    """The formula there wants sizes that blocks divide."""
    model = MODELS[name]
    quantized(tmp_path, model, (2, 2))
    tensors = load_file(tmp_path / "model.safetensors")
    rounded = {key: value.to(scales) for key, value in tensors.items() if key.endswith("_scale_inv")}
    save_file({**tensors, **rounded}, tmp_path / "model.safetensors")
    weights, convert = WeightFolder(tmp_path), Fp8Dequantize(None)._dequantize_one
    weights.check_against(model)
    for key, scale in rounded.items():
        matrix = key.removesuffix("_scale_inv")
        expected = convert(tensors[matrix], scale, torch.float32)
        assert torch.equal(weights.range_on_disk(matrix, 0, expected.numel()).view(expected.shape), expected), matrix
    assert len(rounded) > 2 * model.num_layers


@pytest.mark.parametrize("modules", [0, 1])
def test_an_mtp_module_in_fp8(modules: int, tmp_path: Path) -> None:
    """DeepSeek-V3 is released so: read where the model has it, named where it has not."""
    model = resolve_model(ModelSection(**{**STATED["deepseek_v3"], "mtp_layers": 1}))
    on_disk = quantized(tmp_path, model, (4, 4))
    model = replace(model, mtp_layers=modules)
    weights = WeightFolder(tmp_path)
    notes = weights.check_against(model)
    assert len(notes) == 2 - modules
    assert "fp8" in notes[-1]
    name = f"model.layers.{model.num_layers - 1 + modules}.self_attn.o_proj.weight"
    assert torch.equal(weights.get(name), on_disk[name])


@pytest.mark.parametrize("damage", ["no scale", "scale of another shape", "another block", "int8"])
def test_what_cannot_be_read_is_refused_with_a_cure(damage: str, tmp_path: Path) -> None:
    model = MODELS["llama"]
    quantized(tmp_path, model, (16, 16))
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    if damage == "no scale":
        del tensors[f"{name}_scale_inv"]
    elif damage == "int8":
        tensors[name] = torch.ones(tensors[name].shape, dtype=torch.int8)
    elif damage == "another block":
        _state(tmp_path, {"quant_method": "fp8", "weight_block_size": [16, 15]})
    else:
        tensors[f"{name}_scale_inv"] = torch.ones(1, 1)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError) as caught:
        WeightFolder(tmp_path).check_against(model)
    kind = "I8" if damage == "int8" else "F8_E4M3"
    for words in (f" as {kind}", "quantization_config", "'fp8'", "bf16", "dequantize().save_pretrained"):
        assert words in str(caught.value)
    assert "model.hf" not in str(caught.value)


def test_tensors_packed_by_another_method_are_named_with_it(tmp_path: Path) -> None:
    model = MODELS["llama"]
    write(tmp_path, model, named_tensors(model))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.qweight"] = torch.ones(4, 48, dtype=torch.int32)
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    _state(tmp_path, {"quant_method": "gptq", "bits": 4})
    with pytest.raises(UserError, match=r"missing: .*up_proj\.weight.*quant_method = 'gptq'.*bf16"):
        WeightFolder(tmp_path).check_against(model)


def test_gpt_oss_as_released_is_refused_with_its_own_cure(tmp_path: Path) -> None:
    model = MODELS["gpt_oss"]
    write(tmp_path, model, named_tensors(model))
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if name.endswith("experts.down_proj")]:
        shape = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = torch.zeros(shape[0], shape[2], shape[1] // 2, dtype=torch.uint8)
        tensors[f"{name}_scales"] = torch.zeros(shape[0], shape[2], 1, dtype=torch.uint8)
    save_file(tensors, tmp_path / "model.safetensors")
    _state(tmp_path, {"quant_method": "mxfp4"})
    with pytest.raises(UserError) as error:
        WeightFolder(tmp_path).check_against(model)
    for words in ("down_proj_blocks", "'mxfp4'", "in bf16", "quantization_config=Mxfp4Config(dequantize=True)"):
        assert words in str(error.value)
