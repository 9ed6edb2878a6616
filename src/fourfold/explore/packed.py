"""Columns of numbers as text in a document: a long one is written and read many times sooner than a list of numbers."""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fourfold.results.record import record

Kind = Literal["uint8", "uint16", "int32", "float64"]


@record
class Packed:
    """Numbers of a kind, little-endian, in base64."""

    kind: Kind
    base64: str


def packed(numbers: NDArray[Any], kind: Kind) -> dict[str, str]:
    """A column of a document. Raises `ValueError` where the kind cannot hold its numbers."""
    column = numbers.astype(np.dtype(kind).newbyteorder("<"))
    if not np.array_equal(column, numbers):
        raise ValueError(f"{kind} cannot hold {numbers.min()} to {numbers.max()}")
    return {"kind": kind, "base64": b64encode(column.tobytes()).decode("ascii")}


def unpacked(column: Mapping[str, Any]) -> NDArray[Any]:
    """The numbers of a column."""
    return np.frombuffer(b64decode(column["base64"]), np.dtype(column["kind"]).newbyteorder("<"))
