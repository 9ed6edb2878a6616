"""Activations in the host's memory: what a segment saved, taken apart into the memory that its tensors lie in, and put together.

Tensors that lie in one storage travel once and are views of one again. Tensors that others hold too (the segment's input and
output, parameters, the microbatch) stay where they are.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fourfold.model.environment import Saved
from fourfold.model.parallel import Pending
from fourfold.runtime.offload.host_link import HostCopies, HostLink


@dataclass(frozen=True)
class _HostPlace:
    """A tensor's place: which of the copies it is a view of, and how."""

    copy: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class OffloadedActivations:
    """Saved activations, with places instead of tensors."""

    saved: Saved
    copies: HostCopies


def offload_activations(saved: Saved, shared: Iterable[Tensor], link: HostLink) -> tuple[OffloadedActivations, Pending]:
    """Starts to copy what was saved to the host's memory. `shared`: tensors that others hold too."""
    stays = {tensor.untyped_storage()._cdata for tensor in shared}
    sources: dict[int, Tensor] = {}
    numbers: dict[int, int] = {}

    def taken(tensor: Tensor) -> Tensor | _HostPlace:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in stays or not storage.size():
            return tensor
        if key not in sources:
            numbers[key] = len(sources)
            sources[key] = tensor.as_strided((storage.size() // tensor.element_size(),), (1,), 0)
        size, stride = tuple(tensor.shape), tuple(tensor.stride())
        return _HostPlace(numbers[key], tensor.dtype, size, stride, int(tensor.storage_offset()))

    left = saved.changed(lambda value: _mapped(value, Tensor, taken))
    copies, pending = link.away(sources.values())
    return OffloadedActivations(left, copies), pending


def fetch_activations(offloaded: OffloadedActivations, device: torch.device, link: HostLink) -> tuple[Saved, Pending]:
    """Starts to copy them to new memory of the device."""
    there = offloaded.copies.tensors
    here = [torch.empty(source.shape, dtype=source.dtype, device=device) for source in there]
    pending = link.fetch(zip(here, there, strict=True))

    def put(place: _HostPlace) -> Tensor:
        flat = here[place.copy]
        flat = flat if flat.dtype == place.dtype else flat.view(place.dtype)
        return flat.as_strided(place.size, place.stride, place.offset)

    return offloaded.saved.changed(lambda value: _mapped(value, _HostPlace, put)), pending


def _mapped(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """The value with those of a kind changed, in tuples, lists and records too."""
    if isinstance(value, kind):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_mapped(each, kind, change) for each in value)
    if is_dataclass(value) and not isinstance(value, type | _HostPlace):
        parts = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        mapped = {name: _mapped(part, kind, change) for name, part in parts.items()}
        changed = {name: part for name, part in mapped.items() if part is not parts[name]}
        return replace(value, **changed) if changed else value
    return value
