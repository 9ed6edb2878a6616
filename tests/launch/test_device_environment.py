"""Launchers of ranks give them the variables of their devices, and leave those that a person has set."""

import subprocess
from pathlib import Path

import pytest

from fourfold.launch.rank_process import CommandSpawner
from fourfold.launch.run_folder import RunFolder
from fourfold.runtime.allocator import device_environment
from fourfold.train.fork_server import end_server, start_server

NAMES = ("CUDA_DEVICE_MAX_CONNECTIONS", "TORCH_NCCL_HIGH_PRIORITY", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
DEFAULTS = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "32",
    "TORCH_NCCL_HIGH_PRIORITY": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
}


def of_server() -> dict[str, str]:
    """The environment of what forks ranks."""
    started = start_server(subprocess.DEVNULL)
    try:
        text = Path(f"/proc/{started[0].pid}/environ").read_text()
    finally:
        end_server(started)
    return dict(each.split("=", 1) for each in text.split("\0") if "=" in each)


def of_command(folder: Path) -> dict[str, str]:
    """The environment of a rank that is a command of its own."""
    with open(folder / "log", "w+b") as log:
        assert CommandSpawner(["env", "--", "sh", "-c", "env"], RunFolder(folder)).spawn({}, log).wait() == 0
        log.seek(0)
        lines = log.read().decode().splitlines()
    return dict(each.split("=", 1) for each in lines if "=" in each)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, DEFAULTS),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": "1"}, {**DEFAULTS, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}),
        ({"TORCH_NCCL_HIGH_PRIORITY": ""}, {**DEFAULTS, "TORCH_NCCL_HIGH_PRIORITY": ""}),
        (
            {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
            {
                **{name: value for name, value in DEFAULTS.items() if name != "PYTORCH_CUDA_ALLOC_CONF"},
                "PYTORCH_ALLOC_CONF": "max_split_size_mb:64",
            },
        ),
    ],
)
def test_ranks_get_what_is_not_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: dict[str, str], expected: dict[str, str]
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    for found in (of_server(), of_command(tmp_path)):
        assert {name: found[name] for name in NAMES if name in found} == expected


def test_nothing_is_added_twice() -> None:
    assert device_environment(DEFAULTS) == {}
