"""Software profiles of one's own: a TOML file that names a shipped profile and states the constants that depart from it."""

import math
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import tomli_w

from fourfold.config import UserError, did_you_mean
from fourfold.config.small_toml import SmallToml
from fourfold.config.whole_file import write_whole
from fourfold.cost.fitted import fitted, framework_of
from fourfold.cost.software import SoftwareProfile

_EXAMPLE = 'base = "megatron-2025" and, under [constants], gemm_speed = 0.95'
_FILES = SmallToml(
    "a software profile", "mine.toml", "what works: a file that fourfold fit wrote", f"; what works: {_EXAMPLE}"
)


def is_software_file(name: str) -> bool:
    """Whether `--software` names a file, not a shipped profile."""
    return name.endswith(".toml")


def read_software(path: Path) -> SoftwareProfile:
    """The profile of a file. Its name is the file's stem. Raises `UserError`."""
    table = _FILES.table(_FILES.read(path), str(path))
    base, constants = table.get("base"), table.get("constants", {})
    known = sorted(fitted().profiles)
    if not isinstance(base, str) or framework_of(base) not in map(framework_of, known):
        hint = did_you_mean(str(base), known, repr)
        raise UserError(f"{path}: base = {base!r}: no such software; {hint}what works: {_EXAMPLE}")
    if not isinstance(constants, dict):
        raise UserError(f"{path}: constants = {constants!r}; what works: {_EXAMPLE}")
    numbers = {field.name: field.default for field in fields(SoftwareProfile) if _is_number(field.default)}
    for key, value in constants.items():
        if key not in numbers:
            hint = did_you_mean(key, numbers, repr)
            raise UserError(f"{path}: constants.{key}: no such constant; {hint}what works: {_EXAMPLE}")
        if not _is_number(value) or not math.isfinite(value) or not -1 < value < 1e12:
            raise UserError(
                f"{path}: constants.{key} = {value!r}; allowed: a number; a value that works: {numbers[key]}"
            )
    return SoftwareProfile(**{**fitted().entry(base), **constants, "name": path.stem})


def write_software(path: Path, base: str, constants: Mapping[str, float], about: str) -> None:
    """Writes a new file that `read_software` reads. Raises `UserError` where there is one, `OSError` where the
    disk refuses."""
    table: dict[str, Any] = {"base": base, "constants": dict(constants)}
    lines = "".join(f"# {line}\n" for line in about.splitlines())
    if os.path.lexists(path):
        raise UserError(f"{path}: exists already; name a new file")
    write_whole(path, lines + tomli_w.dumps(table))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
