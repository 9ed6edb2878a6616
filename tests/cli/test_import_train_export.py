"""A folder of another trainer goes through import, a step and export, and comes out with all that it said."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from tests.checkpoint.test_carried import GENERATION, IDS, original
from tests.support.config_mutations import write_base

pytestmark = pytest.mark.rest


def test_ids_templates_and_files_survive_though_the_folder_is_gone_by_then(here: Path, fourfold: Callable) -> None:
    original(here / "hf")
    kept = {
        path.name: path.read_bytes()
        for path in (here / "hf").iterdir()
        if path.is_file() and path.name not in ("config.json", "model.safetensors")
    }
    assert fourfold("import", "hf", "--out", "more.toml", "--corpus", "texts").code == 0
    keys = ("batch.global_sequences=2", "batch.sequence_length=16", "batch.steps=1", "run.device=cpu")
    assert fourfold("train", "more.toml", *keys, "--ranks", "1").code == 0
    shutil.rmtree(here / "hf")
    result = fourfold("export", "runs/more", "--out", "out")
    assert (result.code, "warning" in result.out) == (0, False)
    assert {name: (here / "out" / name).read_bytes() for name in kept} == kept
    assert json.loads((here / "out" / "generation_config.json").read_text()) == GENERATION
    stated = json.loads((here / "out" / "config.json").read_text())
    assert {**stated, **IDS, "custom_note": "kept"} == stated
    shutil.rmtree(here / "runs" / "more" / "origin")
    result = fourfold("export", "runs/more", "--out", "without")
    assert result.code == 0
    assert "is gone or has no config.json" in result.out


def test_routers_begin_with_their_balancing_biases(here: Path, fourfold: Callable) -> None:
    """A step's loss is that of transformers with the biases, and not the one without."""
    write_base("deepseek_v3", here / "hf")
    rows, length = 4, 32
    text = "".join(chr(97 + (7 * i * i + i) % 26) for i in range(rows * length + 2))  # the last byte is for validation
    (here / "text.txt").write_text(text)
    ids = torch.tensor(list(text.encode()))
    inputs, targets = (torch.stack([ids[r * length + k :][:length] for r in range(rows)]) for k in (0, 1))
    losses = []
    for scale in (0.0, 1.0):
        tensors = load_file(here / "hf" / "model.safetensors")
        torch.manual_seed(1)
        biases = {n: torch.randn(v.shape) * scale for n, v in tensors.items() if n.endswith("e_score_correction_bias")}
        save_file({**tensors, **biases}, here / "hf" / "model.safetensors", metadata={"format": "pt"})
        theirs = AutoModelForCausalLM.from_pretrained(
            here / "hf", dtype=torch.float64, attn_implementation="sdpa", experts_implementation="eager"
        )
        expected = cross_entropy(theirs(inputs).logits.flatten(0, 1), targets.flatten()).item()
        imported = ("import", "hf", "--out", f"{scale}.toml", "--corpus", "text.txt", "--tokenizer", "bytes")
        assert fourfold(*imported).code == 0
        keys = (f"batch.global_sequences={rows}", f"batch.sequence_length={length}", "batch.steps=1", "run.device=cpu")
        more = ("precision.compute=fp64", "data.validation_every=1000000", "--ranks", "1", "--out", f"out-{scale}")
        assert fourfold("train", f"{scale}.toml", *keys, *more).code == 0
        found = json.loads((here / f"out-{scale}" / "metrics.jsonl").read_text().splitlines()[0])["loss"]
        assert found == pytest.approx(expected, rel=1e-6)
        losses.append(found)
    assert abs(losses[0] - losses[1]) > 1e-3
