"""Types of the Cluster page's documents. Units are in the names; rates are those of one device in one direction."""

from fourfold.hardware import Device
from fourfold.results.prediction import LayoutDocument
from fourfold.results.record import record, record_of

OF_RUNS = (
    "kernels",
    "host_launch_seconds",
    "context_bytes",
    "gemm_recipes",
    "host_bytes_per_second",
    "torch_matmul_speed",
)
"""Figures of a device that runs are priced with, and that no page shows."""


@record_of(Device, without=OF_RUNS)
class MachineDevice:
    """The device. `memory_bytes_per_second`: reads and writes together; `unit_memory_bytes`: fast memory of one of its `units`."""

    peak_flops_per_second: dict[str, float]


@record
class MachineLevel:
    """A level of the network. `blocks` of it are in the cluster, each of `devices` devices, or of `parts` blocks of the level
    inside. `ratio`: the rate of the level inside over this one's, or the memory's over that of the innermost; `memory_ratio`: the
    memory's over this one's. `wraps`: which dimensions of a torus are joined at their ends. `dollars_per_hour`: of a block."""

    name: str
    kind: str
    devices: int
    blocks: int
    parts: int
    bytes_per_second: float
    device_bytes_per_second: float
    ratio: float
    memory_ratio: float
    latency_seconds: float
    dimensions: list[int]
    wraps: list[bool]
    dollars_per_hour: float | None


@record
class ClusterDocument:
    """A cluster as its file states it, at the price that the setup states or the file's."""

    key: str
    name: str
    source: str
    devices: int
    device: MachineDevice
    levels: list[MachineLevel]
    dollars_per_device_hour: float | None
    watts_per_device: float | None
    mean_hours_between_failures_per_device: float | None


@record
class AxesGroups:
    """Groups along `axes`: how many, of how many ranks, how many of them are in one block of each level at most, how the hops of a
    ring divide among the levels, and the names of the levels that they cross."""

    axes: str
    size: int
    groups: int
    members: list[int]
    hop_shares: list[float]
    levels: list[str]


@record
class GroupsDocument:
    """How a layout lies on the cluster; ranks are devices in order, and devices from `world_size` on are idle. `group_numbers`: of
    every rank, along the chosen `axes`; empty where nothing is divided. `coordinates`: those of `rank`. `pp_stride`: from a
    rank to the next one along pp; `world_size` without a pipeline."""

    cluster: str
    devices: int
    world_size: int
    layout: LayoutDocument
    choices: list[AxesGroups]
    axes: str | None
    rank: int
    coordinates: dict[str, int]
    pp_stride: int
    group_numbers: list[int]


@record
class KernelPoint:
    """Kernels of one place of a step on one device. `count`: in a step, on average over pipeline ranks; `flops`, `bytes` and
    `seconds` are of one. `intensity`: FLOP a byte, None without matmul FLOPs; `roof_share`: of what the roofline allows there;
    `step_share`: of the seconds of all kernels."""

    segment: str
    phase: str
    name: str
    kind: str
    shape: str
    count: float
    flops: float
    bytes: float
    seconds: float
    intensity: float | None
    flops_per_second: float
    bytes_per_second: float
    bound: str
    roof_share: float
    step_seconds: float
    step_share: float


@record
class Roof:
    """A peak of the device. `ridge`: FLOP a byte from which on the peak bounds a kernel, not the memory."""

    dtype: str
    flops_per_second: float
    ridge: float


@record
class AttentionSize:
    """The attention of one rank on one microbatch."""

    sequences: int
    tokens: int
    heads: int
    head_dim: int


@record
class RooflineDocument:
    """The roofline of a device (Williams, Waterman & Patterson 2009) with the kernels of a step on it."""

    cluster: str
    device: str
    software: str
    gemm_dtype: str
    dtype: str
    memory_bytes_per_second: float
    memory_bound_share: float
    roofs: list[Roof]
    kernels: list[KernelPoint]
    attention: AttentionSize | None


@record
class TrafficPass:
    """A kernel of an algorithm: bytes that it loads from slow memory and stores there, all heads together."""

    name: str
    loaded_bytes: int
    stored_bytes: int


@record
class AttentionAlgorithm:
    """An algorithm in total. `seconds`: the bytes over the memory's rate. `flops`: of the scores that it computes; `intensity`:
    those a byte. `standard_ratio`: bytes of the standard algorithm over its own."""

    name: str
    paper: str
    passes: list[TrafficPass]
    bytes: int
    seconds: float
    flops: int
    intensity: float
    standard_ratio: float


@record
class AttentionDocument:
    """Attention's traffic between slow and fast memory. `frames`: (tile of queries, tile of keys, tiles done, bytes loaded, bytes
    stored by all heads) as the chosen order of loops goes on, at most some 2,000 of its tiles. `key_tiles_seen`: for each tile of
    queries, the tiles of keys that are not skipped; empty where there are too many to draw. `least_bytes`: to read the operands
    and write the output once."""

    device: str
    order: str
    causal: bool
    sequences: int
    tokens: int
    heads: int
    head_dim: int
    element_bytes: int
    fast_bytes: float
    is_fast_stated: bool
    memory_bytes_per_second: float
    query_rows: int
    key_rows: int
    query_tiles: int
    key_tiles: int
    computed_tiles: int
    key_tiles_seen: list[int]
    frames: list[tuple[int, int, int, int, int]]
    algorithms: list[AttentionAlgorithm]
    least_bytes: int
