"""The keys of device and cluster files, their bounds, and one message for each mistake in them."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from fourfold.config.errors import UserError, did_you_mean, lower_first, shortened, unknown_key
from fourfold.config.schema import GemmRecipeName
from fourfold.config.section import Section
from fourfold.hardware.types import PEAK_BITS

MAX_DEVICES = 1_000_000
"""Most devices of a cluster: ten times the largest that is known."""


def _integer(value: Any) -> Any:
    """8e10 is as good a number of bytes as 80000000000."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def _shown(value: Any) -> Any:
    if isinstance(value, str) and not all(c.isprintable() or c == "\n" for c in value):
        raise ValueError("text should have no control characters")
    return value


Name = Annotated[str, Field(min_length=1, max_length=200), BeforeValidator(_shown)]
Source = Annotated[str, Field(min_length=1, max_length=4000), BeforeValidator(_shown)]
Bytes = Annotated[int, BeforeValidator(_integer), Field(ge=1_000_000, le=10**15)]
Rate = Annotated[float, Field(ge=1e3, le=1e18)]
Flops = Annotated[float, Field(ge=1e6, le=1e21)]
Devices = Annotated[int, BeforeValidator(_integer), Field(ge=1, le=MAX_DEVICES)]
Positive = Annotated[float, Field(ge=1e-3, le=1e12)]
Format = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4"]
KernelConstant = Literal[
    "gemm_share",
    "gemm_half_tiles",
    "gemm_half_inner",
    "gemm_full_rows",
    "low_share",
    "attention_share",
    "attention_backward_share",
    "attention_half_keys",
    "attention_half_width",
    "attention_half_blocks",
    "memory_share",
    "launch_seconds",
]
"""Constants of `cost.kernels.Kernels` that a measured device states."""
Constant = Annotated[float, Field(ge=1e-9, le=1e5)]


class DeviceTable(Section):
    """A device file, or the `[device]` table of a cluster file. Units: bytes, bytes per second, FLOP per second, watts."""

    name: Name
    source: Source
    memory_bytes: Bytes
    memory_bytes_per_second: Rate
    peak_flops_per_second: Annotated[dict[Format, Flops], Field(min_length=1)]
    units: Annotated[int, BeforeValidator(_integer), Field(ge=1, le=1_000_000)] | None = None
    unit_memory_bytes: Annotated[int, BeforeValidator(_integer), Field(ge=1024, le=10**12)] | None = None
    power_watts: Positive | None = None
    gemm_recipes: list[GemmRecipeName] | None = None
    kernels: Annotated[dict[KernelConstant, Constant], Field(default_factory=dict)]
    host_bytes_per_second: Rate | None = None
    host_launch_seconds: Annotated[float, Field(ge=0, le=1)] | None = None
    context_bytes: Annotated[int, BeforeValidator(_integer), Field(ge=0, le=10**12)] | None = None


class LevelTable(Section):
    """One `[[levels]]` table. Units: bytes per second, seconds."""

    name: Name
    kind: Literal["switch", "torus", "shared"]
    devices: Devices
    bytes_per_second: Rate
    latency_seconds: Annotated[float, Field(ge=0, le=10)]
    dimensions: Annotated[list[Annotated[int, Field(ge=1, le=MAX_DEVICES)]], Field(default_factory=list, max_length=4)]
    wrap_multiple: Annotated[int, Field(ge=1, le=MAX_DEVICES)] = 1
    part_multiple: Annotated[int, Field(ge=1, le=MAX_DEVICES)] | None = None
    scalable: bool = False

    @field_validator("name")
    @classmethod
    def _short(cls, value: str) -> str:
        if len(value) > 40:
            raise ValueError("a level's name should have at most 40 characters")
        return value


class ClusterTable(Section):
    """A cluster file, its device and its calibration apart. Units: dollars and hours per device, watts."""

    name: Name
    source: Source
    devices: Devices
    levels: Annotated[list[LevelTable], Field(min_length=1, max_length=8)]
    dollars_per_device_hour: Annotated[float, Field(ge=0, le=1e6)] | None = None
    mean_hours_between_failures_per_device: Positive | None = None
    watts_per_device: Positive | None = None
    host_memory_bytes_per_device: Bytes | None = None


CLUSTER_EXTRA = ("device", "calibration")
"""Keys of a cluster file beside those of `ClusterTable`."""

_EXAMPLES: dict[str, str] = {
    "name": '"My machine"',
    "source": '"datasheet of 2024-05"',
    "memory_bytes": "85_899_345_920",
    "memory_bytes_per_second": "3.35e12",
    "peak_flops_per_second": "{ bf16 = 989e12 }",
    **dict.fromkeys(PEAK_BITS, "989e12"),
    "units": "132",
    "unit_memory_bytes": "233_472",
    "power_watts": "700",
    "kernels": "{ gemm_share = 0.8 }",
    "launch_seconds": "3e-6",
    "host_bytes_per_second": "64e9",
    "host_launch_seconds": "5e-6",
    "context_bytes": "500_000_000",
    "kind": '"switch"',
    "devices": "8",
    "bytes_per_second": "450e9",
    "latency_seconds": "2e-6",
    "dimensions": "[16, 16]",
    "wrap_multiple": "4",
    "part_multiple": "4",
    "scalable": "true",
    "levels": 'a table [[levels]] with name = "nvlink", kind = "switch", devices = 8, ...',
    "dollars_per_device_hour": "2.5",
    "mean_hours_between_failures_per_device": "50_000",
    "watts_per_device": "1275",
    "host_memory_bytes_per_device": "256_000_000_000",
}

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
    example = _EXAMPLES.get(last) or (_EXAMPLES[str(location[0])] if location else "")
    if "[key]" in item["loc"]:
        if location[-2] == "kernels":
            constants = get_args(KernelConstant)
            hint = did_you_mean(last, constants)
            return f"unknown constant {shortened(key)}; {hint}allowed: {', '.join(constants)}; for example gemm_share = 0.8"
        hint = did_you_mean(last, PEAK_BITS)
        return (
            f"unknown number format {shortened(key)}; {hint}allowed: {', '.join(PEAK_BITS)}; for example bf16 = 989e12"
        )
    if item["type"] == "missing":
        return f"key {key!r} is missing; for example {last} = {example}"
    message = lower_first(item["msg"].removeprefix("Value error, "))
    return f"{key} = {shortened(item['input'])}: {message}; a value that works: {example}"


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
