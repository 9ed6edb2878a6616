"""A back end: kernels that may compute a part of a step in the place of the operations that the model's segments call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

import torch

from fourfold.model import torch_operations
from fourfold.model.operations import Operations, with_operations

Case = TypeVar("Case")


@dataclass(frozen=True)
class Backend(Generic[Case]):
    """Kernels of one origin. `name`: in run files, checkpoints and messages; `members`: the operations that it replaces, by name,
    none: it is the formulas; `refuses`: why it does not take a case, None: it may; `activate`: called before its first use;
    `title`: its name in an event, where that is another."""

    name: str
    members: Mapping[str, object] = field(default_factory=dict)
    refuses: Callable[[Case], str | None] = lambda case: None
    activate: Callable[[], None] = lambda: None
    title: str = ""

    @property
    def operations(self) -> Operations:
        """PyTorch's operations, with its members."""
        return with_operations(torch_operations, self.members)


class LazyModule:
    """The functions of a module, which is imported when the first of them is used: it takes a library that may be missing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, member: str) -> Any:
        if member.startswith("__"):
            raise AttributeError(member)
        found = getattr(import_module(self._name), member)
        setattr(self, member, found)
        return found


def is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def triton_refuses(device: torch.device) -> str | None:
    """Why Triton's kernels do not run on a device; None: they do."""
    if device.type != "cuda":
        return "it runs on CUDA"
    return None if is_installed("triton") else "triton is not installed"
