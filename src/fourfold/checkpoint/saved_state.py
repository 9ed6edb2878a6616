"""A checkpoint's tensors by parameter and box, whatever the layout that saved them: which bytes hold them, checked, then read."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourfold.checkpoint.boxes import Box, blocks, box_numel, box_shape, box_slices, boxes_of_range, intersection
from fourfold.checkpoint.checked_file import CheckedFile, check_length
from fourfold.checkpoint.file_bytes import CHUNK_BYTES, ByteSource, bytes_of, source_of
from fourfold.checkpoint.manifest import Manifest, PartRecord, how_to_go_on, read_manifest
from fourfold.checkpoint.tensor_file import DamagedCheckpoint
from fourfold.checkpoint.unit_shard import extra_name, file_metadata, tensor_name
from fourfold.config import RunFailure
from fourfold.model.torch_operations import torch_dtype

_BLOCK_BYTES = 1 << 23
_TASK_CHUNKS = 64
"""Chunks that one task checks."""


@dataclass(frozen=True)
class Range:
    """Bytes [start, end) of a file."""

    file: str
    start: int
    end: int


@dataclass(frozen=True)
class TensorRead:
    """Elements that lie one after another in `ranges`, an array of `shape`, of which `part` becomes `out`."""

    ranges: tuple[Range, ...]
    shape: tuple[int, ...]
    part: tuple[slice, ...]
    out: Tensor


class SavedState:
    """The tensors of a checkpoint. `places`: by parameter, its unit and the boxes that were saved, each with its part and its
    first element there."""

    def __init__(self, path: Path, manifest: Manifest, sources: Mapping[str, ByteSource] | None = None) -> None:
        """Checks the length of every file. `sources`: of the bytes of some files, where they are not those in the folder `path`;
        only these are then read. Raises `DamagedCheckpoint`."""
        self.path, self.manifest = path, manifest
        self._sources = {name: source_of(path / name) for name in manifest.files} if sources is None else sources
        self._advice = how_to_go_on(path)
        self._files: dict[str, CheckedFile] = {}
        for name, source in self._sources.items():
            check_length(path / name, source, manifest.files[name], self._advice)
        self.places: dict[str, tuple[str, dict[Box, tuple[PartRecord, int]]]] = {}
        for unit, described in manifest.units.items():
            for index, parameter in enumerate(described.parameters):
                parts = described.parts.values()
                boxes = {part.parameters[index].box: (part, part.parameters[index].start) for part in parts}
                self.places[parameter.name] = (unit, boxes)
        self._held: dict[str, list[tuple[str, str, int, PartRecord]]] = {}
        for unit, described in manifest.units.items():
            for part_name, part in described.parts.items():
                for index, name in enumerate(part.shards):
                    self._held.setdefault(name, []).append((unit, part_name, index, part))

    def reads(self, parameter: str, role: str, box: Box, start: int, out: Tensor) -> Iterator[TensorRead]:
        """How elements [start, start + len(out)) of a box of a parameter, laid flat, come to `out` [elements]."""
        unit, saved = self.places[parameter]
        size = out.element_size()
        for first, wanted in boxes_of_range(box, start, start + len(out)):
            view = out[first - start : first - start + box_numel(wanted)].view(box_shape(wanted))
            for source, (part, origin) in saved.items():
                both = intersection(source, wanted)
                if both is None:
                    continue
                for offset, rows, piece in blocks(source, both, _BLOCK_BYTES // size, CHUNK_BYTES // size):
                    low = origin + offset
                    ranges = tuple(self._ranges(part, unit, role, low, low + box_numel(rows)))
                    target = view[box_slices(piece, wanted)]
                    yield TensorRead(ranges, box_shape(rows), box_slices(piece, rows), target)

    def _ranges(self, part: PartRecord, unit: str, role: str, start: int, end: int) -> Iterator[Range]:
        """The bytes of elements [start, end) of a part's flat buffer, in order."""
        size, name = part.shard_numel, tensor_name(unit, role)
        held_from = part.first(self.manifest.units[unit].without.get(role, 0))
        for index in range(start // size, -(-end // size)):
            file = part.shards[index]
            saved = self.file(file).tensors[name]
            begin = max(index * size, held_from)
            first, last = max(start, begin) - begin, min(end, (index + 1) * size) - begin
            itemsize = saved.dtype.itemsize
            yield Range(file, saved.start + first * itemsize, saved.start + last * itemsize)

    def extra(self, name: str, out: Tensor) -> TensorRead:
        """How a tensor beside the units comes to `out`."""
        file = self.manifest.extras[name].file
        saved = self.file(file).tensors[extra_name(name)]
        return TensorRead((Range(file, saved.start, saved.end),), saved.shape, (slice(None),) * out.dim(), out)

    def file(self, name: str) -> CheckedFile:
        """A file, opened and compared with the manifest. Raises `DamagedCheckpoint`."""
        if name in self._files:
            return self._files[name]
        file = CheckedFile(self.path / name, self.manifest.files[name], self._advice, self._sources[name])
        for tensor, shape, dtype in self._expected(name):
            if tensor not in file.tensors:
                raise DamagedCheckpoint(f"{file.path} lacks the tensor {tensor}", self._advice)
            found = file.tensors[tensor]
            if (found.shape, found.dtype) != (shape, torch_dtype(dtype)):
                problem = f"{file.path}: {tensor} is {found.dtype} {list(found.shape)}, the manifest says {dtype} {list(shape)}"
                raise DamagedCheckpoint(problem, self._advice)
        held = {unit: (part, index) for unit, part, index, _ in self._held.get(name, ())}
        if not file_metadata(self.manifest.step, held).items() <= file.metadata.items():
            problem = f"{file.path} holds other shards, or those of another step, than the manifest says"
            raise DamagedCheckpoint(problem, self._advice)
        self._files[name] = file
        return file

    def _expected(self, file: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """(name, shape, format) of every tensor that the manifest says a file holds."""
        for unit, _, index, part in self._held.get(file, ()):
            record = self.manifest.units[unit]
            for role, dtype in record.dtypes.items():
                left_out = part.first(record.without.get(role, 0)) - index * part.shard_numel
                yield tensor_name(unit, role), (part.shard_numel - min(max(left_out, 0), part.shard_numel),), dtype
        for name, extra in self.manifest.extras.items():
            if extra.file == file:
                yield extra_name(name), extra.shape, extra.dtype

    def verify_all(self) -> None:
        """Checks every byte of every file. Raises `DamagedCheckpoint` naming the first that is not as it was saved."""
        files = [self.file(name) for name in self.manifest.files]
        _verify([(file, file.all_chunks) for file in files], keep=False)

    def fill(self, reads: Iterable[TensorRead], advance: Callable[[], None] = lambda: None) -> None:
        """Checks the chunks that the reads need, all of them, then carries the reads out, and calls `advance` after each part of
        both. Raises `DamagedCheckpoint`; no tensor is touched where a chunk is not as it was saved."""
        reads = list(reads)
        needed: dict[str, set[int]] = {}
        for read in reads:
            for piece in read.ranges:
                needed.setdefault(piece.file, set()).update(self._files[piece.file].chunks_of(piece.start, piece.end))
        _verify([(self._files[name], sorted(chunks)) for name, chunks in sorted(needed.items())], True, advance)
        on_threads(self._carry_out, reads, advance)
        for file in self._files.values():
            file.forget()

    def _carry_out(self, read: TensorRead) -> None:
        out = read.out
        on_host = out.device.type == "cpu"
        direct = on_host and out.is_contiguous() and tuple(out.shape) == read.shape
        staged = out if direct else torch.empty(read.shape, dtype=out.dtype)
        memory, start = bytes_of(staged), 0
        for piece in read.ranges:
            end = start + piece.end - piece.start
            self._files[piece.file].read_into(memory[start:end], piece.start)
            start = end
        if on_host and not direct:  # torch would start threads of its own on each of these
            np.copyto(_numbers(out), _numbers(staged[read.part]))
        elif not direct:
            out.copy_(staged[read.part])


def can_be_read(path: Path, most_bytes: int = 1 << 30) -> bool:
    """Whether a checkpoint can be read, as far as a look at it tells: its manifest, the length of every file and, where all have
    `most_bytes` or fewer, every byte."""
    try:
        saved = SavedState(path, read_manifest(path))
        if sum(file.size_bytes for file in saved.manifest.files.values()) <= most_bytes:
            saved.verify_all()
    except RunFailure:
        return False
    return True


def _numbers(tensor: Tensor) -> np.ndarray:
    """The tensor's memory as integers of its element size: numpy has no bf16."""
    return tensor.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]).numpy()


def _verify(
    needed: Sequence[tuple[CheckedFile, Sequence[int]]], keep: bool, advance: Callable[[], None] = lambda: None
) -> None:
    """Checks chunks of files, some at a time. `keep`: they are read next."""
    tasks = [
        (file, chunks[start : start + _TASK_CHUNKS])
        for file, chunks in needed
        for start in range(0, len(chunks), _TASK_CHUNKS)
    ]
    on_threads(lambda task: task[0].verify(task[1], keep), tasks, advance)


def on_threads(work: Callable[[Any], None], tasks: Sequence[Any], advance: Callable[[], None] = lambda: None) -> None:
    """Runs the tasks on as many threads as the rank computes with, two at least; reading and digests hold no interpreter lock.
    Calls `advance` here after each."""
    if len(tasks) < 2:
        for task in tasks:
            work(task)
            advance()
        return
    with ThreadPoolExecutor(max(2, torch.get_num_threads())) as pool:
        for _ in pool.map(work, tasks):
            advance()
