"""A CUDA device that is not there: torch's functions take its tensors, which have no data and say that they lie on it.

Pinned memory of its host has no data either, since a run that offloads takes more of it than the machine of a rehearsal has.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fourfold.rehearse.journal import Journal

DEVICE = torch.device("cuda", 0)
META = torch.device("meta")


class PretendedDevice(TorchFunctionMode):
    """Within the block, tensors made on `DEVICE` lie on torch's meta device and answer as if on CUDA, so that every branch on the
    device goes CUDA's way. Whatever makes the host wait for the device is written down and answered with ones."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal
        self._pinned: dict[int, Any] = {}
        self.allocates_on_host = False
        """Whether what is allocated now lies in the host's memory."""

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._pinned

    def has(self, tensor: Tensor) -> bool:
        """Whether a tensor lies on the device: it has no data, and is not in the host's pinned memory."""
        return tensor.is_meta and not self.is_pinned(tensor)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = _ANSWERS.get(func)
        if answer is not None and args[0].is_meta:
            if not self.is_pinned(args[0]):
                return answer(self, func, args, kwargs or {})
            if func in _ON_HOST:
                return _ON_HOST[func]
        if not kwargs and func is not Tensor.to and func not in _PINNING:
            return func(*args)
        if func is Tensor.pin_memory:
            return self._pin(args[0].clone())
        if func is Tensor.is_pinned:
            return self.is_pinned(args[0])
        options = dict(kwargs or {})
        if func is Tensor.to:
            args = tuple(META if _is_cuda(each) else each for each in args)
        if _is_cuda(options.get("device")):
            if func in _FROM_VALUES:
                self._journal.wait(f"torch.{func.__name__}(..., device=): a copy from pageable memory")
            options["device"] = META
        if options.pop("pin_memory", False):
            return self._pinned_memory(func, args, options)
        return func(*args, **options)

    def _pinned_memory(self, func: Any, args: Any, options: dict[str, Any]) -> Tensor:
        """New memory of the host, of which no byte is taken."""
        self.allocates_on_host = True
        try:
            return self._pin(func(*args, **{**options, "device": META}))
        finally:
            self.allocates_on_host = False

    def _pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._pinned[key] = weakref.ref(storage, lambda _: self._pinned.pop(key, None))
        return tensor

    def _waited(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        self._journal.wait(f"Tensor.{func.__name__}()")
        ones = host_ones(tensor)
        return ones if func is Tensor.cpu else func(ones, *args[1:], **kwargs)


def host_ones(tensor: Tensor) -> Tensor:
    """Ones on the host in the place of a device's values; of a large tensor one number in the place of all."""
    few = tensor.numel() <= _FEW
    return torch.ones(tensor.shape if few else (), dtype=tensor.dtype).expand(tensor.shape)


def _is_cuda(value: Any) -> bool:
    return (isinstance(value, torch.device) and value.type == "cuda") or (
        isinstance(value, str) and value.startswith("cuda")
    )


def _place(mode: PretendedDevice, func: Any, args: Any, kwargs: Any) -> int:
    """An address: the same for views that begin at the same element of the same memory."""
    tensor: Tensor = args[0]
    return (tensor.untyped_storage()._cdata << 44) + tensor.storage_offset() * tensor.element_size()


_FEW = 1 << 16
"""Elements of a tensor whose values a host may look at one by one."""
_ON_HOST = {
    Tensor.is_cuda.__get__: False,  # type: ignore[attr-defined]
    Tensor.device.__get__: torch.device("cpu"),
}
"""Answers of a tensor in the host's memory."""
_PINNING = {Tensor.pin_memory, Tensor.is_pinned}
_FROM_VALUES = {torch.tensor, torch.as_tensor, torch.asarray}
_ANSWERS: dict[Any, Callable[[PretendedDevice, Any, Any, Any], Any]] = {
    Tensor.is_cuda.__get__: lambda mode, func, args, kwargs: True,  # type: ignore[attr-defined]
    Tensor.device.__get__: lambda mode, func, args, kwargs: DEVICE,
    Tensor.data_ptr: _place,
    **dict.fromkeys(
        (
            Tensor.item,
            Tensor.tolist,
            Tensor.cpu,
            Tensor.numpy,
            Tensor.__bool__,
            Tensor.__int__,
            Tensor.__float__,
            Tensor.__index__,
        ),
        PretendedDevice._waited,
    ),
}
"""Functions of a tensor on the device that are not passed on."""
