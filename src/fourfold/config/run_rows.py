"""Rows of a run's events and metrics as any reader may take them: a run's folder may be somebody else's, or damaged."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fourfold.config.json_lines import newest_first, read_jsonl

MOST_STEP = 2**53
LARGEST = 1e60
"""Numbers beyond are none: products and long sums of those below stay finite."""
_LATEST = 1e11
"""Unix times beyond have no clock to show them on."""
_NUMBERS = frozenset(
    (
        "loss", "grad_norm", "lr", "tokens", "mfu", "validation_loss", "seconds", "ratio", "peak_flops", "skipped_steps", "time",
    )
)  # fmt: skip
_ENDINGS = ("_seconds", "_per_second", "_bytes", "_loss", "_flops")
_SIGNED = frozenset(("loss", "grad_norm", "lr", "validation_loss"))


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a file, each as `clean_row` gives it; empty where it is missing."""
    return map(clean_row, read_jsonl(path))


def newest_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows that `read_rows` gives, the last one first: as much of the file is read as is asked for."""
    return map(clean_row, newest_first(path))


def step_rows(path: Path, first: int = 0, end: int = MOST_STEP) -> dict[int, dict[str, Any]]:
    """The newest row of every step from `first` to before `end`, by step, of a file of metrics, which is read from its end."""
    found: dict[int, dict[str, Any]] = {}
    for row in newest_rows(path):
        if (step := row.get("step")) is None:
            continue
        if step < first:
            break
        if step < end:
            found.setdefault(step, row)
    return dict(sorted(found.items()))


def clean_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without what no run writes: a step that is no count, a time that no clock shows, a quantity that is no finite number
    or is negative. `comm_bytes` has numbers by axes. Whatever else there is stays."""
    cleaned = ((key, value, _clean(key, value)) for key, value in row.items())
    return {key: clean for key, value, clean in cleaned if clean is not None or value is None}


def _clean(key: str, value: Any) -> Any:
    if key == "step":
        return value if type(value) is int and 0 <= value < MOST_STEP else None
    if key == "comm_bytes" and isinstance(value, Mapping):
        return {axes: size for axes, size in value.items() if (finite_number(size) or -1.0) >= 0}
    if key == "event":
        return value if isinstance(value, str) else str(value)[:80]
    if isinstance(value, int | float) and finite_number(value) is None and not isinstance(value, bool):
        return None
    if key not in _NUMBERS and not key.endswith(_ENDINGS):
        return value
    number = quantity(key, value)
    return None if number is None or (key == "time" and number > _LATEST) else value


def quantity(key: str, value: Any) -> float | None:
    """A number that a run may state under a key: finite, and not negative where it is a count, a time or a size. None for anything
    else."""
    number = finite_number(value)
    return None if number is not None and number < 0 and not is_signed(key) else number


def is_signed(key: str) -> bool:
    """Whether a run may state a negative number under a key."""
    return key in _SIGNED or not (key in _NUMBERS or key.endswith(_ENDINGS))


def finite_number(value: Any) -> float | None:
    """A number of at most `LARGEST`, which JSON can hold; None for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) <= LARGEST else None
