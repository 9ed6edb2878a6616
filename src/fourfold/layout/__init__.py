"""Mesh coordinates and groups; which rank holds which rows, segments and ranges; which layouts are legal."""

from fourfold.layout.flat import FlatLayout, LocalParameter, flat_layout, flat_layouts
from fourfold.layout.mesh import AXES, Layout
from fourfold.layout.resolve import check_stages, resolve_layout

__all__ = [
    "AXES",
    "FlatLayout",
    "Layout",
    "LocalParameter",
    "check_stages",
    "flat_layout",
    "flat_layouts",
    "resolve_layout",
]
