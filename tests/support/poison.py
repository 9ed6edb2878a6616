"""Memory that nobody has written, made to be seen: whatever is allocated within the block holds NaN in every format."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """`torch.empty` and its kind, and storages that grow. Not exact for integers, which hold their largest number."""
    resize = torch.UntypedStorage.resize_
    flags = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory

    def resize_and_fill(storage: torch.UntypedStorage, size: int) -> None:
        before = storage.size()
        resize(storage, size)
        if size > before:
            torch.tensor([], dtype=torch.uint8).set_(storage)[before:].fill_(255)  # type: ignore[call-overload]

    torch.UntypedStorage.resize_ = resize_and_fill  # type: ignore[method-assign,assignment]
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
        torch.use_deterministic_algorithms(flags[0])
        torch.utils.deterministic.fill_uninitialized_memory = flags[1]
