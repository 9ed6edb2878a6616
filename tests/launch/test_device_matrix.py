"""Every launcher with every way of showing devices: each rank of a node has one of its own, by the index at which it sees it.

A cell is what the processes of one node have in their environment, and which of the node's devices each of them sees: torch counts
these from 0, whatever CUDA_VISIBLE_DEVICES calls them. The devices are simulated, the decisions are those of a launch.
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

from fourfold.config import FinalFailure, RunConfig, UserError, parse_run
from fourfold.launch import machine
from fourfold.launch.external import member_of
from fourfold.launch.machine import check_devices, may_have_cuda, num_cuda_devices
from fourfold.launch.rank_process import trial_environment
from fourfold.launch.shares import all_ranks, first_slot, here_of
from fourfold.train.session import _claim, choose_device
from tests.support.programs import DIMENSIONS

NODES, DEVICES = 2, 8


def run(device: str = "auto") -> RunConfig:
    batch = {"global_sequences": 16, "sequence_length": 32}
    return parse_run({"model": DIMENSIONS, "batch": batch, "run": {"device": device}})


def srun(task: int) -> dict[str, str]:
    """One task a rank, as of the second node's."""
    world = {"SLURM_STEP_NUM_TASKS": str(NODES * DEVICES), "SLURM_STEP_TASKS_PER_NODE": f"{DEVICES}(x{NODES})"}
    place = {"SLURM_PROCID": str(DEVICES + task), "SLURM_LOCALID": str(task), "SLURM_NODEID": "1"}
    return {"SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "a[1-2]", **world, **place}


def torchrun(process: int) -> dict[str, str]:
    world = {"WORLD_SIZE": str(NODES * DEVICES), "LOCAL_WORLD_SIZE": str(DEVICES), "MASTER_ADDR": "10.0.0.1"}
    return {**world, "RANK": str(DEVICES + process), "LOCAL_RANK": str(process), "MASTER_PORT": "29500"}


SRUN_NODE = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_NODEID": "1", "NNODES": "2"}
SRUN_NODE |= {"SLURM_JOB_NODELIST": "a[1-2]"}
TRAIN_JOB = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "10.0.0.1", "PET_MASTER_PORT": "29500"}
PYTORCH_JOB = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"}
BY_HAND = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
ALL = tuple(range(DEVICES))


class Process(NamedTuple):
    """A supervisor of the node. `sees`: the node's devices that it sees, in its order."""

    environment: dict[str, str]
    sees: Sequence[int] = ALL


def each(of_rank, sees) -> list[Process]:
    return [Process(of_rank(number), sees(number)) for number in range(DEVICES)]


def own(number: int) -> tuple[int]:
    return (number,)


def near(number: int) -> tuple[int, ...]:
    """Devices on the processor of a task, where tasks follow each other on processors."""
    return ALL[:4] if number < 4 else ALL[4:]


def near_in_turn(number: int) -> tuple[int, ...]:
    """Devices on the processor of a task where tasks go to one processor after another, as is Slurm's default."""
    return ALL[:4] if number % 2 == 0 else ALL[4:]


CELLS: dict[str, list[Process]] = {
    "one machine": [Process({})],
    "one machine, CUDA_VISIBLE_DEVICES = 6,2": [Process({"CUDA_VISIBLE_DEVICES": "6,2"}, (6, 2))],
    "one machine, UUIDs": [Process({"CUDA_VISIBLE_DEVICES": "GPU-6f3c,GPU-11aa"}, (3, 1))],
    "one machine, a slice by MIG": [Process({"CUDA_VISIBLE_DEVICES": "MIG-5ae1"}, (5,))],
    "by hand, --nodes": [Process(BY_HAND)],
    "srun, all devices": each(srun, lambda number: ALL),
    "srun --gpus-per-task=1": each(lambda n: {**srun(n), "CUDA_VISIBLE_DEVICES": "0"}, own),
    "srun --gpus-per-task=1 without cgroups": each(lambda n: {**srun(n), "CUDA_VISIBLE_DEVICES": str(n)}, own),
    "srun --gpu-bind=single:1": each(lambda n: {**srun(n), "CUDA_VISIBLE_DEVICES": "0"}, own),
    "srun --gpu-bind=map_gpu": each(srun, lambda number: (DEVICES - 1 - number,)),
    "srun --gpu-bind=closest": each(lambda n: {**srun(n), "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, near),
    "srun --gpu-bind=closest, tasks in turn": each(
        lambda n: {**srun(n), "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, near_in_turn
    ),
    "srun, one task a node": [Process(SRUN_NODE)],
    "torchrun, all devices": each(torchrun, lambda number: ALL),
    "torchrun, CUDA_VISIBLE_DEVICES of each": each(lambda n: {**torchrun(n), "CUDA_VISIBLE_DEVICES": str(n)}, own),
    "torchrun, MIG of each": each(lambda n: {**torchrun(n), "CUDA_VISIBLE_DEVICES": f"MIG-{n}"}, own),
    "torchrun in srun": each(lambda n: {**SRUN_NODE, **torchrun(n)}, lambda number: ALL),
    "TrainJob of Kubeflow": [Process(TRAIN_JOB)],
    "PyTorchJob, pods of eight": [Process(PYTORCH_JOB)],
    "PyTorchJob, pods of one": [Process({**PYTORCH_JOB, "NVIDIA_VISIBLE_DEVICES": "GPU-6f3c"}, (4,))],
    "Job of Kubernetes with an index": [Process({"NNODES": "2", "JOB_COMPLETION_INDEX": "1", "MASTER_ADDR": "a"})],
}


def show(monkeypatch: pytest.MonkeyPatch, process: Process) -> None:
    """Makes torch see what a process sees."""
    for name in [name for name in os.environ if name.startswith(("CUDA_", "SLURM_", "LOCAL_", "RANK", "WORLD_"))]:
        monkeypatch.delenv(name)
    for name, value in process.environment.items():
        monkeypatch.setenv(name, value)
    sees = process.sees
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(sees))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(sees))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"GPU-{sees[index]}"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)


def devices_of_node(monkeypatch: pytest.MonkeyPatch, processes: Sequence[Process], device: str = "auto") -> list[int]:
    """The device of every rank that these supervisors start."""
    store, found = dist.HashStore(), []
    for process in processes:
        show(monkeypatch, process)
        member, config = member_of(os.environ), run(device)
        cuda_devices = num_cuda_devices(config)
        assert cuda_devices == len(process.sees)
        stated = cuda_devices if member is None or member.slots is None else None
        here = here_of(all_ranks(config, stated, member) or 1, member)
        check_devices(config, cuda_devices, here)
        for slot in range(first_slot(member), first_slot(member) + here):
            monkeypatch.setenv("LOCAL_RANK", str(slot))
            monkeypatch.setenv("LOCAL_WORLD_SIZE", str(here))
            chosen = choose_device(config.run, partial(_claim, store, len(found)))
            assert chosen.type == "cuda"
            found.append(process.sees[chosen.index])
    return found


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_each_rank_of_a_node_has_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch, cell: str, device: str) -> None:
    monkeypatch.setattr(machine, "may_have_cuda", lambda environment: True)
    found = devices_of_node(monkeypatch, CELLS[cell], device)
    seen = {number for process in CELLS[cell] for number in process.sees}
    assert sorted(found) == sorted(seen)


@pytest.mark.parametrize("cell", ["srun, all devices", "torchrun, all devices", "one machine"])
def test_ranks_are_on_devices_in_order_where_all_are_seen(monkeypatch: pytest.MonkeyPatch, cell: str) -> None:
    monkeypatch.setattr(machine, "may_have_cuda", lambda environment: True)
    assert devices_of_node(monkeypatch, CELLS[cell]) == list(ALL)


def test_more_ranks_than_devices_are_refused_with_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "may_have_cuda", lambda environment: True)
    four = each(lambda n: {**torchrun(n), "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, lambda number: ALL[:4])
    with pytest.raises(
        FinalFailure, match=r"local rank 4 .*all 4 that it sees \(CUDA_VISIBLE_DEVICES = '0,1,2,3'\).*--gpus-per"
    ):
        devices_of_node(monkeypatch, four)
    show(monkeypatch, Process({"CUDA_VISIBLE_DEVICES": "5"}, (5,)))
    with pytest.raises(
        UserError, match=r"8 ranks need 8 CUDA devices, this machine has 1 \(CUDA_VISIBLE_DEVICES = '5'\)"
    ):
        check_devices(run(), 1, 8)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(UserError, match="local rank 3 has no CUDA device of its own: there are 1"):
        choose_device(run().run)


@pytest.mark.parametrize("hidden", ["", "-1", "NoDevFiles"])
def test_where_all_devices_are_hidden_a_run_is_on_the_cpu_or_refused(
    monkeypatch: pytest.MonkeyPatch, hidden: str
) -> None:
    show(monkeypatch, Process({"CUDA_VISIBLE_DEVICES": hidden}, ()))
    assert num_cuda_devices(run()) == 0
    assert choose_device(run().run).type == "cpu"
    for refuse in (lambda: check_devices(run("cuda"), 0, 1), lambda: choose_device(run("cuda").run)):
        with pytest.raises(
            UserError, match=rf'run.device = "cuda".*CUDA_VISIBLE_DEVICES = {hidden!r}.*run.device = "cpu"'
        ):
            refuse()


def test_a_trial_of_a_slot_looks_at_the_device_that_its_rank_had(monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, CELLS["torchrun, CUDA_VISIBLE_DEVICES of each"][3])
    for name, value in trial_environment(3).items():
        monkeypatch.setenv(name, value)
    assert choose_device(run().run).index == 0


FILES = {
    "bare metal": "/proc/driver/nvidia/version",
    "WSL2": "/dev/dxg",
    "container": "/dev/nvidiactl",
    "ROCm": "/dev/kfd",
}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path) -> pytest.MonkeyPatch:
    """A machine without a driver, whatever this one has."""
    monkeypatch.setattr(machine, "_DRIVERS", tuple(tmp_path / path.name for path in machine._DRIVERS))
    monkeypatch.setattr(machine, "_LIBRARIES", ("libnothing-of-this-name.so.1",))
    monkeypatch.setenv("PATH", str(tmp_path))
    return monkeypatch


@pytest.mark.parametrize("where", FILES)
def test_a_driver_is_found_where_it_shows_itself_by_a_file(bare: pytest.MonkeyPatch, tmp_path, where: str) -> None:
    assert not may_have_cuda({})
    assert FILES[where].rpartition("/")[2] in {path.name for path in machine._DRIVERS}
    (tmp_path / FILES[where].rpartition("/")[2]).touch()
    assert may_have_cuda({})
    assert not may_have_cuda({"CUDA_VISIBLE_DEVICES": "-1"})


def test_a_driver_is_found_by_its_program_its_library_or_the_environment(bare: pytest.MonkeyPatch, tmp_path) -> None:
    assert may_have_cuda({"CUDA_VISIBLE_DEVICES": "MIG-1"})
    bare.setattr(machine, "_LIBRARIES", ("libc.so.6",))
    assert may_have_cuda({})
    bare.setattr(machine, "_LIBRARIES", ())
    (tmp_path / "nvidia-smi").touch(0o755)
    assert may_have_cuda({})


def test_a_machine_without_devices_imports_no_torch(bare: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.endswith("VISIBLE_DEVICES")]:
        bare.delenv(name)
    bare.setitem(sys.modules, "torch", None)  # an import would raise
    assert num_cuda_devices(run()) == 0
