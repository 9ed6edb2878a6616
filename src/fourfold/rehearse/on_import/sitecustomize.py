"""CUDA devices that are not there, for processes that are started with this folder on PYTHONPATH: see `fake_devices.py`.

FOURFOLD_FAKE_DEVICES: how many. Torch is changed when it is imported.
"""

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _AfterTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads torch as it is, and changes it then."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        try:
            found = importlib.util.find_spec("torch")
        finally:
            sys.meta_path.insert(0, self)
        if found is not None and found.loader is not None:
            self._load, found.loader = found.loader, self
        return found

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._load.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._load.exec_module(module)
        from fourfold.rehearse import fake_devices

        fake_devices.install(int(os.environ["FOURFOLD_FAKE_DEVICES"]))


if "FOURFOLD_FAKE_DEVICES" in os.environ:
    sys.meta_path.insert(0, _AfterTorch())
