"""A package that is a function too: `fourfold.plan` holds the search, and `fourfold.plan(...)` plans.

The API's functions have the names of packages. One object is both, so that `fourfold.plan` is the same whatever was imported first,
and every form of import works. `Customizing module attribute access` in Python's reference describes the technique.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inspect import Signature


class CallablePackage(ModuleType):
    """A package whose call is the function of its name in the module `_function_module`."""

    _function_module: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    @property
    def _function(self) -> Any:
        return getattr(import_module(self._function_module), self.__name__.rpartition(".")[2])

    @property
    def __signature__(self) -> "Signature":
        """The function's, for notebooks and `inspect.signature`."""
        from inspect import signature

        return signature(self._function)


def make_callable(package: str, function_module: str) -> None:
    """Makes the package of that name callable. The module is imported with the first call."""
    module = sys.modules[package]
    module.__class__ = CallablePackage
    module._function_module = function_module  # type: ignore[attr-defined]
