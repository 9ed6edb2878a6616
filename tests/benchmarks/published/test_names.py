"""Rows of other hands: what their keys are called, windows of attention and graphs that have a key of their own."""

import json
from pathlib import Path
from typing import Any

import pytest

from case import PublishedCase
from normalise import normalise
from row_files import read_rows

COMMON: dict[str, Any] = {
    "id": "a:0", "source": "Megatron-LM, 2026", "from_memory": False, "hardware": {"gpu": "H100-80GB-SXM", "gpus_per_node": 8},
    "n_gpus": 64, "seq_len": 8192, "global_batch": 512, "micro_batch": 1, "precision": "bf16", "recompute": "full",
    "parallel": {"tp": 1, "pp": 8, "dp": 8, "cp": 1}, "measured": {"step_time_s": 10.0}, "notes": "",
}  # fmt: skip
MLA = {
    "name": "a mixture", "layers": 16, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 128000, "glu": True, "experts": 64,
    "top_k": 6, "moe_ffn": 1408, "shared_ffn": 2816, "dense_layers": 1, "q_lora": 512, "kv_lora": 256, "qk_nope": 128,
    "qk_rope": 64, "v_head": 128,
}  # fmt: skip
HUGGING_FACE = {
    "name": "a mixture", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 16, "intermediate_size": 8192,
    "vocab_size": 128000, "glu": True, "n_routed_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408,
    "shared_ffn": 2816, "first_k_dense_replace": 1, "q_lora_rank": 512, "kv_lora_rank": 256, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip
DENSE = {"name": "dense", "layers": 16, "hidden": 2048, "heads": 16, "ffn": 8192, "vocab": 128000, "glu": True}


def case(folder: Path, model: dict[str, Any], **more: Any) -> PublishedCase:
    file = folder / "a.json"
    file.write_text(json.dumps([COMMON | {"model": model} | more]))
    (row,), _ = read_rows([file])
    found = normalise(row)
    assert isinstance(found, PublishedCase), found
    return found


def test_a_model_by_other_names_of_its_keys_is_the_same(tmp_path: Path) -> None:
    ours, theirs = case(tmp_path, MLA), case(tmp_path, HUGGING_FACE)
    assert ours.model == theirs.model
    assert ours.model.is_mla
    assert (ours.model.first_dense_layers, ours.model.num_shared_experts) == (1, 2)


@pytest.mark.parametrize("name", ["dense_layers", "first_dense", "first_dense_layers", "num_dense_layers"])
def test_dense_blocks_by_their_names(name: str, tmp_path: Path) -> None:
    model = {key: value for key, value in MLA.items() if key != "dense_layers"}
    assert case(tmp_path, model | {name: 3}).model.first_dense_layers == 3


def test_experts_in_every_other_block(tmp_path: Path) -> None:
    assert case(tmp_path, MLA | {"interleave_moe_layer_step": 2}).model.moe_period == 2


@pytest.mark.parametrize(
    ("model", "more", "share"),
    [
        ({}, {}, 1.0),
        ({"sliding_window": 8192}, {}, 1.0),
        ({"sliding_window": 2048}, {}, 1 - (1 - 2048 / 8192) ** 2),
        ({"sliding_window": 2048, "full_attention_layers": 4}, {}, 1 - 0.75 * (1 - 2048 / 8192) ** 2),
        ({"sliding_window": 2048, "full_attention_layers": [3, 7, 11, 15]}, {}, 1 - 0.75 * (1 - 2048 / 8192) ** 2),
        ({}, {"attention_window": 2048}, 1 - (1 - 2048 / 8192) ** 2),
        ({"name": "GPT-OSS of a kind"}, {"attention_window": 128}, 1 - 0.5 * (1 - 128 / 8192) ** 2),
    ],
)
def test_windows_are_those_that_the_row_states(
    model: dict[str, Any], more: dict[str, Any], share: float, tmp_path: Path
) -> None:
    assert case(tmp_path, DENSE | model, **more).attention_share == pytest.approx(share)


@pytest.mark.parametrize(
    ("graphs", "graphed"),
    [(None, False), (True, True), ("full", True), ("partial", False), ("none", False), (False, False)],
)
def test_graphs_of_kernels_under_a_key_of_their_own(graphs: object, graphed: bool, tmp_path: Path) -> None:
    assert case(tmp_path, DENSE, cuda_graphs=graphs).kernels.launches == ("graph" if graphed else None)


@pytest.mark.parametrize(
    ("measured", "kind", "size"),
    [
        ({"peak_mem_gb": 60.0, "mem_kind": "max reserved, by the log"}, "reserved", 60e9),
        ({"mem_gb": 60.0, "mem_kind": "HBM peak, GiB"}, "unstated", 60 * 2.0**30),
        ({"mem_gb": 60.0, "mem_kind": "nvidia-smi peak"}, "device", 60e9),
        ({"peak_mem_gib": 60.0, "memory_kind": "max_memory_allocated"}, "allocated", 60 * 2.0**30),
        ({"peak_reserved_gib": 61.0, "peak_mem_gib": 60.0}, "reserved", 61 * 2.0**30),
    ],
)
def test_what_was_counted_by_the_words_for_it(measured: dict[str, Any], kind: str, size: float, tmp_path: Path) -> None:
    found = case(tmp_path, DENSE, source="torchtitan, 2026", measured={"step_time_s": 1.0} | measured).measured
    assert (found.memory_kind, found.memory_bytes) == (kind, size)
