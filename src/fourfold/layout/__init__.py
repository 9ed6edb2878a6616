"""Mesh coordinates and groups; which rank holds which rows, segments and ranges; which layouts are legal."""

from fourfold.layout.flat import FlatLayout, flat_layouts
from fourfold.layout.mesh import AXES, Layout
from fourfold.layout.resolve import resolve_layout

__all__ = ["AXES", "FlatLayout", "Layout", "flat_layouts", "resolve_layout"]
