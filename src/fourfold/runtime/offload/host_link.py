"""A device's link to its host's memory: copies in either direction, started now and joined later.

On CUDA each direction has a stream of its own and host memory is pinned, so that neither the host nor kernels wait. On a processor,
where both memories are one, a thread copies from one part of it to another.
"""

import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fourfold.model.parallel import Pending
from fourfold.program import Program
from fourfold.program.offload.pinned import activation_slots
from fourfold.runtime.offload.pinned import PinnedSlots, carved, room

_WORD = 16
"""Bytes at a multiple of which a tensor begins in a slot."""
Copying = Callable[[Callable[[], None]], Pending]
"""Runs what copies on a stream of its own, after all that the computing stream was given; that joins it by `wait`."""


@dataclass(frozen=True)
class _Done:
    """A copy by a thread, on a processor."""

    future: Future[None]

    def wait(self) -> None:
        self.future.result()


@dataclass(frozen=True)
class _Event:
    """The end of what a stream was given."""

    event: Any
    device: torch.device

    def wait(self) -> None:
        """The computing stream waits, the host goes on."""
        torch.cuda.current_stream(self.device).wait_event(self.event)


def copy_stream(device: torch.device) -> Copying:
    """A stream of copies on a CUDA device; a thread on a processor."""
    if device.type == "cpu":
        pool = ThreadPoolExecutor(1, "host-link")
        return lambda copies: _Done(pool.submit(copies))
    stream = torch.cuda.Stream(device)

    def start(copies: Callable[[], None]) -> Pending:
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            copies()
            return _Event(stream.record_event(), device)

    return start


class HostLink:
    """The two directions of one device's link. `live_bytes`, `peak_bytes`: of the host's memory that copies of activations take.
    `slots`: the pinned memory in which they lie, on a device; a processor's have memory of their own."""

    def __init__(self, device: torch.device, to_host: Copying | None = None, from_host: Copying | None = None) -> None:
        self._device = device
        self._pinned = device.type != "cpu"
        self._to_host = to_host or copy_stream(device)
        self._from_host = from_host or copy_stream(device)
        self.live_bytes = self.peak_bytes = 0
        self.slots = PinnedSlots()

    def reserve(self, program: Program, routed: bool) -> None:
        """Pins memory for the activations of a step that are away at once, before the first is copied. `routed`: a router decides
        about their sizes."""
        if self._pinned:
            self.slots.reserve(activation_slots(program, routed))

    def away(self, tensors: Iterable[Tensor]) -> "tuple[HostCopies, Pending]":
        """Starts to copy contiguous tensors to new memory of the host."""
        sources, copies = list(tensors), HostCopies()
        size = sum(source.numel() * source.element_size() for source in sources)
        self._grow(size)
        weakref.finalize(copies, self._grow, -size)
        targets: list[Tensor] = []
        if self._pinned:  # the stream of copies comes after all that may still read what lay in the slot before
            slot = self.slots.take(room(sources, _WORD))
            weakref.finalize(copies, self.slots.give_back, slot)
            targets = carved(slot, sources, _WORD)

        def copy() -> None:
            for number, source in enumerate(sources):
                target = targets[number] if targets else torch.empty(source.shape, dtype=source.dtype)
                target.copy_(source, non_blocking=True)
                copies.tensors.append(target)
            sources.clear()

        return copies, self._to_host(copy)

    def offload(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Pending:
        """Starts to copy from the device: (where to in the host's memory, source)."""
        return self._to_host(_copies(pairs))

    def fetch(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> Pending:
        """Starts to copy to the device: (where to, source in the host's memory)."""
        return self._from_host(_copies(pairs))

    def _grow(self, size: int) -> None:
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)


class HostCopies:
    """Copies in the host's memory, in the order of their sources; there once they are joined."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []


def _copies(pairs: Iterable[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    copied = list(pairs)

    def copy() -> None:
        for target, source in copied:
            target.copy_(source, non_blocking=True)
        copied.clear()

    return copy
