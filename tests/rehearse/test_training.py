"""All of a training, rehearsed in small: what it keeps of the large run, what it goes through, and the faults that it finds."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fourfold.config import load_run
from fourfold.config.presets import run_preset_names
from fourfold.hardware import load_cluster
from fourfold.launch.host_memory import HostNeed
from fourfold.launch.resolve import ResolvedRun, resolve_run
from fourfold.rehearse.journal import RehearsalFault
from fourfold.rehearse.small import AXES, MOST_RANKS, small_run
from fourfold.rehearse.training import rehearse_training, require_host_memory
from tests.support.grid import others_are_rest
from tests.support.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"
KEPT = ("zero", "schedule", "outermost", "offload_optimizer", "overlap_experts", "prefetch")
VARIED: dict[str, tuple[str, ...]] = {
    **{f"preset:{name}": () for name in run_preset_names()},
    "muon, away": ("layout.offload=activations", "layout.offload_optimizer=true", "optimizer.name=muon"),
    "mup": ("model.mup_base_hidden_size=1024", "model.tie_embeddings=false"),
    "every axis": tuple(f"layout.{axis}=2" for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp")),
    "rings of ulysses": ("layout.cp=8", "layout.cp_method=ring+ulysses:2", "layout.dp_shard=16"),
    "several ways": ("layout.recompute=full:3", "layout.offload=activations:2"),
}


def _resolved(name: str, *changes: str) -> ResolvedRun:
    run = name if name.startswith("preset:") else "preset:llama3.1-8b-128"
    return resolve_run(load_run(Path(run), changes), None, None, "native")


@pytest.mark.parametrize("name", others_are_rest(VARIED, ("preset:deepseek-v3-2k", "every axis", "muon, away", "mup")))
def test_a_small_run_has_what_decides_the_code(name: str, tmp_path: Path) -> None:
    large = _resolved(name, *VARIED[name])
    small = small_run(large, tmp_path)
    assert small.ranks <= MOST_RANKS
    assert small.resolved.num_parameters < 5e6
    left_out = {text.removesuffix(" > 1") for text in small.left_out}
    for axis in AXES:
        assert (getattr(small.resolved.layout, axis) > 1) == (getattr(large.layout, axis) > 1 and axis not in left_out)
    assert (small.resolved.layout.virtual_stages > 1) == (large.layout.virtual_stages > 1)
    for key in KEPT:
        assert getattr(small.config.layout, key) == getattr(large.config.layout, key), key
    mine, theirs = small.resolved.model, large.model
    for key in ("family", "is_mla", "tie_embeddings", "qk_norm", "qkv_bias", "gated", "norm", "positions", "router"):
        assert getattr(mine, key) == getattr(theirs, key), key
    for key in ("num_experts", "num_shared_experts", "first_dense_layers", "mtp_layers", "balance_bias_speed"):
        assert bool(getattr(mine, key)) == bool(getattr(theirs, key)), key
    assert type(small.config.optimizer) is type(large.config.optimizer)
    assert small.config.precision.compute == large.config.precision.compute


def test_a_machine_with_too_little_memory_is_named() -> None:
    cluster = load_cluster("dgx-h100:16")
    share = cluster.host_memory_bytes_per_device or 0
    require_host_memory(HostNeed(share // 2, share // 4, share // 4, 0), cluster)
    require_host_memory(HostNeed(share, share, share, share), None)
    with pytest.raises(RehearsalFault, match="a machine of dgx-h100:16's memory") as raised:
        require_host_memory(HostNeed(0, share, share // 4, 0), cluster)
    assert "layout.offload_optimizer = false or checkpoint.asynchronous = false" in str(raised.value)


@pytest.mark.rest
def test_all_of_a_training_is_gone_through(tmp_path: Path) -> None:
    found = rehearse_training(
        _resolved("x", "layout.offload_optimizer=true", "checkpoint.memory_every_steps=3", "run.deterministic=true")
    )
    assert (found.events["launch"], found.events["resume"], found.events["finish"]) == (2, 1, 2)
    assert found.events["save"] == 3
    assert found.events["sample"] > 0
    assert found.events["evaluate"] > 0


@pytest.mark.rest
def test_a_fault_of_the_device_alone_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of one's own that makes a tensor on the host: a processor does not mind."""
    for path in (EXAMPLES / "own_block").iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = resolve_run(load_run(tmp_path / "run.toml", ("model.vocab_size=320",)), None, None, "native")
    rehearse_training(run)
    block = tmp_path / "parallel_block.py"
    source = block.read_text()
    block.write_text(source.replace("return x + weights", "return torch.zeros(x.shape) + x + weights"))
    assert block.read_text() != source
    with pytest.raises(RehearsalFault, match="on the same device") as raised:
        rehearse_training(run)
    kept = Path(str(raised.value).rpartition(" is kept in ")[2])
    assert list((kept / "run" / "logs").iterdir())
    shutil.rmtree(kept)


@pytest.mark.rest
def test_a_signal_ends_the_training_in_small(tmp_path: Path) -> None:
    """With all of its processes, and its folder."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "200"}
    command = [sys.executable, "-m", "fourfold", "train", "preset:llama3.1-8b-128", "--rehearse"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: any(tmp_path.glob("fourfold-rehearsal-*/run/metrics.jsonl")), process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors.strip()) == (143, "stopped by SIGTERM")
        assert not list(tmp_path.glob("fourfold-*"))
        left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _words(path)]
        assert left == []
    finally:
        process.kill()
        process.wait()


def _words(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:  # it has ended
        return ""
