"""Peak bytes of live tensors: every storage created while the tracker is on counts until it dies or is resized. And the peak of the
resident set, which is the interpreter's, the libraries' and the transport's too."""

import ctypes
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class LiveTensors(TorchDispatchMode):
    """Counts weights, gradients, optimizer state, activations and communication buffers alike; shared storage once.

    After every operator the sizes of all live storages are summed anew, since FSDP and its family shrink and refill
    storages in place without an operator. Memory that a kernel or gloo's own thread allocates for itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self._storages = WeakIdKeyDictionary()
        self.peak_bytes = 0

    def live_bytes(self) -> int:
        return sum(storage.nbytes() for storage in list(self._storages.keys()))

    def reset_peak(self) -> None:
        self.peak_bytes = self.live_bytes()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor unwraps itself and calls again with the local tensors
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DTensor) and leaf.device.type != "meta":
                self._storages[leaf.untyped_storage()] = None
        self.peak_bytes = max(self.peak_bytes, self.live_bytes())
        return result


def reset_peak_resident() -> None:
    """Gives freed memory back to the kernel, whose peak of this process's resident set then begins anew."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def peak_resident_bytes() -> int:
    """The largest resident set since the reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
