"""transformers' modules in fp64 throughout: their casts to fp32 become casts to fp64."""

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor


class _DoubleTorch(ModuleType):
    """torch, whose `float32` and `float` are fp64."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def compute_in_double(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    for module in modules:
        monkeypatch.setattr(module, "torch", _DoubleTorch("torch"))
    monkeypatch.setattr(Tensor, "float", Tensor.double)
