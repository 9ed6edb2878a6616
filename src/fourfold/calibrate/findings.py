"""Records of a device that was measured: samples, figures, how well constants describe it, whole steps as a check."""

from dataclasses import dataclass
from typing import NamedTuple

from fourfold.hardware import Device
from fourfold.model.work import Work

MATMULS, LOW_MATMULS, PASSES = "matmuls", "fp8 matmuls", "passes over segments"


class Sample(NamedTuple):
    """Work of a `family` (matmuls, attention, operators, passes over segments, ...) and the seconds that it took."""

    family: str
    work: Work
    seconds: float


class DeviceMemory(NamedTuple):
    """`total_bytes`: None on a processor. `bytes_per_second`: reads and writes together. `from_host_bytes_per_second`: of copies
    from pinned memory; None on a processor. `host_launch_seconds`: of the host, to start a kernel. `units`: multiprocessors."""

    total_bytes: int | None
    bytes_per_second: float
    from_host_bytes_per_second: float | None
    host_launch_seconds: float
    units: int | None


@dataclass(frozen=True)
class FamilyError:
    """How well the constants describe a family: relative errors of its `samples`, the median, and what nine in ten keep within."""

    family: str
    samples: int
    median: float
    nine_in_ten: float


@dataclass(frozen=True)
class StepCheck:
    """A step of a model of `parameters`, of `tokens`: seconds."""

    parameters: int
    tokens: int
    measured: float
    predicted: float
    mfu: float

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class DeviceFindings:
    """`device`: as it is written. `rates`: FLOP/s of one matmul over and over, window after window. `samples`: what constants are
    fitted to. `by_library`: the kinds of fp32 matmuls that oneDNN computed."""

    device: Device
    dtype: str
    memory: DeviceMemory
    rates: tuple[float, ...]
    samples: tuple[Sample, ...]
    residuals: tuple[FamilyError, ...]
    checks: tuple[StepCheck, ...]
    by_library: tuple[str, ...] = ()

    @property
    def throttled(self) -> float:
        """Share of its speed that the device lost under load."""
        half = len(self.rates) // 2
        return max(0.0, 1 - max(self.rates[half:]) / max(self.rates))
