"""Types of what a person can choose: the rows of `fourfold list --json`, and the keys of the run file."""

from typing import Any

from fourfold.explore.cluster_types import OF_RUNS, MachineDevice
from fourfold.explore.task_types import TermDocument
from fourfold.hardware import Device, Level
from fourfold.results.record import open_record, record, record_of


@record_of(Level)
class LevelRow:
    """A level of a cluster's network, one direction."""

    kind: str
    dimensions: list[int]


@record
class ClusterRow:
    """A row of `fourfold list clusters --json`."""

    name: str
    description: str
    device: str
    devices: int
    devices_per_node: int
    levels: list[LevelRow]
    scalable: bool
    dollars_per_device_hour: float | None


@record_of(Device, last=OF_RUNS)
class DeviceRow(MachineDevice):
    """A row of `fourfold list devices --json`."""

    peak_flops_per_second: dict[str, float]
    kernels: dict[str, float]
    gemm_recipes: list[str] | None
    description: str


@record
class ScheduleRow:
    """A row of `fourfold list schedules --json`."""

    name: str
    min_virtual_stages: int
    max_virtual_stages: int | None
    splits_backward: bool
    bubble_fraction: float | None
    microbatches_in_flight: float
    summary: str
    paper: str
    names: dict[str, str]


@record
class PresetRow:
    """A row of `fourfold list presets --json`, and the keys that the run states."""

    name: str
    model: str | None
    cluster: str
    software: str | None
    sequence_length: int
    global_sequences: int
    layout: dict[str, int | str]
    published: str | None
    overrides: dict[str, Any]


@open_record
class ModelRow:
    """A row of `fourfold list models --json`: the counts, and every dimension."""

    name: str
    parameters: int
    active_parameters: int
    num_layers: int
    hidden_size: int
    num_experts: int
    max_position: int


@open_record
class SoftwareRow:
    """A row of `fourfold list software --json`; the other columns are constants of the profile."""

    name: str
    dated: list[str]


@record
class KeyDocument:
    """A key of the run file. `kind`: integer, number, boolean, text or list; `allowed`: the words it takes, where they are few;
    `optimizer`: the one that has the key, where not all sections have it."""

    key: str
    optimizer: str | None
    kind: str
    allowed: list[str] | None
    least: float | None
    most: float | None
    default: Any
    help: str


@record
class CatalogDocument:
    """Everything that a person can choose."""

    version: str
    models: list[ModelRow]
    clusters: list[ClusterRow]
    devices: list[DeviceRow]
    software: list[SoftwareRow]
    presets: list[PresetRow]
    schedules: list[ScheduleRow]
    keys: list[KeyDocument]
    glossary: list[TermDocument]
