"""A torch that says it has CUDA devices: what would lie on one lies in the host's memory, and answers as if it lay there.

Every branch on the device goes CUDA's way with real numbers: streams and events (which are over at once), pinned memory, NCCL's
calls (by gloo), the launch, saves, the end of a run. It rejects as CUDA would: a kernel whose tensors lie on both sides,
NumPy's view of a tensor on the device, a collective of NCCL over a tensor of the host. Left out: order between streams (rehearsals
have it), graphs, kernels that exist on CUDA alone, times.
"""

import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fourfold.rehearse import fake_streams

CPU = torch.device("cpu")
MEMORY_BYTES = 80 * 10**9
TIMED_SIZE = 4096
"""Matmuls of this size only time a device, and are not computed."""


class FakeDevices(TorchFunctionMode):
    """The mode under which every thread of the process runs."""

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        self.peak_bytes = 0
        self._there: dict[int, tuple[Any, int]] = {}
        self._pinned: dict[int, Any] = {}

    def place(self, tensor: Tensor) -> int | None:
        """The device that holds a tensor; None: the host's memory does."""
        found = self._there.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[1]

    def put(self, value: Any, index: int) -> Any:
        """The tensors of a result lie on the device from now on."""
        for tensor in _tensors(value):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self._there:
                self._there[key] = weakref.ref(storage, partial(_forget, self._there, key)), index
        return value

    def pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._pinned[key] = weakref.ref(storage, partial(_forget, self._pinned, key))
        return tensor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        first = args[0] if args and isinstance(args[0], Tensor) else None
        here = None if first is None else self.place(first)
        if func in _ATTRIBUTES:
            return _ATTRIBUTES[func](self, func, first, here)
        if func is Tensor.to or func in (Tensor.cuda, Tensor.cpu):
            return self._moved(func, args, options, here)
        if func is Tensor.pin_memory:
            return self.pin(first.clone())  # type: ignore[union-attr]
        if func is Tensor.is_pinned:
            return first.untyped_storage()._cdata in self._pinned  # type: ignore[union-attr]
        if func is Tensor.numpy and here is not None:
            raise TypeError(f"can't convert cuda:{here} device type tensor to numpy. Use Tensor.cpu() first")
        target = _device(options.get("device"))
        if target is not None:
            options["device"] = CPU
        pinned = options.pop("pin_memory", False)
        given = list(_tensors((args, tuple(options.values()))))
        places = {self.place(each) for each in given if each.dim() > 0 or func in _JOINS}
        if len(places) > 1 and func not in _TAKES_BOTH:
            raise RuntimeError(
                f"{getattr(func, '__name__', func)}: expected all tensors to be on the same device, but found at least two "
                f"devices, {sorted(map(_name, places))}"
            )
        if func is torch.mm and min(args[0].shape) >= TIMED_SIZE:
            return self.put(torch.empty(args[0].shape[0], args[1].shape[1], dtype=args[0].dtype), self.current)
        wider = options.pop("out_dtype", None)
        if wider is not None:  # a matmul of CUDA's that accumulates into a wider format
            args = tuple(each.to(wider) if isinstance(each, Tensor) else each for each in args)
        result = func(*args, **options)
        if pinned:
            return self.pin(result)
        if target is not None and target.type == "cuda":
            return self.put(result, self.current if target.index is None else target.index)
        given = list(_tensors((args, tuple(options.values()))))
        on = {self.place(each) for each in given} - {None}
        if target is None and on and func not in _READS:
            own = {each.untyped_storage()._cdata for each in given}  # what is written to stays where it is
            made = [each for each in _tensors(result) if each.untyped_storage()._cdata not in own]
            self.put(made, on.pop())  # type: ignore[arg-type]
        return result

    def _moved(self, func: Any, args: Any, options: dict[str, Any], here: int | None) -> Any:
        """`to`, `cuda` or `cpu`: a copy where the place changes."""
        others = [each for each in (*args[1:], *options.values()) if not isinstance(each, bool)]
        targets = [target for each in others if (target := _device(each)) is not None]
        if func is Tensor.cpu:
            there: int | None = None
        elif func is Tensor.cuda:
            there = self.current
        elif targets:
            target = targets[0]
            there = None if target.type == "cpu" else self.current if target.index is None else target.index
        elif others and isinstance(others[0], Tensor):
            there = self.place(others[0])
        elif others and isinstance(others[0], float):  # torch takes it for a tensor, of the host
            there = None
        else:
            there = here
        kept = [CPU if _device(each) is not None else each for each in args]
        named = {key: CPU if _device(each) is not None else each for key, each in options.items()}
        result = Tensor.to(*kept, **named) if func is Tensor.to else args[0]
        if there != here and result.untyped_storage()._cdata == args[0].untyped_storage()._cdata:
            result = result.clone()
        return result if there is None else self.put(result, there)


def _forget(known: dict[int, Any], key: int, _: Any) -> None:
    known.pop(key, None)


class HostGenerator(torch.Generator):
    """A generator of the host's, whatever device is named."""

    def __new__(cls, device: Any = None) -> "HostGenerator":
        return super().__new__(cls)


FAKE = FakeDevices()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def _device(value: Any) -> torch.device | None:
    """A device as code names it; None for what names none. A bare number is no device here."""
    if isinstance(value, torch.device):
        return value
    if isinstance(value, str) and value.split(":")[0] in ("cuda", "cpu"):
        return torch.device(value)
    return None


def _name(place: int | None) -> str:
    return "cpu" if place is None else f"cuda:{place}"


_ATTRIBUTES: dict[Any, Callable[..., Any]] = {
    Tensor.is_cuda.__get__: lambda mode, func, tensor, here: here is not None,  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: lambda mode, func, tensor, here: here is None,  # type: ignore[attr-defined]
    Tensor.device.__get__: lambda mode, func, tensor, here: torch.device(_name(here)),
    Tensor.get_device: lambda mode, func, tensor, here: -1 if here is None else here,
}
_READS = {Tensor.tolist, Tensor.item, Tensor.numpy, Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__}
_TAKES_BOTH = {Tensor.copy_, Tensor.__getitem__, Tensor.__setitem__, torch.equal, Tensor.is_set_to}
"""Functions whose tensors may lie in different places, and those that are harmless."""


_JOINS = {torch.cat, torch.stack}
"""Functions that take no scalar of another place, as those element by element do."""


def _live_bytes(*_: Any) -> int:
    size = sum(int(storage.nbytes()) for ref, _ in list(FAKE._there.values()) if (storage := ref()) is not None)
    FAKE.peak_bytes = max(FAKE.peak_bytes, size)
    return size


def _peak_bytes(*_: Any) -> int:
    _live_bytes()
    return FAKE.peak_bytes


def _set_device(device: Any) -> None:
    FAKE.current = device if isinstance(device, int) else torch.device(device).index or 0


def install(devices: int) -> None:
    """Changes torch in this process, for every thread that exists or begins."""
    properties = SimpleNamespace(
        name="no device at all", total_memory=MEMORY_BYTES, multi_processor_count=132, major=9, minor=0, uuid="0"
    )
    nothing: Callable[..., None] = lambda *args, **kwargs: None  # noqa: E731
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: devices,
        "set_device": _set_device,
        "current_device": lambda: FAKE.current,
        "synchronize": nothing,
        "empty_cache": nothing,
        "ipc_collect": nothing,
        "reset_peak_memory_stats": nothing,
        "memory_allocated": _live_bytes,
        "max_memory_allocated": _peak_bytes,
        "memory_reserved": _live_bytes,
        "max_memory_reserved": _peak_bytes,
        "mem_get_info": lambda *_: (MEMORY_BYTES - _live_bytes(), MEMORY_BYTES),
        "get_device_properties": lambda *_: properties,
        "get_device_name": lambda *_: properties.name,
        "get_device_capability": lambda *_: (9, 0),
        "is_current_stream_capturing": lambda: False,
        "current_stream": fake_streams.current_stream,
        "default_stream": fake_streams.current_stream,
        "stream": fake_streams.use_stream,
        "Stream": fake_streams.FakeStream,
        "Event": fake_streams.FakeEvent,
    }.items():
        setattr(torch.cuda, name, value)
    _replace(torch, Generator=HostGenerator)
    _install_nccl()
    begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def begin_on_devices(thread: threading.Thread) -> None:
        with FAKE:
            begin(thread)

    threading.Thread._bootstrap_inner = begin_on_devices  # type: ignore[attr-defined]
    FAKE.__enter__()


def _replace(module: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(module, name, value)


_NATIVE: "weakref.WeakSet[Any]" = weakref.WeakSet()
"""Groups that were asked of NCCL."""


def _install_nccl() -> None:
    """Gloo in NCCL's place, behind its name."""
    begin: Any = dist.init_process_group
    new_group: Any = dist.new_group
    get_backend = dist.get_backend

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("device_id", None)
        begin("gloo" if backend == "nccl" else backend, *args, **kwargs)
        if backend == "nccl":
            _NATIVE.add(dist.group.WORLD)

    def make_group(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        asked = kwargs.pop("backend", None) or ("nccl" if dist.group.WORLD in _NATIVE else "gloo")
        group = new_group(*args, backend="gloo", **kwargs)
        if asked == "nccl" and isinstance(group, dist.ProcessGroup):
            _NATIVE.add(group)
        return group

    def backend_of(group: Any = None) -> str:
        return "nccl" if (group or dist.group.WORLD) in _NATIVE else get_backend(group)

    _replace(dist, init_process_group=init_process_group, new_group=make_group, get_backend=backend_of)
    _replace(dist, is_nccl_available=lambda: True)
    _replace(torch.cuda.nccl, version=lambda: (2, 28, 9))
    for name in ("all_reduce", "broadcast", "all_to_all_single", *_FLAT):
        if hasattr(dist, name):
            setattr(dist, name, _checked(getattr(dist, name)))


_FLAT = ("all_gather_into_tensor", "all_gather_single", "reduce_scatter_tensor", "reduce_scatter_single")
"""Collectives whose tensors NCCL takes in any shape, and gloo in one."""


def _checked(collective: Callable[..., Any]) -> Callable[..., Any]:
    """NCCL takes tensors of a device alone."""

    def call(*args: Any, **kwargs: Any) -> Any:
        group = kwargs.get("group") or dist.group.WORLD
        if group in _NATIVE and any(FAKE.place(tensor) is None for tensor in _tensors(args)):
            raise ValueError(f"{collective.__name__}: no backend of this group takes a tensor of type cpu")
        if collective.__name__ in _FLAT:
            args = (*(tensor.view(-1) for tensor in args[:2]), *args[2:])
        return collective(*args, **kwargs)

    return call
