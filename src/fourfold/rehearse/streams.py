"""Streams of one device without the device: what each has joined, and what is still read or written on another.

A stream runs what it is given in order. It knows of another stream's work up to the event that it waited for last, and of all that
this work had waited for (a vector clock; Lamport 1978, Mattern 1989). Touching memory that an unjoined stream still uses is a race.

So is dropping it. Memory whose last reference the host drops goes back to the stream that allocated it, whose next tensor may lie
there at once. Nothing here keeps memory alive that a process on a device would not.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

COMPUTE, SIDE = "compute", "side"

Clock = dict[str, int]
"""By stream, how many of its launches are known to be over."""


@dataclass(frozen=True)
class Use:
    """A launch that reads, or `writes`, bytes [low, high) of some memory."""

    stream: str
    number: int
    low: int
    high: int
    writes: bool
    what: str


@dataclass
class Memory:
    """A storage and its launches that its `home`, the stream that allocated it, or the computing stream has not joined."""

    storage: weakref.ref[Any]
    home: str
    uses: list[Use] = field(default_factory=list)


class Streams:
    """The streams of one rank. Kernels run on the `current` one; each communicator has its own."""

    def __init__(self) -> None:
        self.current = COMPUTE
        self._known: dict[str, Clock] = {}
        self._memory: dict[int, Memory] = {}
        self._dropped: tuple[Use, str] | None = None

    def allocated(self, tensor: Tensor) -> None:
        """Notes that the current stream allocated a tensor's memory. That of the computing stream needs no note."""
        if self.current != COMPUTE:
            self._of(tensor, self.current)

    def race(self, reads: Iterable[Tensor], writes: Iterable[Tensor]) -> str | None:
        """The first race that the current stream would make; None: there is none."""
        if not self._memory:
            return None
        for tensors, written in ((reads, False), (writes, True)):
            for tensor in tensors:
                found = self._race(tensor, written)
                if found is not None:
                    return found
        return None

    def _race(self, tensor: Tensor, writes: bool) -> str | None:
        key = tensor.untyped_storage()._cdata
        memory = self._memory.get(key)
        if memory is None:
            return None
        low, high = _extent(tensor)
        for use in memory.uses:
            over = self._over(use, self.current)
            if not over and use.low < high and low < use.high and (writes or use.writes):
                verb = "writes" if use.writes else "reads"
                return f"stream {self.current} uses memory that `{use.what}` {verb} on stream {use.stream}, and has not joined it"
        self._forget(key)
        return None

    def launch(self, stream: str, what: str, reads: Iterable[Tensor], writes: Iterable[Tensor]) -> Clock:
        """Starts work on a stream, after all that is on the current one. Returns the clock of its end, for `join`."""
        clock = self._clock(stream)
        if stream != self.current:
            _merge(clock, self._clock(self.current))
        number = clock[stream] = clock.get(stream, 0) + 1
        for tensors, written in ((reads, False), (writes, True)):
            for tensor in tensors:
                memory = self._of(tensor)
                memory.uses.append(Use(stream, number, *_extent(tensor), written, what))
        return dict(clock)

    def kernel(self, what: str, reads: Iterable[Tensor], writes: Iterable[Tensor]) -> None:
        """A kernel on the current stream. Those of the computing stream are noted where another stream allocated the memory: all
        else comes after them."""
        if self.current == COMPUTE:
            reads, writes = self._not_its_own(reads), self._not_its_own(writes)
            if not reads and not writes:
                return
        self.launch(self.current, what, reads, writes)

    def _not_its_own(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        if not self._memory:
            return []
        known = ((self._memory.get(tensor.untyped_storage()._cdata), tensor) for tensor in tensors)
        return [tensor for memory, tensor in known if memory is not None and memory.home != self.current]

    def join(self, clock: Clock) -> None:
        """The current stream waits for an event."""
        _merge(self._clock(self.current), clock)

    @contextmanager
    def on_side(self) -> Iterator[None]:
        """Work goes to the side stream, after all that was given to the current one."""
        with self.on(SIDE):
            yield

    @contextmanager
    def on(self, stream: str) -> Iterator[Clock]:
        """Work goes to another stream, after all that was given to the current one. Yields that stream's clock."""
        before, clock = self.current, self._clock(stream)
        _merge(clock, self._clock(before))
        self.current = stream
        try:
            yield clock
        finally:
            self.current = before

    def freed_too_early(self) -> str | None:
        """A launch whose memory was freed, or dropped, before the stream that allocated the memory joined it."""
        if self._dropped is not None:
            use, home = self._dropped
            return (
                f"memory that `{use.what}` uses on stream {use.stream} is dropped before stream {home}, which allocated it, has "
                f"joined that"
            )
        for memory in list(self._memory.values()):
            storage = memory.storage()
            early = next((use for use in memory.uses if not self._over(use, memory.home)), None)
            if early is not None and storage is not None and storage.size() == 0:
                return f"memory that `{early.what}` uses is freed before stream {memory.home} has joined it"
        return None

    def left(self) -> str | None:
        """A launch that the computing stream has not joined."""
        uses = (use for memory in list(self._memory.values()) for use in memory.uses)
        return next((use.what for use in uses if not self._over(use, COMPUTE)), None)

    def _of(self, tensor: Tensor, home: str = COMPUTE) -> Memory:
        storage = tensor.untyped_storage()
        key = storage._cdata
        memory = self._memory.get(key)
        if memory is None:
            memory = self._memory[key] = Memory(weakref.ref(storage, lambda _: self._drop(key)), home)
        return memory

    def _drop(self, key: int) -> None:
        """The host dropped the last reference."""
        memory = self._memory.pop(key)
        early = next((use for use in memory.uses if not self._over(use, memory.home)), None)
        if early is not None and self._dropped is None:
            self._dropped = early, memory.home

    def _clock(self, stream: str) -> Clock:
        return self._known.setdefault(stream, {})

    def _over(self, use: Use, stream: str) -> bool:
        """Whether a stream runs after a launch."""
        return use.stream == stream or self._clock(stream).get(use.stream, 0) >= use.number

    def _forget(self, key: int) -> None:
        """Drops what the computing stream, which everything else is ordered by, and the memory's home have joined."""
        memory = self._memory[key]
        memory.uses = [use for use in memory.uses if not (self._over(use, COMPUTE) and self._over(use, memory.home))]
        if not memory.uses and memory.home == COMPUTE:
            del self._memory[key]


def _merge(into: Clock, other: Clock) -> None:
    for stream, number in other.items():
        if into.get(stream, 0) < number:
            into[stream] = number


def _extent(tensor: Tensor) -> tuple[int, int]:
    """First and one past the last byte of a tensor in its storage."""
    size, low = tensor.element_size(), int(tensor.storage_offset())
    if tensor.numel() == 0:
        return low * size, low * size
    last = sum((int(length) - 1) * int(stride) for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return low * size, (low + last + 1) * size
