"""Streams of one device without the device: what each has joined, and what is still read or written on another.

A stream runs what it is given in order. It knows of another stream's work up to the event that it waited for last, and of all that
this work had waited for (a vector clock; Lamport 1978, Mattern 1989). Touching memory that an unjoined stream still uses is a race.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
    tensor: Tensor


class Streams:
    """The streams of one rank. Kernels run on the `current` one; each communicator has its own."""

    def __init__(self) -> None:
        self.current = COMPUTE
        self._known: dict[str, Clock] = {}
        self._uses: dict[int, list[Use]] = {}

    def race(self, reads: Iterable[Tensor], writes: Iterable[Tensor]) -> str | None:
        """The first race that the current stream would make; None: there is none."""
        if not self._uses:
            return None
        for tensors, written in ((reads, False), (writes, True)):
            for tensor in tensors:
                found = self._race(tensor, written)
                if found is not None:
                    return found
        return None

    def _race(self, tensor: Tensor, writes: bool) -> str | None:
        key = tensor.untyped_storage()._cdata
        uses = self._uses.get(key)
        if uses is None:
            return None
        known = self._clock(self.current)
        low, high = _extent(tensor)
        for use in uses:
            over = known.get(use.stream, 0) >= use.number or use.stream == self.current
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
                use = Use(stream, number, *_extent(tensor), written, what, tensor)
                self._uses.setdefault(tensor.untyped_storage()._cdata, []).append(use)
        return dict(clock)

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
        """A launch whose memory was freed before the computing stream joined it."""
        return next((use.what for use in self._unjoined() if use.tensor.untyped_storage().size() == 0), None)

    def left(self) -> str | None:
        """A launch that the computing stream has not joined."""
        return next((use.what for use in self._unjoined()), None)

    def _unjoined(self) -> Iterator[Use]:
        for key in list(self._uses):
            self._forget(key)
        return (use for uses in self._uses.values() for use in uses)

    def _clock(self, stream: str) -> Clock:
        return self._known.setdefault(stream, {})

    def _forget(self, key: int) -> None:
        """Drops what the computing stream, which everything else is ordered by, has joined."""
        known = self._clock(COMPUTE)
        uses = [use for use in self._uses[key] if known.get(use.stream, 0) < use.number]
        if uses:
            self._uses[key] = uses
        else:
            del self._uses[key]


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
