"""A rehearsal takes no memory of what it rehearses: neither the device's, nor what the run would pin of its host's."""

import resource
from typing import Any

import pytest
import torch

from fourfold.program.capabilities import buffer_bytes
from fourfold.program.offload import resident
from fourfold.program.sizes import state_buffers
from fourfold.program.view import rank_views
from fourfold.rehearse.journal import Journal, RehearsalFault
from fourfold.rehearse.kernels import DeviceKernels
from fourfold.rehearse.pretend import DEVICE, PretendedDevice
from fourfold.rehearse.run import rehearse
from fourfold.rehearse.shapes import KnownShapes
from fourfold.rehearse.streams import Streams
from tests.rehearse.rehearsed import sections_spec
from tests.support.ranks import run_on_ranks

ROOM_BYTES = 2e9
"""Resident memory that a rehearsal may add, and what the process may address beside what it had."""
EIGHT_B = {
    "model": {
        **{"num_layers": 32, "hidden_size": 4096, "num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
        **{"ffn_size": 14336, "vocab_size": 128256},
    },
    "batch": {"global_sequences": 1, "sequence_length": 8192, "steps": 1},
    "layout": {"offload": "activations", "offload_optimizer": True},
    "precision": {"compute": "bf16"},
}


def added_bytes(rank: int, sections: dict[str, Any]) -> dict[str, float]:
    """Resident memory that a rehearsal adds, and what its optimizer states take of the host's. It may address little more, so that
    the machine survives one that allocates them."""
    spec, optimizer = sections_spec(1, sections)
    before, addressed = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, _addressed_bytes()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (addressed + int(ROOM_BYTES), limits[1]))
    try:
        rehearse(spec, optimizer)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    (view,) = rank_views(spec)
    states = sum(
        buffer_bytes(view, resident(view.spec, name)) for unit in view.flats for name in state_buffers(view, unit)
    )
    return {"added": 1024.0 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before), "states": states}


def _addressed_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("layers", [2, pytest.param(32, marks=pytest.mark.rest)])
def test_an_offloaded_model_is_rehearsed_in_little_memory(layers: int) -> None:
    model = {**EIGHT_B["model"], "num_layers": layers}
    (found,) = run_on_ranks(1, added_bytes, sections={**EIGHT_B, "model": model})
    assert found["states"] > (96e9 if layers == 32 else 15e9)
    assert found["added"] < ROOM_BYTES


@pytest.fixture
def device() -> Any:
    journal, streams = Journal(0), Streams()
    pretended = PretendedDevice(journal)
    kernels = DeviceKernels(journal, pretended, streams, KnownShapes())
    with pretended, kernels:
        yield journal, kernels


def test_pinned_memory_is_the_hosts(device: Any) -> None:
    """Pinned memory has no data, and is none of the device's; copies to and from it are asynchronous; views are pinned as well."""
    journal, kernels = device
    there = torch.zeros(1 << 40, pin_memory=True)
    assert (there.is_cuda, there.device.type, there.is_pinned()) == (False, "cpu", True)
    assert kernels.live_bytes == 0
    part = there[5 : 5 + 1024].view(32, 32)
    here = torch.empty(32, 32, device=DEVICE)
    assert kernels.live_bytes == 4096
    here.copy_(part, non_blocking=True)
    part.copy_(here, non_blocking=True)
    assert kernels.live_bytes == 4096
    assert journal.copies == 2
    assert not journal.waits


def test_a_kernel_that_reads_the_hosts_memory_is_a_fault(device: Any) -> None:
    there, here = torch.zeros(8, pin_memory=True), torch.empty(8, device=DEVICE)
    with pytest.raises(RehearsalFault, match="takes a tensor"):
        here.add_(there)


def test_a_copy_that_blocks_is_still_a_wait(device: Any) -> None:
    journal, _ = device
    there, here = torch.empty(1 << 40, pin_memory=True), torch.empty(1 << 40, device=DEVICE)
    there.copy_(here)
    assert len(journal.waits) == 1
