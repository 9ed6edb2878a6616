"""Torch's dispatcher on the pretended device: kernels, copies from the host, memory; and calls that a device would reject."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fourfold.rehearse.journal import Journal, Launch
from fourfold.rehearse.pretend import PretendedDevice, host_ones
from fourfold.rehearse.shapes import KnownShapes, flatten
from fourfold.rehearse.streams import Streams
from fourfold.runtime.tracker import MemoryTracker

_ALLOCATES = {"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided"}
_VIEWS = {"_unsafe_view", "lift_fresh", "detach"}
_COPIES = {"_to_copy", "copy_"}
_BY_INDEX = {"index", "index_put", "index_put_"}
_NO_META = {"_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adamw_.tensor_lr"}
"""Operations that torch has no version of for tensors without data. They return nothing."""
_BY_VALUE = {"nonzero", "masked_select", "unique_dim", "_unique2", "_local_scalar_dense", "equal", "is_nonzero"}
"""Operations whose result the host must see before it goes on."""


class _Operation(NamedTuple):
    """An operation of torch: `kind` is view, allocate, copy, by_value or kernel; places and names of the arguments it writes.
    `overload`: its name with that of the overload, where it has one."""

    name: str
    overload: str
    kind: str
    written: tuple[int, ...]
    written_names: tuple[str, ...]


class DeviceKernels(MemoryTracker):
    """Within the block every operation is checked and counted. Enter the mode that pretends the device first."""

    def __init__(self, journal: Journal, device: PretendedDevice, streams: Streams, shapes: KnownShapes) -> None:
        super().__init__("meta")
        self._journal, self._device, self._streams, self._shapes = journal, device, streams, shapes
        self._operations: dict[Any, _Operation] = {}
        self._stale = True

    def after_instruction(self) -> None:
        """Looks at the units' buffers, which are allocated and freed without an operation."""
        self.refresh()
        self._stale = True
        freed = self._streams.freed_too_early()
        if freed is not None:
            raise self._journal.fault(freed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation, options = self._operation(func), kwargs or {}
        if operation.kind == "view":
            return func(*args, **options)
        if self._device.allocates_on_host:
            return func(*args, **options)
        if self._stale:
            self.refresh()
            self._stale = False
        here = self._device.has
        inputs = flatten((*args, *options.values()))
        if operation.kind == "copy" and self._crosses(operation, args, options):
            result = self._copy(operation, args, options, func)
        elif operation.kind == "allocate" or not any(here(x) for x in inputs):
            result = func(*args, **options)
            if operation.kind != "allocate" and isinstance(result, Tensor) and here(result):
                self._capture(operation, [result], (args, options))
        else:
            written = flatten([*(args[i] for i in operation.written), *map(options.get, operation.written_names)])
            self._run(operation, inputs, written, args)
            self._capture(operation, inputs, (args, options))
            result = None if operation.overload in _NO_META else self._shapes.run(func, args, options, written)
        for output in flatten(result if isinstance(result, tuple) else (result,)):
            if here(output):
                if not self.watches(output):
                    self._streams.allocated(output)
                self.watch(output)
        return result

    def _capture(self, operation: _Operation, tensors: list[Tensor], given: Any) -> None:
        """Notes an operation of a step that a graph captures, with the numbers that the graph would repeat."""
        if self._journal.captured is not None:
            sizes = tuple(tuple(tensor.shape) for tensor in tensors)
            launch = Launch(self._journal.instruction, operation.name, sizes, tuple(_numbers(given)))
            self._journal.captured.append(launch)

    def _operation(self, func: Any) -> _Operation:
        known = self._operations.get(func)
        if known is None:
            known = self._operations[func] = _operation(func)
        return known

    def _run(self, operation: _Operation, inputs: list[Tensor], written: list[Tensor], args: Any) -> None:
        """One kernel, or several: counted as one."""
        here = self._device.has
        host = [x for x in inputs if not here(x) and x.dim() > 0]
        if host:
            raise self._journal.fault(
                f"{operation.name} takes a tensor {list(host[0].shape)} on the CPU beside one on the device"
            )
        by_mask = operation.name in _BY_INDEX and any(x.dtype == torch.bool for x in flatten(args[1:2]))
        if operation.kind == "by_value" or by_mask:
            self._journal.wait(f"{operation.name}: the result's size depends on values")
        reads = [x for x in inputs if here(x) and not any(x is other for other in written)]
        self._moves(operation, reads, written)
        if any(x.numel() for x in inputs):
            self._journal.launch()

    def _touch(self, reads: list[Tensor], written: list[Tensor]) -> None:
        race = self._streams.race(reads, written)
        if race is not None:
            raise self._journal.fault(race)

    def _copy(self, operation: _Operation, args: Any, options: Any, func: Any) -> Any:
        """A copy between host and device. It is asynchronous from and to pinned memory alone."""
        source = args[0] if operation.name == "_to_copy" else args[1]
        asked, leaves = options.get("non_blocking") or args[2:3] == (True,), self._device.has(source)
        if leaves and operation.name == "copy_" and asked and self._device.is_pinned(args[0]):
            self._journal.copies += 1
            self._moves(operation, [source], [])
            return args[0]
        if leaves:
            self._journal.wait(f"{operation.name}: a copy to the host")
            values = host_ones(source).to(options.get("dtype") or source.dtype)
            return values if operation.name == "_to_copy" else args[0] if args[0].is_meta else args[0].copy_(values)
        if source.numel():
            if self._journal.captured is not None:
                raise self._journal.fault(f"{operation.name}: a captured step would copy the same values again")
            self._journal.copies += 1
            self._journal.copied_bytes += source.numel() * source.element_size()
            if not asked or not self._device.is_pinned(source):
                self._journal.wait(f"{operation.name}: a copy from pageable memory, or one that blocks")
        if operation.name == "copy_":
            self._moves(operation, [], [args[0]])
        return func(*args, **options)

    def _crosses(self, operation: _Operation, args: Any, options: Any) -> bool:
        """Whether a copy goes from host to device or back."""
        here = self._device.has
        if operation.name == "copy_":
            return here(args[0]) != here(args[1])
        target = options.get("device")
        return target is not None and (torch.device(target).type == "meta") != here(args[0])

    def _moves(self, operation: _Operation, reads: list[Tensor], written: list[Tensor]) -> None:
        """Reads or writes memory of the device on the current stream."""
        self._touch(reads, written)
        self._streams.kernel(f"{self._journal.instruction}: {operation.name}", reads, written)


def _operation(func: Any) -> _Operation:
    schema, name = func._schema, func.overloadpacket.__name__
    aliases = [each.alias_info for each in schema.returns]
    written = tuple(i for i, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write)
    names = tuple(schema.arguments[i].name for i in written if schema.arguments[i].kwarg_only)
    if name in _ALLOCATES:
        kind = "allocate"
    elif (
        name in _VIEWS
        or torch.Tag.inplace_view in func.tags
        or (aliases and not written and all(each is not None for each in aliases))
    ):
        kind = "view"
    elif name in _COPIES:
        kind = "copy"
    else:
        kind = "by_value" if name in _BY_VALUE else "kernel"
    positional = tuple(i for i in written if not schema.arguments[i].kwarg_only)
    overload = f"{name}.{func._overloadname}" if func._overloadname != "default" else name
    return _Operation(name, overload, kind, positional, names)


def _numbers(given: Any) -> Iterator[float]:
    """Numbers among the arguments of a call, at any depth."""
    if isinstance(given, bool | int | float):
        yield float(given)
    elif isinstance(given, Tensor):
        if not given.is_meta and given.dim() == 0:
            yield float(given)
    elif isinstance(given, Mapping):
        yield from _numbers(tuple(given.values()))
    elif isinstance(given, Sequence) and not isinstance(given, str):
        for each in given:
            yield from _numbers(each)
