"""A load gives what was saved, bit for bit; parameters come out full under every number of shards."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fourfold.checkpoint import (
    UnitShard,
    checkpoints,
    latest_checkpoint,
    load_checkpoint,
    read_manifest,
    read_parameters,
    save_checkpoint,
)
from fourfold.checkpoint.checked_file import CHUNKS, write_tensors
from fourfold.checkpoint.file_bytes import CHUNK_BYTES, CHUNK_HASHES
from fourfold.checkpoint.tensor_file import PIECE_BYTES
from tests.checkpoint.ranks import MODEL, ROLES, Run, entries


@pytest.mark.parametrize("num_shards", [1, 2, 3, 4])
@pytest.mark.parametrize("replicas", [1, 2])
def test_every_rank_loads_what_was_saved(tmp_path: Path, num_shards: int, replicas: int) -> None:
    run = Run(num_shards, replicas)
    info = {"step": 7, "lr": 1 / 3, "data": {"epoch": 0, "seen": 2**40}, "loss": float("inf")}
    folder = tmp_path / "step-000007"
    assert run.save(tmp_path, 7, info=info) == [folder] * run.world_size
    files = list(folder.glob("*.safetensors"))
    assert len(files) == run.world_size, "replicas write a piece each"
    assert len({path.stat().st_size for path in files}) == 1, "pieces are of one size"
    for rank in range(run.world_size):
        loaded, saved = run.shards(rank, empty=True), run.shards(rank)
        assert run.load(folder, loaded) == info
        for unit in saved:
            for role in ROLES:
                assert torch.equal(loaded[unit].tensors[role], saved[unit].tensors[role])


@pytest.mark.parametrize("num_shards", [1, 2, 3, 4])
def test_parameters_come_out_full(tmp_path: Path, num_shards: int) -> None:
    run = Run(num_shards)
    assert any(flat.padded_numel > flat.numel for flat in run.flats.values())
    run.save(tmp_path, 1)
    reader = read_parameters(tmp_path / "step-000001")
    expected = run.parameters()
    assert reader.names() == list(expected)
    for name, tensor in reader.items():
        assert reader.shapes[name] == tensor.shape
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_formats_survive(tmp_path: Path, dtype: torch.dtype) -> None:
    run = Run(1)
    saved = run.shards(0, dtype=dtype)
    folder = save_checkpoint(tmp_path, 1, saved, {}, rank=0, is_writer=True, synchronize=lambda: None, keep=1)
    loaded = run.shards(0, empty=True, dtype=dtype)
    load_checkpoint(folder, loaded)
    for unit, shard in saved.items():
        assert all(torch.equal(shard.tensors[role], loaded[unit].tensors[role]) for role in ROLES)


def test_some_roles_may_be_left_out_when_loading(tmp_path: Path) -> None:
    run = Run(2)
    run.save(tmp_path, 1)
    shards = {
        unit: UnitShard(shard.flat, shard.index, {"master": shard.tensors["master"]})
        for unit, shard in run.shards(1, empty=True).items()
    }
    load_checkpoint(tmp_path / "step-000001", shards)
    assert torch.equal(shards["b1"].tensors["master"], run.shards(1)["b1"].tensors["master"])


def test_the_manifest_says_enough_to_restore_under_another_layout(tmp_path: Path) -> None:
    """From manifest.json and the files alone, without this package's reader, the state is put together again."""
    from safetensors.torch import load_file

    run = Run(3)
    run.save(tmp_path, 1)
    folder = tmp_path / "step-000001"
    manifest = json.loads((folder / "manifest.json").read_text())
    files = {name: load_file(folder / name) for name in manifest["files"]}
    for unit, record in manifest["units"].items():
        assert record["dtypes"] == dict.fromkeys(ROLES, "fp32")
        part = record["parts"][""]
        for role in ROLES:
            full = torch.cat([files[name][f"{unit}.{role}"] for name in part["shards"]])
            assert full.numel() == part["padded_numel"]
            for parameter, place in zip(record["parameters"], part["parameters"], strict=True):
                assert place["box"] == [[0, size] for size in parameter["shape"]]
                found = full[place["start"] : place["end"]].view(parameter["shape"])
                assert torch.equal(found, run.full[parameter["name"]][role])


@pytest.mark.parametrize("chunk_hash", CHUNK_HASHES)
def test_tensors_of_many_pieces(tmp_path: Path, chunk_hash: str) -> None:
    """Pieces of a large tensor, an odd tail and a strided view reach the file and the digests in order."""
    from hashlib import sha256

    hash_of = sha256 if chunk_hash == "sha256" else pytest.importorskip("xxhash").xxh3_128
    from safetensors.torch import load_file

    tensors = {"large": torch.randn(PIECE_BYTES // 4 * 2 + 3), "strided": torch.randn(6, 4).t(), "one": torch.ones(1)}
    record = write_tensors(tmp_path / "t.safetensors", tensors, chunk_hash=chunk_hash)
    data = (tmp_path / "t.safetensors").read_bytes()
    tail = load_file(tmp_path / "t.safetensors")[CHUNKS].numpy().tobytes()
    body = data[: -len(tail)]
    chunks = [body[start : start + CHUNK_BYTES] for start in range(0, len(body), CHUNK_BYTES)]
    assert body + tail == data
    assert tail == b"".join(hash_of(chunk).digest()[:16] for chunk in chunks)
    assert (record.size_bytes, record.sha256) == (len(data), sha256(tail).hexdigest())
    loaded = load_file(tmp_path / "t.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        Run(2, seed=step).save(tmp_path, step, keep=2)
    assert entries(tmp_path) == ["step-000015", "step-000020"]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-000020"


def test_the_one_just_written_is_kept_below_newer_ones(tmp_path: Path) -> None:
    for step in (30, 40, 10):
        Run(1, seed=step).save(tmp_path, step, keep=2)
    assert entries(tmp_path) == ["step-000010", "step-000030", "step-000040"]


def test_steps_are_ordered_by_number(tmp_path: Path) -> None:
    for step in (999_999, 1_000_000):
        Run(1).save(tmp_path, step)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-999999", "step-1000000"]


def test_a_step_saved_again_is_replaced(tmp_path: Path) -> None:
    Run(3, seed=1).save(tmp_path, 5)
    again = Run(2, seed=2)
    again.save(tmp_path, 5)
    assert entries(tmp_path) == ["step-000005"]
    reader = read_parameters(tmp_path / "step-000005")
    assert all(torch.equal(tensor, again.parameters()[name]) for name, tensor in reader.items())


def test_latest_looks_past_what_is_not_a_checkpoint(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "nothing") is None
    Run(1).save(tmp_path, 5)
    for name in ("step-000009", ".tmp-step-000008", "step-7", "notes"):
        (tmp_path / name).mkdir()
    (tmp_path / ".tmp-step-000008" / "manifest.json").write_text("{}")
    assert latest_checkpoint(tmp_path) == tmp_path / "step-000005"


def test_info_with_keys_that_json_turns_into_text(tmp_path: Path) -> None:
    Run(1).save(tmp_path, 5, info={"by_rank": {10: 1, 9: (2, 3)}})
    assert read_manifest(tmp_path / "step-000005").info == {"by_rank": {"10": 1, "9": [2, 3]}}


def test_models_may_differ_in_ways_that_leave_no_trace_in_tensors(tmp_path: Path) -> None:
    Run(1, model=replace(MODEL, rope_theta=5e5)).save(tmp_path, 1)
    load_checkpoint(tmp_path / "step-000001", Run(1).shards(0))
