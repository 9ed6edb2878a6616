"""A damaged or foreign checkpoint is refused, in one message that names the file and what to do, before anything is copied."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fourfold.checkpoint import DamagedCheckpoint, load_checkpoint, read_manifest, read_parameters
from fourfold.checkpoint.folders import step_of
from fourfold.checkpoint.manifest import VERSION, _digest
from fourfold.checkpoint.saved_state import can_be_read
from fourfold.config import FinalFailure, RunFailure
from tests.checkpoint.ranks import MODEL, Run, entries

FILE = "rank-00001.safetensors"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    Run(2, seed=1).save(tmp_path, 1)
    Run(2, seed=2).save(tmp_path, 2)
    return tmp_path / "step-000002"


def check_refused(checkpoint: Path, *words: str, run: Run | None = None, rank: int = 1, **kwargs: Any) -> str:
    shards = (run or Run(2)).shards(rank, empty=True, **kwargs)
    with pytest.raises(RunFailure) as caught:
        load_checkpoint(checkpoint, shards)
    message = str(caught.value)
    for word in (str(checkpoint), *words):
        assert word in message, f"{word!r} not in {message}"
    for shard in shards.values():
        assert all(torch.isnan(tensor).all() for tensor in shard.tensors.values()), "copied before all was checked"
    return message


def damage_bit(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 4
    path.write_bytes(data)


def forge(checkpoint: Path, change: Callable[[Any], None]) -> None:
    """Edits the manifest and signs it again, as someone who means it would."""
    path = checkpoint / "manifest.json"
    document = json.loads(path.read_text())
    del document["sha256"]
    change(document)
    path.write_text(json.dumps({**document, "sha256": _digest(document)}))


def more_than_half(manifest: Any) -> int:
    """A number of elements that a file cannot hold in any format, though it has more bytes than that."""
    return int(manifest["files"][FILE]["size_bytes"] // 2 + 1)


def part(manifest: Any) -> Any:
    """The one part of unit b0."""
    return manifest["units"]["b0"]["parts"][""]


@pytest.mark.parametrize("position", [0, 20, 3000, -1])
def test_a_flipped_bit(saved: Path, position: int) -> None:
    damage_bit(saved / FILE, position)
    check_refused(saved, FILE, "corrupt", f"delete the folder {saved} to resume from step-000001")
    with pytest.raises(RunFailure, match="corrupt"):
        read_parameters(saved)


def test_the_first_checkpoint_has_none_before_it(tmp_path: Path) -> None:
    Run(2).save(tmp_path, 1)
    damage_bit(tmp_path / "step-000001" / FILE, 999)
    check_refused(tmp_path / "step-000001", "there is no earlier checkpoint")


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["manifest.json", "rank-00000.safetensors", FILE]),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 7),
)
def test_no_flipped_bit_changes_what_is_loaded(saved: Path, name: str, where: float, bit: int) -> None:
    """A changed file is refused, or (1e-05 written 1E-05) means the same."""
    path, untouched = saved / name, read_manifest(saved)
    data = path.read_bytes()
    changed = bytearray(data)
    changed[int(where * len(data))] ^= 1 << bit
    path.write_bytes(changed)
    try:
        for rank in range(2):
            load_checkpoint(saved, Run(2).shards(rank))
        assert name == "manifest.json"
        assert read_manifest(saved) == untouched
    except RunFailure:
        pass
    finally:
        path.write_bytes(data)


def test_a_truncated_file(saved: Path) -> None:
    data = (saved / FILE).read_bytes()
    (saved / FILE).write_bytes(data[:-100])
    check_refused(saved, FILE, f"has {len(data) - 100} bytes, not the {len(data)} saved", "step-000001")
    check_refused(saved, FILE, rank=0)  # every rank refuses, not only the one that reads it


@pytest.mark.parametrize("size", [1, 512, 4096])
def test_zeroed_blocks(saved: Path, size: int) -> None:
    """Blocks as a disk leaves them that lost what it had not yet written; in the header and the digests too."""
    data = (saved / FILE).read_bytes()
    for start in range(0, len(data), max(size, len(data) // 40)):
        block = data[start : start + size]
        if any(block):
            (saved / FILE).write_bytes(data[:start] + bytes(len(block)) + data[start + len(block) :])
            check_refused(saved, FILE, "corrupt", "step-000001")


def test_a_missing_file(saved: Path) -> None:
    (saved / FILE).unlink()
    check_refused(saved, FILE, "missing", "step-000001")


def test_a_file_of_another_save(saved: Path) -> None:
    (saved / FILE).write_bytes((saved.parent / "step-000001" / FILE).read_bytes())
    check_refused(saved, FILE, "corrupt")


def test_an_edited_manifest(saved: Path) -> None:
    path = saved / "manifest.json"
    path.write_text(path.read_text().replace('"step": 2', '"step": 3'))
    check_refused(saved, "manifest.json", "was changed after it was written")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"version": 1}', "[" * 100_000, "\ud800".encode("utf-8", "replace").decode()]
)
def test_a_manifest_that_is_none(saved: Path, text: str) -> None:
    (saved / "manifest.json").write_text(text)
    check_refused(saved, "manifest.json")


def test_a_folder_without_manifest(saved: Path) -> None:
    (saved / "manifest.json").unlink()
    check_refused(saved, "does not exist", "not a complete checkpoint")
    with pytest.raises(RunFailure, match=r"name one of those in it, for example .*step-000001"):
        read_parameters(saved.parent)


def test_a_copied_or_renamed_folder(saved: Path) -> None:
    """A folder is refused under the step of its new name, and read under a name that is no step's."""
    copy = saved.parent / "step-000900"
    shutil.copytree(saved, copy)
    check_refused(copy, "manifest.json", "is of step 2: the folder was copied or renamed to step-000900")
    copy.rename(saved.parent / "best")
    load_checkpoint(saved.parent / "best", Run(2).shards(1))
    assert step_of(saved.parent / "step-0000003") is None, "no save gives a step this name"


def test_shards_swapped_in_a_signed_manifest(saved: Path) -> None:
    forge(saved, lambda m: part(m)["shards"].reverse())
    check_refused(saved, "holds other shards", "step-000001")


def test_files_swapped_under_valid_checksums(saved: Path) -> None:
    one, other, third = saved / "rank-00000.safetensors", saved / FILE, saved / "third"
    one.rename(third), other.rename(one), third.rename(other)

    def swap(manifest: Any) -> None:
        files = manifest["files"]
        files[one.name], files[FILE] = files[FILE], files[one.name]

    forge(saved, swap)
    check_refused(saved, "holds other shards")


def test_a_file_of_another_step_under_a_valid_checksum(saved: Path) -> None:
    """The one thing that tells them apart is the step inside the file."""
    (saved / FILE).write_bytes((saved.parent / "step-000001" / FILE).read_bytes())
    other = json.loads((saved.parent / "step-000001" / "manifest.json").read_text())["files"][FILE]
    forge(saved, lambda m: m["files"].update({FILE: other}))
    check_refused(saved, "of another step")


def test_a_manifest_too_long_for_its_files_is_not_parsed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (saved / "manifest.json").read_text()
    (saved / "manifest.json").write_text(text + " " * (5 << 20))
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda data: loads(data) if len(data) < 4 << 20 else pytest.fail("parsed"))
    check_refused(saved, "manifest.json", "longer than")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["manifest.json", FILE])
def test_a_pipe_in_place_of_a_file_is_refused_without_waiting(saved: Path, name: str) -> None:
    (saved / name).unlink()
    os.mkfifo(saved / name)
    check_refused(saved, name, "step-000001")


def test_what_later_steps_left_neither_goes_nor_counts_as_kept(tmp_path: Path) -> None:
    """A copy under a high step does not push real checkpoints out."""
    Run(1).save(tmp_path, 1)
    shutil.copytree(tmp_path / "step-000001", tmp_path / "step-000900")
    for step in (2, 3):
        Run(1).save(tmp_path, step, keep=2)
    assert entries(tmp_path) == ["step-000002", "step-000003", "step-000900"]


def test_a_newer_version(saved: Path) -> None:
    forge(saved, lambda m: m.update(version=VERSION + 1))
    check_refused(saved, "newer fourfold")
    forge(saved, lambda m: m.update(version=VERSION - 1))
    check_refused(saved, "older fourfold", "delete the folder")
    with pytest.raises(FinalFailure):
        read_manifest(saved)


def test_the_advice_names_an_earlier_checkpoint_that_can_be_read(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        Run(1).save(tmp_path, step, keep=9)
    forge(tmp_path / "step-000003", lambda m: m.update(version=VERSION - 1))
    (tmp_path / "step-000002" / "manifest.json").write_text("{")
    forge(tmp_path / "step-000004", lambda m: m.update(step=9))
    with pytest.raises(DamagedCheckpoint, match="to resume from step-000001"):
        read_manifest(tmp_path / "step-000004")
    (tmp_path / "step-000001" / "manifest.json").write_text("{")
    with pytest.raises(DamagedCheckpoint, match="no earlier checkpoint can be read either"):
        read_manifest(tmp_path / "step-000004")


def test_a_look_at_a_checkpoint_tells_whether_it_can_be_read(tmp_path: Path) -> None:
    Run(1).save(tmp_path, 1)
    path, file = tmp_path / "step-000001", tmp_path / "step-000001" / "rank-00000.safetensors"
    assert can_be_read(path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert not can_be_read(path)
    assert can_be_read(path, most_bytes=0), "more than one look tells"
    file.write_bytes(data[:-1])
    assert not can_be_read(path, most_bytes=0)


@pytest.mark.parametrize(
    "name", ["../step-000001/rank-00001.safetensors", "/etc/passwd", "..", "", "a/b.safetensors", "rank-1"]
)
def test_a_file_name_that_leads_elsewhere(saved: Path, name: str) -> None:
    def lead(manifest: Any) -> None:
        manifest["files"][name] = manifest["files"].pop(FILE)
        for unit in manifest["units"].values():
            unit["parts"][""]["shards"][1] = name

    forge(saved, lead)
    check_refused(saved, "not a rank's file name")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda m: part(m).update(padded_numel=2**60), "padded_numel"),
        (lambda m: part(m).update(padded_numel=2**50), "too small"),
        (lambda m: part(m).update(padded_numel=-32), "padded_numel"),
        (lambda m: part(m).update(num_shards=0), "num_shards"),
        (lambda m: part(m).update(num_shards="2"), "num_shards"),
        (lambda m: part(m).update(shards=[FILE]), "lists 1 shards"),
        (lambda m: part(m).update(shards=[FILE, "rank-00009.safetensors"]), "not among the files"),
        (lambda m: m["units"]["b0"].update(dtypes={"master": "int8"}), "dtypes"),
        (lambda m: m["units"]["b0"].update(parts={}), "has no part"),
        (lambda m: m["units"]["b0"]["parts"].update({"../x": part(m)}), "not a part's name"),
        (lambda m: part(m)["parameters"][0].update(end=1), "do not agree"),
        (lambda m: part(m)["parameters"][0].update(start=1), "do not agree"),
        (lambda m: part(m)["parameters"].pop(), "has boxes of"),
        (lambda m: part(m)["parameters"][0].update(box=[[0, 0], [0, 12]]), "do not agree"),
        (lambda m: part(m)["parameters"][0].update(box=[[0, 240]]), "another number of dims"),
        (lambda m: part(m)["parameters"][0].update(box=[[1, 21], [0, 12]]), "nobody has elements 0 to 1 of dim 0"),
        (lambda m: m["units"]["b0"]["parameters"][0].update(shape=[21, 12]), "nobody has elements 20 to 21"),
        (lambda m: m["units"]["b0"]["parameters"][0].update(shape=[2**52, 2**52]), "nobody has elements"),
        (lambda m: m["units"].update(b7=m["units"]["b1"]), "occurs twice"),
        (lambda m: m["extras"].update(x={"file": "no", "dtype": "fp32", "shape": [1]}), "extras.x"),
        (lambda m: m["extras"].update(x={"file": FILE, "dtype": "fp32", "shape": [2**50]}), "too small"),
        (lambda m: m["extras"].update(x={"file": FILE, "dtype": "bf16", "shape": [more_than_half(m)]}), "too small"),
        (lambda m: m["extras"].update({"a/b": {"file": FILE, "dtype": "fp32", "shape": [1]}}), "extras.a/b"),
        (lambda m: m["files"][FILE].update(size_bytes=-1), "size"),
        (lambda m: m["files"][FILE].update(sha256="x"), "checksum"),
        (lambda m: m.update(unknown=1), "unknown"),
        (lambda m: m.pop("units"), "units"),
    ],
)
def test_a_forged_manifest(saved: Path, change: Callable[[Any], None], word: str) -> None:
    forge(saved, change)
    assert word in check_refused(saved, "manifest.json")


def test_a_forged_dtype_meets_the_files_own(saved: Path) -> None:
    forge(saved, lambda m: m["units"]["b0"]["dtypes"].update(exp_avg="bf16"))
    with pytest.raises(RunFailure, match="the manifest says"):
        read_parameters(saved)


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (replace(MODEL, num_layers=1), "this model has no unit 'b1'"),
        (replace(MODEL, num_layers=3), "the checkpoint has no unit 'b2'"),
        (replace(MODEL, ffn_size=24), "mlp.gate_proj.weight [20, 12] where this model has"),
        (replace(MODEL, tie_embeddings=True), "lm_head.weight"),
        (replace(MODEL, qkv_bias=True), "it has nothing where this model has model.layers.0.self_attn.q_proj.bias"),
    ],
)
def test_another_model(saved: Path, model: Any, word: str) -> None:
    check_refused(saved, "another model", word, run=Run(2, model=model))


def test_another_precision(saved: Path) -> None:
    check_refused(saved, "saved as fp32, this run holds fp64", "precision.master", dtype=torch.float64)
