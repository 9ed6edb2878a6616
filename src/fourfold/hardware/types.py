"""Devices, interconnect levels and clusters: figures with units, and the peak of a number format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from fourfold.config.errors import UserError

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


PCIE_4 = 32e9
"""Bytes a second of a PCIe 4 x16, in one direction."""
HOST_LINK_SHARE = 0.78
"""Share of a link's rate that copies from and to pinned memory reach: some 25 of 32 GB/s of a PCIe 4 x16."""


@dataclass(frozen=True)
class Device:
    """One accelerator, as its maker states it.

    `key`: the file's stem, as in `"h100-sxm"`. `source`: where the figures are from; "from memory" marks what was not read there.

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

    A device that `fourfold calibrate --device` measured has three more figures. `kernels`: constants of `cost.kernels.Kernels` in
    place of fitted ones, shares of these peaks. `host_launch_seconds`: of the host, to start a kernel. `context_bytes`: memory that
    a process takes beside its tensors."""

    key: str
    name: str
    source: str
    memory_bytes: int
    memory_bytes_per_second: float
    peak_flops_per_second: Mapping[str, float] = field(hash=False)
    units: int | None = None
    unit_memory_bytes: int | None = None
    power_watts: float | None = None
    gemm_recipes: Sequence[str] | None = field(default=None, hash=False)
    host_bytes_per_second: float | None = None
    kernels: Mapping[str, float] = field(default_factory=dict, hash=False)
    host_launch_seconds: float | None = None
    context_bytes: int | None = None

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

    name: str
    kind: Literal["switch", "torus", "shared"]
    devices: int
    bytes_per_second: float
    latency_seconds: float
    dimensions: tuple[int, ...] = ()
    wrap_multiple: int = 1
    part_multiple: int | None = None
    scalable: bool = False

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
class Cluster:
    """Devices of one kind and the network that joins them.

    `key`: the file's stem, with `:DEVICES` where another number than the file's was asked for. `levels`: innermost first,
    each of more devices than the one before; the last joins all `devices`. A cluster of one device keeps its innermost level.

    `dollars_per_device_hour`: a price, as `source` says whose. `mean_hours_between_failures_per_device`: device hours per
    interruption of a job; a job on N devices is interrupted N times as often. `watts_per_device`: one device's share of the whole
    system (hosts, fans, switches inside), at its maker's maximum. `host_memory_bytes_per_device`: its share of its host's memory.
    None: no source states it.

    `full_levels`: the levels of all of the file's devices, from which another number of them is cut. `calibration`: measured
    tables, as `fourfold calibrate` writes them: tables, lists and numbers only. Empty for a preset."""

    key: str
    name: str
    source: str
    device: Device
    devices: int
    levels: tuple[Level, ...]
    dollars_per_device_hour: float | None = None
    mean_hours_between_failures_per_device: float | None = None
    watts_per_device: float | None = None
    host_memory_bytes_per_device: int | None = None
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
