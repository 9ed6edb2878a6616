"""Live tensor bytes, measured: a dispatch mode that follows every storage from its first appearance to its end."""

import weakref
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryTracker(TorchDispatchMode):
    """Within the `with` block: `live_bytes` of the storages seen, and `peak_bytes`. Storages that exist already are added
    with `watch`; those that are resized (freed and refilled flat buffers) are asked for their size after each operation.
    Tensors on other devices than `device` are not counted.
    """

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self._counted = device
        self.peak_bytes = 0
        self._sizes: dict[int, int] = {}
        self._storages: dict[int, weakref.ref[Any]] = {}
        self._resizable: dict[int, weakref.ref[Any]] = {}
        self._total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: nothing here is compiled, and torch would import its compiler, which takes seconds, at the first operation."""
        return False

    @property
    def live_bytes(self) -> int:
        return self._total

    def watches(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's storage is counted."""
        return tensor.untyped_storage()._cdata in self._storages

    def watch(self, tensor: torch.Tensor, resizable: bool = False) -> None:
        """Counts a tensor's storage from now on."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._storages:
            self._storages[key] = weakref.ref(storage, partial(self._gone, key))
            self._set(key, storage.size())
            self.peak_bytes = max(self.peak_bytes, self._total)
        if resizable:
            self._resizable[key] = self._storages[key]

    def _set(self, key: int, size: int) -> None:
        self._total += size - self._sizes.get(key, 0)
        self._sizes[key] = size

    def _gone(self, key: int, _: Any) -> None:
        self._total -= self._sizes.pop(key, 0)
        self._storages.pop(key, None)
        self._resizable.pop(key, None)

    def refresh(self) -> None:
        """Asks the resizable storages for their size. One that was freed makes room for one that was allocated since."""
        for key, reference in list(self._resizable.items()):
            storage = reference()
            if storage is not None:
                self._set(key, storage.size())
        self.peak_bytes = max(self.peak_bytes, self._total)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.refresh()
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == self._counted:
                self.watch(leaf)
        return result
