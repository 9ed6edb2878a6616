"""Back ends with other functions in the place of some of their own."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from fourfold.kernels.backend import Backend
from fourfold.kernels.norm import FormulaNorms, NormCase


def with_members(backend: Backend[Any], name: str, **members: object) -> Backend[Any]:
    """The back end by another name, with these operations."""
    return replace(backend, name=name, members={**backend.members, **members})


def norms_with(**functions: object) -> Backend[NormCase]:
    """The formulas as a back end of norms called `other`, with these functions."""
    own = {name: getattr(FormulaNorms, name) for name in ("forward", "add_forward", "again", "backward")}
    return Backend("other", {"norms": SimpleNamespace(**{**own, **functions})})
