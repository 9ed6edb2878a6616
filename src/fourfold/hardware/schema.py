"""The tables of device and cluster files, whose keys `types` describes, and one message for each mistake in them."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError, field_validator

from fourfold.config.errors import UserError, did_you_mean, lower_first, shortened, unknown_key
from fourfold.config.section import Section
from fourfold.hardware.types import KERNEL_CONSTANTS, PEAK_BITS, ClusterFigures, DeviceFigures, Extent, Level


class DeviceTable(Section, DeviceFigures):
    """A device file, or the `[device]` table of a cluster file."""


class LevelTable(Section, Level):
    """One `[[levels]]` table."""

    dimensions: list[Extent] = Field(default_factory=list, max_length=4, examples=["[16, 16]"])  # type: ignore[assignment]

    @field_validator("name")
    @classmethod
    def _short(cls, value: str) -> str:
        if len(value) > 40:
            raise ValueError("a level's name should have at most 40 characters")
        return value


_A_LEVEL = 'a table [[levels]] with name = "nvlink", kind = "switch", devices = 8, ...'


class ClusterTable(Section, ClusterFigures):
    """A cluster file, its device and its calibration apart."""

    levels: Annotated[list[LevelTable], Field(min_length=1, max_length=8, examples=[_A_LEVEL])]


CLUSTER_EXTRA = ("device", "calibration")
"""Keys of a cluster file beside those of `ClusterTable`."""

Table = TypeVar("Table", DeviceTable, ClusterTable)


def check(kind: type[Table], table: Mapping[str, Any], where: str, extra: tuple[str, ...] = ()) -> Table:
    """`table` as `kind`. Raises `UserError`, one line a mistake, each beginning with `where` and naming the key."""
    try:
        return kind.model_validate(table)
    except ValidationError as error:
        lines = [f"{where}: {_explain(item, kind, extra)}" for item in error.errors()[:10]]
        raise UserError("\n".join(dict.fromkeys(lines))) from None


def _explain(item: Any, kind: type[Section], extra: tuple[str, ...]) -> str:
    location = [part for part in item["loc"] if part != "[key]"]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
    last = next((part for part in reversed(location) if isinstance(part, str)), "")
    if item["type"] == "extra_forbidden":
        fields = LevelTable if location[0] == "levels" else kind
        allowed = sorted([*fields.model_fields, *(extra if len(location) == 1 else ())])
        return unknown_key(shortened(key), last, allowed)
    example = _EXAMPLES.get(last) or _example(kind, location[0], last)
    if "[key]" in item["loc"]:
        if location[-2] == "kernels":
            hint = did_you_mean(last, KERNEL_CONSTANTS)
            return f"unknown constant {shortened(key)}; {hint}allowed: {', '.join(KERNEL_CONSTANTS)}; for example gemm_share = 0.8"
        hint = did_you_mean(last, PEAK_BITS)
        return (
            f"unknown number format {shortened(key)}; {hint}allowed: {', '.join(PEAK_BITS)}; for example bf16 = 989e12"
        )
    if item["type"] == "missing":
        return f"key {key!r} is missing; for example {last} = {example}"
    message = lower_first(item["msg"].removeprefix("Value error, "))
    return f"{key} = {shortened(item['input'])}: {message}; a value that works: {example}"


_EXAMPLES = {**dict.fromkeys(PEAK_BITS, "989e12"), "launch_seconds": "3e-6"}
"""Values that work of keys that no table describes."""


def _example(kind: type[Section], first: str, last: str) -> str:
    """A value that works of a key, or of the table that it is in. `first`: the key of the file."""
    table = LevelTable if first == "levels" and last in LevelTable.model_fields else kind
    field = table.model_fields.get(last) or kind.model_fields[first]
    return str((field.examples or ["another"])[0])


def check_levels(levels: list[LevelTable], where: str) -> None:
    """Checks levels against each other: each joins whole blocks of the one below, only the innermost may be a torus or used in
    part, only the outermost may grow. Raises `UserError` naming the key."""
    below = 1
    for index, level in enumerate(levels):
        key = f"{where}: levels[{index}]"
        if level.devices % below or (index and level.devices == below):
            raise UserError(
                f"{key}.devices = {level.devices}: level {level.name!r} should join a multiple of the {below} devices of "
                f"the level below, and more than it; a value that works: {max(2, level.devices // below + 1) * below}"
            )
        below = level.devices
        if level.scalable and (index < len(levels) - 1 or level.kind == "torus"):
            raise UserError(
                f"{key}.scalable = true: allowed for the outermost level alone, and not for a torus; a value that works: false"
            )
        if level.part_multiple and (index or level.kind == "torus" or level.devices % level.part_multiple):
            raise UserError(
                f"{key}.part_multiple = {level.part_multiple}: allowed for the innermost level alone, not for a torus, and a "
                f"divisor of its devices = {level.devices}; leave it out, or state 1"
            )
        if level.kind == "torus":
            _check_torus(level, index, key)
        elif level.dimensions or level.wrap_multiple != 1:
            name = "dimensions" if level.dimensions else "wrap_multiple"
            raise UserError(f'{key}.{name}: a {level.kind} has none; leave it out, or state kind = "torus"')


def _check_torus(level: LevelTable, index: int, key: str) -> None:
    if index:
        raise UserError(f'{key}.kind = "torus": allowed for the innermost level alone; a value that works: "switch"')
    if not level.dimensions:
        raise UserError(
            f"{key}.dimensions is missing: a torus needs its shape; for example dimensions = [{level.devices}]"
        )
    if math.prod(level.dimensions) != level.devices:
        raise UserError(
            f"{key}.dimensions = {level.dimensions}: their product should be the level's devices = {level.devices}; "
            f"a value that works: [{level.devices}]"
        )


MAX_CALIBRATION_VALUES = 100_000


def check_calibration(table: Any, where: str) -> dict[str, Any]:
    """`[calibration]`: tables (at most 8 deep) of finite numbers and of lists of them, at most 100,000 values together.
    Raises `UserError` naming the key."""
    if not isinstance(table, dict):
        raise UserError(f"{where}: calibration = {shortened(table)}: should be a table; for example [calibration]")
    left = MAX_CALIBRATION_VALUES
    pending: list[tuple[str, Any, int]] = [("calibration", table, 0)]
    while pending:
        key, value, depth = pending.pop()
        left -= 1
        if depth > 8 or left < 0:
            limit = "8 levels" if depth > 8 else f"{MAX_CALIBRATION_VALUES} values"
            raise UserError(f"{where}: {shortened(key)}: more than {limit}; run `fourfold calibrate` again")
        if isinstance(value, dict):
            pending += [(f"{key}.{name}", inner, depth + 1) for name, inner in value.items()]
        elif isinstance(value, list):
            pending += [(f"{key}[{index}]", inner, depth + 1) for index, inner in enumerate(value)]
        elif isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e30:
            raise UserError(
                f"{where}: {key} = {shortened(value)}: should be a finite number, or a list of them; for example 1.5e-6"
            )
    return dict(table)
