"""Modules that the package imports and Python in a browser lacks."""

import sys
from types import ModuleType
from typing import Any

from fourfold.explore.browser import columns


class NDArray:
    """An array of a kind, for annotations."""

    def __class_getitem__(cls, kind: Any) -> type[columns.ndarray]:
        return columns.ndarray


def stand_in() -> None:
    """Makes `import numpy` give `columns`, and `import resource` a module with nothing in it: no document asks for the system's
    limits."""
    typing = ModuleType("numpy.typing")
    typing.NDArray = NDArray  # type: ignore[attr-defined]
    sys.modules |= {"numpy": columns, "numpy.typing": typing, "resource": ModuleType("resource")}
