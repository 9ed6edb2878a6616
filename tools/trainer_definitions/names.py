"""The functions and dataclasses that the exported Python files use, by module."""

from collections.abc import Mapping

from fourfold.export.bridge import MODULES as BRIDGE_MODULES
from fourfold.export.torchtitan import MODULES as TORCHTITAN_MODULES


def by_module(names: Mapping[str, str], package: str) -> dict[str, list[str]]:
    """Names of one package, by the module that they are imported from."""
    found: dict[str, list[str]] = {}
    for name, module in names.items():
        if module.startswith(package):
            found.setdefault(module, []).append(name)
    return found


BRIDGE = by_module(BRIDGE_MODULES, "megatron")
TORCHTITAN = by_module(TORCHTITAN_MODULES, "torchtitan")
