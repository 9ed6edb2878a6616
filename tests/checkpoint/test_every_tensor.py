"""Every tensor of a folder is used: another value of it gives the loss that transformers then has; without it, it is named."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fourfold.checkpoint import WeightFolder
from fourfold.config import ModelConfig, ModelSection, UserError
from fourfold.huggingface import resolve_model
from fourfold.model.layers import reads_in_order
from tests.support.config_mutations import exact_norms, imported_loss, loss_of_transformers, write_base
from tests.support.config_values import BASES

LENGTH = 16
FAMILY_OF = {family: base for base, (family, _) in reversed(BASES.items())}


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with exact_norms():
        yield


@pytest.mark.parametrize(
    "base", [pytest.param(b, marks=[] if b in ("gpt2", "mixtral") else pytest.mark.rest) for b in FAMILY_OF.values()]
)
def test_a_change_of_a_tensor_of_every_kind_is_seen(base: str, tmp_path: Path) -> None:
    check_changes(base, tmp_path, ends_of_kinds)


@pytest.mark.sweep
@pytest.mark.parametrize("base", FAMILY_OF.values())
def test_a_change_of_any_tensor_is_seen(base: str, tmp_path: Path) -> None:
    check_changes(base, tmp_path, set)


def ends_of_kinds(names: Iterable[str]) -> set[str]:
    """The first and the last of the names that differ in numbers alone: of layers, of experts."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(re.sub(r"\d+", "*", name), []).append(name)
    return {name for kind in kinds.values() for name in (kind[0], kind[-1])}


def check_changes(base: str, tmp_path: Path, some: Callable[[Iterable[str]], set[str]]) -> None:
    write_base(base, tmp_path)
    model = resolve_model(ModelSection(hf=str(tmp_path), mtp_layers=0))
    path = tmp_path / "model.safetensors"
    in_fp32 = model.num_experts or reads_in_order(model)  # transformers routes tokens, and makes recurrences, in it
    tensors = load_file(path)
    before = imported_loss(tmp_path, model, LENGTH)
    unseen, changed = [], some(tensors)
    for name, value in tensors.items():
        if name not in changed or name.endswith("e_score_correction_bias"):  # tests/cli/test_import_train_export.py
            continue
        save_file({**tensors, name: value * 1.25 + 0.125}, path, metadata={"format": "pt"})
        ours, theirs = imported_loss(tmp_path, model, LENGTH), loss_of_transformers(tmp_path, LENGTH)
        assert ours == pytest.approx(theirs, rel=2e-6 if in_fp32 else 1e-9), name
        unseen += [name] if ours == before else []
        save_file({key: each for key, each in tensors.items() if key != name}, path)
        check_names(tmp_path, model, released(base, name, tensors))
    assert all(name.endswith(("k_proj.bias", "experts.down_proj.weight")) or ".experts." in name for name in unseen), (
        "scores do not depend on the keys' bias, and an expert may get no token"
    )
    assert len(unseen) < len(changed) / 2
    save_file({**tensors, "model.extra.weight": torch.ones(2)}, path)
    check_names(tmp_path, model, "unexpected: model.extra.weight")


def released(base: str, name: str, tensors: Mapping[str, Tensor]) -> str:
    """The name in the released folder of a tensor that transformers saves under another one."""
    layer = name.partition("feedforward_layer_norm")[0]
    if base == "olmo_hybrid" and f"{layer}self_attn.q_proj.weight" in tensors:  # a layer of attention, as in OLMo-2
        return name.replace("feedforward_layer_norm", "post_attention_layernorm")
    is_dense = "experts" not in name and ".gate." not in name
    return name.replace("block_sparse_moe", "mlp") if base == "kimi_linear" and is_dense else name


def check_names(folder: Path, model: ModelConfig, words: str) -> None:
    with pytest.raises(UserError) as caught:
        WeightFolder(folder).check_against(model)
    assert words in str(caught.value)
