"""A bf16 weight gradient on a device goes straight into its fp32 sum: one matmul, no temporary."""

import pytest
import torch

from fourfold.model.torch_operations import accumulate
from fourfold.rehearse.journal import Journal
from fourfold.rehearse.kernels import DeviceKernels
from fourfold.rehearse.pretend import DEVICE, PretendedDevice
from fourfold.rehearse.shapes import KnownShapes
from fourfold.rehearse.streams import Streams


@pytest.mark.parametrize("fresh", [True, False])
def test_one_matmul_and_no_temporary(fresh: bool) -> None:
    journal = Journal(0)
    device = PretendedDevice(journal)
    with device, DeviceKernels(journal, device, Streams(), KnownShapes()) as kernels:
        grad = torch.empty(64, 32, device=DEVICE)
        out, x = (torch.empty(16, n, device=DEVICE, dtype=torch.bfloat16) for n in (64, 32))
        before = kernels.peak_bytes
        for _ in range(2):
            accumulate(grad, out, x, fresh)
        assert sum(journal.launches.values()) == 2
        assert kernels.peak_bytes == before == 4 * 64 * 32 + 2 * 16 * (64 + 32)


def test_a_processor_rounds_first() -> None:
    grad = torch.ones(2, 2)
    out, x = (torch.full((3, 2), value, dtype=torch.bfloat16) for value in (1.0, 1.0078125))
    accumulate(grad, out, x, fresh=False)
    assert torch.equal(grad, 1 + (out.t() @ x).float())
