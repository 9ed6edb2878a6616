"""Checkpoints behind fsspec URLs: in memory, in files, and on a real S3-compatible server where its packages are installed."""

import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.checkpoint import checkpoints, latest_checkpoint, newest_readable, read_parameters, save
from fourfold.config import RunFailure, UserError
from fourfold.config.remote_path import RemotePath, is_remote, place
from tests.checkpoint.ranks import ROLES, Run, layout_of


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3-compatible server of its own."""
    for name in ("moto", "s3fs", "flask"):
        pytest.importorskip(name)
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = "from moto.server import main; main(['-H', '127.0.0.1', '-p', '%d'])" % port  # noqa: UP031
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(address, timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(params=["memory", pytest.param("file", marks=pytest.mark.rest), "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = f"runs-{secrets.token_hex(4)}"
    if request.param == "memory":
        return place(f"memory://{folder}/checkpoints")
    if request.param == "file":
        return place(f"file://{tmp_path}/checkpoints")
    address = request.getfixturevalue("server")
    for key, value in {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "ENDPOINT_URL": address}.items():
        monkeypatch.setenv(f"AWS_{key}", value)
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir(folder)
    return place(f"s3://{folder}/checkpoints")


LAYOUT = {"dp_shard": 2, "tp": 2, "tp_head": 1, "zero": 1}
OTHER = {"pp": 2, "dp_replicate": 2, "zero": 3}


def saved(root: Path, step: int = 1, seed: int = 0) -> Run:
    run = Run(layout=layout_of(LAYOUT), seed=seed)
    folder = root / f"step-{step:06d}"
    assert run.save(root, step) == [folder] * run.world_size
    return run


def flip(path: Any) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with path.open("wb") as file:
        file.write(data)


def test_saved_under_one_layout_and_loaded_under_another(root: Path) -> None:
    saved(root)
    assert is_remote(root)
    run = Run(layout=layout_of(OTHER))
    for rank in range(run.world_size):
        loaded, expected = run.shards(rank, empty=True), run.shards(rank)
        assert run.load(root / "step-000001", loaded) == {"step": 1}
        for unit in expected:
            assert all(torch.equal(loaded[unit].tensors[role], expected[unit].tensors[role]) for role in ROLES)
    reader = read_parameters(root / "step-000001")
    assert all(torch.equal(tensor, run.parameters()[name]) for name, tensor in reader.items())


def test_old_ones_are_deleted_and_the_newest_is_found(root: Path) -> None:
    assert latest_checkpoint(root) is None
    for step in (1, 2, 3):
        saved(root, step)
    assert [path.name for path in checkpoints(root)] == ["step-000002", "step-000003"]
    assert latest_checkpoint(root) == root / "step-000003"
    assert sorted(path.name for path in (root / "step-000003").iterdir())[0] == "manifest.json"
    assert all(path.name.endswith((".json", ".safetensors")) for path in (root / "step-000003").iterdir())


def test_a_step_saved_again_is_replaced(root: Path) -> None:
    saved(root, seed=1)
    again = saved(root, seed=2)
    reader = read_parameters(root / "step-000001")
    assert all(torch.equal(tensor, again.parameters()[name]) for name, tensor in reader.items())


def test_a_flipped_bit_is_found(root: Path) -> None:
    run = saved(root)
    flip(root / "step-000001" / "rank-00002.safetensors")
    shards = run.shards(2, empty=True)
    with pytest.raises(RunFailure, match=r"rank-00002\.safetensors is corrupt"):
        run.load(root / "step-000001", shards)
    assert all(t.isnan().all() for shard in shards.values() for t in shard.tensors.values())


def test_a_save_that_fails_is_no_checkpoint_and_the_next_one_tidies_up(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(root)
    original = save.write_tensors

    def fail(path: Path, *rest: Any) -> Any:
        if path.name == "rank-00001.safetensors":
            raise OSError(5, os.strerror(5))
        return original(path, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(save, "write_tensors", fail)
        results = Run(layout=layout_of(LAYOUT)).save(root, 2)
    assert all(isinstance(result, RunFailure) and "Input/output error" in str(result) for result in results), results
    assert latest_checkpoint(root) == root / "step-000001"
    (root / "step-000007").mkdir()
    (root / "step-000007" / "rank-00000.safetensors").write_text("left by a save that was killed")
    saved(root, 8)
    assert sorted(path.name for path in root.iterdir()) == ["step-000001", "step-000008"]


def test_a_protocol_whose_package_is_missing_is_named() -> None:
    with pytest.raises(UserError, match="what works"):
        place("nosuch://bucket/run")


def test_paths_have_names_and_parents() -> None:
    path = place("memory://a/b/step-000001")
    assert isinstance(path, RemotePath)
    assert (path.name, path.parent.name, str(path / "x")) == ("step-000001", "b", "memory:///a/b/step-000001/x")
    assert place("~/x") == Path("~/x").expanduser()


class ChecksumMismatch(Exception):
    """An error like botocore's: no `OSError`, and no class that anybody could list."""


@pytest.mark.parametrize("depth", ["manifest.json", "rank-00000.safetensors"])
def test_what_a_library_raises_while_it_reads_is_damage(monkeypatch: pytest.MonkeyPatch, depth: str) -> None:
    root = place(f"memory://{secrets.token_hex(4)}/checkpoints")
    Run().save(root, 4)
    Run().save(root, 8)
    system = type(root._system)  # type: ignore[attr-defined]
    cat = system.cat_file

    def broken(self: Any, path: str, *arguments: Any, **options: Any) -> bytes:
        if path.endswith(f"step-000008/{depth}"):
            raise ChecksumMismatch("Expected checksum 1 did not match calculated checksum 2")
        return cat(self, path, *arguments, **options)

    monkeypatch.setattr(system, "cat_file", broken)
    told: list[str] = []
    reader = newest_readable(checkpoints(root)[::-1], told.append)
    assert reader is not None
    assert reader.step == 4
    assert len(told) == 1
    assert "step-000008 is not used" in told[0]
    assert "ChecksumMismatch: Expected checksum" in told[0]
