"""The recording of a pass: its kernels and collectives in order, its live bytes and their peak."""

from dataclasses import replace
from itertools import count
from typing import Any

from fourfold.model.work import (
    Attention,
    Collective,
    CollectiveKind,
    Elementwise,
    ElementwisePart,
    Gemm,
    Item,
    Join,
    Start,
    Work,
)


class Storage:
    """Memory that shape-only tensors share, live as long as one of them is. `recording` None: it lies outside and is not
    counted."""

    __slots__ = ("born", "bytes", "made", "number", "parameters", "read", "recording", "region")
    numbers = count()

    def __init__(self, recording: "Recording | None", size: int) -> None:
        self.bytes = size
        self.recording = recording
        self.number = next(Storage.numbers)
        self.made = self.read = 0
        """The passes in which it was made, and last read by something else than a matmul."""
        self.born: list[int] | None = None
        self.region: Region | None = None
        self.parameters: tuple[str, ...] = ()
        """Names of the parameters that it holds, one or several together, where it is a weight's."""
        if recording is not None:
            self.made = recording.passes
            recording.storages += size > 0
            live = recording.live + size
            recording.live = live
            if live > recording.peak:
                recording.peak = live
            if recording.region is not None:
                self.born, self.region = [size], recording.region
                recording.region.born.append(self.born)

    def is_born_in(self, region: "Region") -> bool:
        """Whether a fused kernel has it without reading it."""
        return self.region is region

    def __del__(self) -> None:
        recording = self.recording
        if recording is not None:
            recording.live -= self.bytes
            recording.storages -= self.bytes > 0
            if self.born is not None:
                self.born[0] = 0
            if self.read < recording.passes and self.made < recording.passes:
                recording.operand_bytes += self.bytes


class Region:
    """Elementwise kernels that a compiler fuses: what they read and write in all, and what one kernel would. No matmul within."""

    __slots__ = ("born", "bytes", "launches", "part", "read", "recording", "written")

    def __init__(self, recording: "Recording", part: ElementwisePart) -> None:
        self.recording = recording
        self.part = part
        self.bytes = 0
        self.launches = 0
        self.born: list[list[int]] = []
        self.read: dict[tuple[int, int, tuple[int, ...]], int] = {}
        self.written: dict[tuple[int, int, tuple[int, ...]], int] = {}

    def __enter__(self) -> None:
        self.recording.region = self

    def __exit__(self, *_: object) -> None:
        self.recording.region = None
        least = sum(self.read.values()) + sum(self.written.values()) + sum(cell[0] for cell in self.born)
        if self.launches:
            self.recording.work.append(Elementwise(self.bytes, min(least, self.bytes), self.launches, self.part))


class Recording:
    """Kernels and collectives of one pass. `live`: bytes of the storages that exist; `storages`: how many; `peak`: the most bytes
    there were; `operand_bytes`: of those that earlier passes had made and this one freed, what it read by matmuls alone.
    `weights`: by place in the record, the parameters that a forward's matmul reads."""

    __slots__ = (
        "flying",
        "live",
        "operand_bytes",
        "passes",
        "peak",
        "region",
        "staging",
        "storages",
        "weights",
        "work",
    )

    def __init__(self, staging: bool) -> None:
        """`staging`: sums that are scattered need a staging buffer (gloo)."""
        self.live = self.storages = 0
        self.peak = 0
        self.work: list[Item] = []
        self.weights: dict[int, tuple[str, ...]] = {}
        self.region: Region | None = None
        self.staging = staging
        self.flying: set[str] = set()
        self.passes = 0
        self.operand_bytes = 0

    def begin(self) -> None:
        """Another pass: what is live stays, the rest is recorded anew."""
        self.peak = self.live
        self.work = []
        self.weights = {}
        self.passes += 1
        self.operand_bytes = 0

    def recorded(self) -> Work:
        """The work since `begin`."""
        return Work(tuple(self.work))

    def touch(self, reads: Any, written: Any, launches: int = 1) -> None:
        """An elementwise kernel that reads shape-only tensors and writes one; a tensor made by this kernel is live already."""
        region = self.region
        target: Storage = written.storage
        size: int = written.nbytes
        if region is None:
            for tensor in reads:
                size += tensor.nbytes
                tensor.storage.read = self.passes
            self.work.append(Elementwise(size, size, launches))
            return
        for tensor in reads:
            size += tensor.nbytes
            storage = tensor.storage
            storage.read = self.passes
            if not storage.is_born_in(region):
                key = (storage.number, tensor.offset, tensor.shape)
                if key not in region.written:
                    region.read[key] = tensor.nbytes
        if not target.is_born_in(region):
            region.written[target.number, written.offset, written.shape] = written.nbytes
        region.bytes += size
        region.launches += launches

    def matmul(
        self,
        rows: int,
        columns: int,
        inner: int,
        accumulates: bool = False,
        groups: int = 1,
        dtype: str = "",
        weight: Storage | None = None,
    ) -> None:
        assert self.region is None, "a matmul stands inside a fused region"
        if weight is not None and weight.parameters:
            self.weights[len(self.work)] = weight.parameters
        self.work.append(Gemm(rows, columns, inner, accumulates, groups, dtype))

    def matmuls(self, batch: int, rows: int, columns: int, inner: int) -> None:
        """So many matmuls of these sizes, each of matrices of its own."""
        assert self.region is None, "a matmul stands inside a fused region"
        self.work.append(Gemm(rows, columns, inner, batch=batch))

    def repeat(self, start: int, times: int) -> None:
        """Counts what was recorded from item `start` on so many times, as steps that follow each other."""
        for index, item in enumerate(self.work[start:], start):
            if isinstance(item, Gemm):
                self.work[index] = replace(item, batch=item.batch * times)
            elif isinstance(item, Elementwise):
                sizes = item.bytes * times, item.least_bytes * times
                self.work[index] = Elementwise(*sizes, item.launches * times, item.part)

    def attend(self, attention: Attention) -> None:
        self.work.append(attention)

    def start(self, kind: CollectiveKind, axes: str, group: int, size: int, held: tuple[Any, ...]) -> "Flight":
        """A collective; what it reads and fills is held until it is joined."""
        number = 1
        while (name := f"{axes}.{number}") in self.flying:
            number += 1
        self.flying.add(name)
        self.work.append(Start(Collective(kind, axes, size, group), name))
        return Flight(self, name, held)


class Flight:
    """A started collective."""

    __slots__ = ("_held", "_name", "_recording")

    def __init__(self, recording: Recording, name: str, held: tuple[Any, ...]) -> None:
        self._recording, self._name, self._held = recording, name, held

    def wait(self) -> None:
        if self._held:
            self._held = ()
            self._recording.flying.remove(self._name)
            self._recording.work.append(Join(self._name))


class RecordedGroup:
    """A group of ranks of which one is recorded. `axes`: its name on the mesh."""

    __slots__ = ("axes", "index", "recording", "size")

    def __init__(self, recording: Recording, axes: str, size: int, index: int = 0) -> None:
        self.recording, self.axes, self.size, self.index = recording, axes, size, index

    def all_gather(self, full: Any, shard: Any) -> Flight:
        return self.recording.start("all_gather", self.axes, self.size, full.nbytes, (full, shard))

    def sum_scatter(self, full: Any, into: Any) -> Flight:
        staging = None
        if self.recording.staging:
            staging = Storage(self.recording, full.nbytes - full.nbytes // self.size)
        return self.recording.start("reduce_scatter", self.axes, self.size, full.nbytes, (full, into, staging))

    def all_reduce(self, full: Any) -> Flight:
        return self.recording.start("all_reduce", self.axes, self.size, full.nbytes, (full,))

    def all_to_all(self, received: Any, sent: Any, received_rows: Any = None, sent_rows: Any = None) -> Flight:
        return self.recording.start("all_to_all", self.axes, self.size, sent.nbytes, (received, sent))

    def shift(self, received: Any, sent: Any, back: bool = False) -> Flight:
        size = sum(tensor.nbytes for tensor in sent)
        return self.recording.start("shift", self.axes, self.size, size, (tuple(received), tuple(sent)))
