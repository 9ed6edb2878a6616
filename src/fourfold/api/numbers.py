"""Numbers of a request, as Python has them or as text with suffixes: 16M, 15.6T."""

import math
import re
from collections.abc import Mapping

from fourfold.config import UserError

SUFFIXES = {
    "": 1,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "k": 10**3,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "B": 10**9,
    "T": 10**12,
    "P": 10**15,
}
LENGTH_SUFFIXES = SUFFIXES | {"k": 2**10, "K": 2**10, "M": 2**20}
"""Lengths of sequences are powers of two."""
_NUMBER = re.compile(r"([0-9][0-9_]{0,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE]\+?([0-9]{1,2}))?\s?([A-Za-z]?i?)")


def parse_length(stated: str | float, option: str) -> int:
    """Tokens of a sequence: `128k` -> 131072. Raises `UserError` naming the option."""
    return int(parse_number(stated, option, "8192", 1, 1e9, LENGTH_SUFFIXES))


def parse_number(
    stated: str | float,
    option: str,
    example: str,
    least: float = 0.0,
    most: float = 1e18,
    suffixes: Mapping[str, int] = SUFFIXES,
) -> float:
    """`15.6T` -> 15.6e12. k, M, G (or B) and T stand for 10**3, 10**6, 10**9 and 10**12, Ki, Mi and Gi for 2**10, 2**20 and 2**30.
    Raises `UserError` naming the option."""
    text = str(stated)
    match = _NUMBER.fullmatch(text.strip())
    if isinstance(stated, int | float):
        value = float(stated)
    elif match is not None and match[3] in suffixes:
        value = float(match[1].replace("_", "")) * 10.0 ** int(match[2] or 0) * suffixes[match[3]]
    else:
        raise UserError(
            f"{option} {text[:80]!r}: not a number; allowed: digits with k, M, G, T or nothing behind them; a value that works: "
            f"{option} {example}"
        )
    if not (math.isfinite(value) and least <= value <= most):
        raise UserError(f"{option} {text[:80]}: allowed: {least:g} to {most:g}; a value that works: {option} {example}")
    return value
