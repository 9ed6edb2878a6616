"""A folder of another trainer goes through import, a step and export, and comes out with all that it said."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.test_carried import GENERATION, IDS, original

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
