"""A device beside its host: values to it without waiting and back from it once, and a stream beside the computing one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
from torch import Tensor

Side = Callable[[], AbstractContextManager[None]]
"""Within the block, work goes to the side stream, after all that the computing stream was given."""


def host_tensor(array: np.ndarray, device: torch.device) -> Tensor:
    """An array as a CPU tensor; where it goes to another device, in pinned memory."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on the device. A copy from pinned memory does not block, and torch keeps that memory until the copy is over."""
    if device.type == "cuda" and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def read_back(tensors: Sequence[Tensor]) -> list[list[float]]:
    """The values of several small tensors on one device, [n] or scalars, in one copy: the host waits for the device once."""
    values = torch.cat([tensor.reshape(-1).double() for tensor in tensors]).tolist()
    parts, start = [], 0
    for tensor in tensors:
        parts.append(values[start : start + tensor.numel()])
        start += tensor.numel()
    return parts


def side_stream(device: torch.device) -> Side | None:
    """The side stream of a CUDA device; None on a processor, which has no streams."""
    if device.type == "cpu":
        return None
    stream = torch.cuda.Stream(device)

    @contextmanager
    def on_side() -> Iterator[None]:
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            yield

    return on_side
