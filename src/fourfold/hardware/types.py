"""Devices, interconnect levels and clusters: figures with units and bounds, as files state them, and peaks of number formats."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fourfold.config.errors import UserError
from fourfold.config.schema import GemmRecipeName

PEAK_BITS: dict[str, int] = {"fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "fp4": 4}
"""Number formats that a device may state a peak for, with the bits that one operand takes in memory."""

_NEXT: dict[str, tuple[str, ...]] = {
    "fp4": ("fp8", "bf16", "fp16", "tf32", "fp32", "fp64"),
    "fp8": ("bf16", "fp16", "tf32", "fp32", "fp64"),
    "bf16": ("fp16", "tf32", "fp32", "fp64"),
    "fp16": ("bf16", "tf32", "fp32", "fp64"),
    "tf32": ("fp32", "fp64"),
    "fp32": ("fp64",),
    "fp64": (),
}
"""Formats that stand in where a device does not state one, nearest first."""
KERNEL_CONSTANTS = (
    "gemm_share", "gemm_half_tiles", "gemm_half_inner", "gemm_full_rows", "low_share", "attention_share",
    "attention_backward_share", "attention_half_keys", "attention_half_width", "attention_half_blocks", "memory_share",
    "launch_seconds",
)  # fmt: skip
"""Constants of `cost.kernels.Kernels` that a measured device states."""
MAX_DEVICES = 1_000_000
"""Most devices of a cluster: ten times the largest that is known."""

PCIE_4 = 32e9
"""Bytes a second of a PCIe 4 x16, in one direction."""
HOST_LINK_SHARE = 0.78
"""Share of a link's rate that copies from and to pinned memory reach: some 25 of 32 GB/s of a PCIe 4 x16."""


def _integer(value: Any) -> Any:
    """8e10 is as good a number of bytes as 80000000000."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**63 else value


def _shown(value: Any) -> Any:
    if isinstance(value, str) and not all(c.isprintable() or c == "\n" for c in value):
        raise ValueError("text should have no control characters")
    return value


Name = Annotated[str, Field(min_length=1, max_length=200, examples=['"My machine"']), BeforeValidator(_shown)]
Source = Annotated[
    str, Field(min_length=1, max_length=4000, examples=['"datasheet of 2024-05"']), BeforeValidator(_shown)
]
Size = Annotated[int, BeforeValidator(_integer)]
Bytes = Annotated[Size, Field(ge=1_000_000, le=10**15)]
Rate = Annotated[float, Field(ge=1e3, le=1e18)]
Flops = Annotated[float, Field(ge=1e6, le=1e21)]
Devices = Annotated[Size, Field(ge=1, le=MAX_DEVICES, examples=["8"])]
Positive = Annotated[float, Field(ge=1e-3, le=1e12)]
Constant = Annotated[float, Field(ge=1e-9, le=1e5)]
Extent = Annotated[int, Field(ge=1, le=MAX_DEVICES)]
Format = Annotated[str, Field(pattern=f"^({'|'.join(PEAK_BITS)})$")]
KernelConstant = Annotated[str, Field(pattern=f"^({'|'.join(KERNEL_CONSTANTS)})$")]


@dataclass(frozen=True)
class _Keyed:
    key: str


@dataclass(frozen=True)
class DeviceFigures:
    """The keys of a device's file: one accelerator, as its maker states it.

    `source`: where the figures are from; "from memory" marks what was not read there.

    `memory_bytes`: the capacity on the label. Makers of accelerators write GB for 2**30 bytes, and so is it read here: "80 GB" is
    80 x 2**30. A framework can allocate some 0.5 to 3 % less; that belongs to the framework's overhead, not to the device.
    `memory_bytes_per_second`: peak of that memory, reads and writes together, GB = 1e9.

    `peak_flops_per_second`: dense matmuls, never with structured sparsity, by format of the operands (`PEAK_BITS`); a
    multiply-add counts 2. `fp32` is the rate without reduction to tf32; `fp64` that of tensor or matrix units where they have it.

    `units`: streaming multiprocessors, compute units or tensor cores that the tiles of a matmul are spread over.
    `unit_memory_bytes`: fast memory of each that a kernel keeps its tiles in (shared memory, LDS).
    `power_watts`: the maker's thermal or board limit of the device alone.

    `host_bytes_per_second`: of copies from and to the host's pinned memory, in one direction. None: those of a PCIe 4 x16 are
    assumed; on a processor (no `units`) both are one memory.

    `gemm_recipes`: recipes of low-precision matmuls that torch has a kernel for there. None: `fp8`, where fp8 has a peak.

    A device that `fourfold calibrate --device` measured has more figures. `kernels`: constants of `cost.kernels.Kernels` in
    place of fitted ones, shares of these peaks. `host_launch_seconds`: of the host, to start a kernel. `context_bytes`: memory that
    a process takes beside its tensors. `torch_matmul_speed`: of PyTorch's own matmuls on a processor, beside those that the
    constants describe (oneDNN's)."""

    name: Name
    source: Source
    memory_bytes: Annotated[Bytes, Field(examples=["85_899_345_920"])]
    memory_bytes_per_second: Annotated[Rate, Field(examples=["3.35e12"])]
    peak_flops_per_second: Annotated[Mapping[Format, Flops], Field(min_length=1, examples=["{ bf16 = 989e12 }"])] = (
        field(hash=False)
    )
    units: Annotated[Size | None, Field(ge=1, le=1_000_000, examples=["132"])] = None
    unit_memory_bytes: Annotated[Size | None, Field(ge=1024, le=10**12, examples=["233_472"])] = None
    power_watts: Annotated[Positive | None, Field(examples=["700"])] = None
    gemm_recipes: Annotated[list[GemmRecipeName] | None, Field(examples=['["fp8"]'])] = field(default=None, hash=False)
    host_bytes_per_second: Annotated[Rate | None, Field(examples=["64e9"])] = None
    kernels: Annotated[
        Mapping[KernelConstant, Constant], Field(default_factory=dict, examples=["{ gemm_share = 0.8 }"])
    ] = field(default_factory=dict, hash=False)
    host_launch_seconds: Annotated[float | None, Field(ge=0, le=1, examples=["5e-6"])] = None
    context_bytes: Annotated[Size | None, Field(ge=0, le=10**12, examples=["500_000_000"])] = None
    torch_matmul_speed: Annotated[float | None, Field(gt=0, le=100, examples=["0.85"])] = None


@dataclass(frozen=True)
class Device(DeviceFigures, _Keyed):
    """One accelerator. `key`: its file's stem, as in `"h100-sxm"`."""

    @property
    def has_host_link(self) -> bool:
        """Whether its memory is another than its host's. A processor has one memory."""
        return self.units is not None

    @property
    def host_link_bytes_per_second(self) -> float:
        """Bytes a second of copies between this device and its host's memory, in one direction. A processor reads and writes its
        one memory."""
        if not self.has_host_link:
            return self.memory_bytes_per_second / 2
        return self.host_bytes_per_second or HOST_LINK_SHARE * PCIE_4

    @property
    def executed_recipes(self) -> tuple[str, ...]:
        """Recipes of low-precision matmuls that run there."""
        if self.gemm_recipes is not None:
            return tuple(self.gemm_recipes)
        return ("fp8",) if "fp8" in self.peak_flops_per_second else ()

    def peak(self, dtype: str) -> float:
        """FLOP/s of a matmul whose operands are `dtype`.

        A format that is not stated runs in the nearest that is: fp4 in fp8, fp8 in bf16 (A100), bf16 in fp16 (V100) and the other
        way round, 16 bits in tf32 or fp32, tf32 in fp32. Where only narrower formats are stated, the widest of them is
        taken at the ratio of the widths: fp32 on a TPU is half its bf16 rate. That is an upper bound: a compiler
        that composes fp32 of bf16 passes needs three or six of them.

        Raises `UserError` where `dtype` is none of `PEAK_BITS`."""
        if dtype not in PEAK_BITS:
            raise UserError(
                f"{dtype!r}: no number format with a peak; allowed: {', '.join(PEAK_BITS)}; for example bf16"
            )
        for name in (dtype, *_NEXT[dtype]):
            if name in self.peak_flops_per_second:
                return self.peak_flops_per_second[name]
        widest = max(self.peak_flops_per_second, key=lambda name: PEAK_BITS[name])
        return self.peak_flops_per_second[widest] * PEAK_BITS[widest] / PEAK_BITS[dtype]


@dataclass(frozen=True)
class Level:
    """One interconnect level: how blocks of `devices` devices are joined.

    `name`: nvlink, rail, leaf, spine, pod, ici, pcie, loopback, ...

    `kind`: `switch`, every device has `bytes_per_second` of its own, to any other; `torus`, neighbours are linked along
    `dimensions`, with wrap-around; `shared`, one medium that all devices below divide (a PCIe host bridge, a machine's loopback).

    `devices`: how many devices one block joins, a multiple of the level below.

    `bytes_per_second`: what the makers state, one direction, before any loss to protocol. `switch`: per device; oversubscription
    shows as a lower figure. `torus`: per link and direction, two links a device and dimension. `shared`: of the whole medium.

    `latency_seconds`: of one small message between two devices through this level, protocol included, the launch of a kernel not.

    `dimensions`: a torus's shape, else empty. `wrap_multiple`: a dimension has wrap-around links where its extent is a multiple of
    this; a part of the torus without them has half the rate along that dimension, and `bytes_per_second` is then the mean.

    `part_multiple`: innermost level of a cluster of several blocks: a block may be used in part, by multiples of this many devices
    (an NVL72 rack by trays of 4); None: whole. `scalable`: more than `devices` can be joined in the same way (outermost level)."""

    name: Name
    kind: Annotated[Literal["switch", "torus", "shared"], Field(examples=['"switch"'])]
    devices: Devices
    bytes_per_second: Annotated[Rate, Field(examples=["450e9"])]
    latency_seconds: Annotated[float, Field(ge=0, le=10, examples=["2e-6"])]
    dimensions: tuple[int, ...] = ()
    wrap_multiple: Annotated[Extent, Field(examples=["4"])] = 1
    part_multiple: Annotated[Extent | None, Field(examples=["4"])] = None
    scalable: Annotated[bool, Field(examples=["true"])] = False

    @property
    def device_bytes_per_second(self) -> float:
        """Bytes that one device may send through this level, in one direction, while all send: by all of its links of a torus, by
        its part of a shared medium."""
        if self.kind == "torus":
            return 2 * len(self.dimensions) * self.bytes_per_second
        return self.bytes_per_second / (self.devices if self.kind == "shared" else 1)

    @property
    def wraps(self) -> tuple[bool, ...]:
        """For each dimension of a torus, whether its ends are joined."""
        return tuple(extent > 1 and extent % self.wrap_multiple == 0 for extent in self.dimensions)


@dataclass(frozen=True)
class ClusterFigures:
    """The keys of a cluster's file, its levels, device and calibration apart.

    `dollars_per_device_hour`: a price, as `source` says whose. `mean_hours_between_failures_per_device`: device hours per
    interruption of a job; a job on N devices is interrupted N times as often. `watts_per_device`: one device's share of the whole
    system (hosts, fans, switches inside), at its maker's maximum. `host_memory_bytes_per_device`: its share of its host's memory.
    None: no source states it."""

    name: Name
    source: Source
    devices: Devices
    dollars_per_device_hour: Annotated[float | None, Field(ge=0, le=1e6, examples=["2.5"])] = None
    mean_hours_between_failures_per_device: Annotated[Positive | None, Field(examples=["50_000"])] = None
    watts_per_device: Annotated[Positive | None, Field(examples=["1275"])] = None
    host_memory_bytes_per_device: Annotated[Bytes | None, Field(examples=["256_000_000_000"])] = None


@dataclass(frozen=True, kw_only=True)
class Cluster(ClusterFigures, _Keyed):
    """Devices of one kind and the network that joins them.

    `key`: the file's stem, with `:DEVICES` where another number than the file's was asked for. `levels`: innermost first,
    each of more devices than the one before; the last joins all `devices`. A cluster of one device keeps its innermost level.

    `full_levels`: the levels of all of the file's devices, from which another number of them is cut. `calibration`: measured
    tables, as `fourfold calibrate` writes them: tables, lists and numbers only. Empty for a preset."""

    device: Device
    levels: tuple[Level, ...]
    calibration: Mapping[str, Any] = field(default_factory=dict, hash=False)
    full_levels: tuple[Level, ...] = ()

    @property
    def all_levels(self) -> tuple[Level, ...]:
        """The levels of all of the file's devices."""
        return self.full_levels or self.levels

    @property
    def node_devices(self) -> int:
        """Devices that the innermost level joins."""
        return self.levels[0].devices

    @property
    def host_devices(self) -> int:
        """Devices of one host: of an NVL72 rack, those of a tray."""
        return min(self.levels[0].part_multiple or self.node_devices, self.devices)
