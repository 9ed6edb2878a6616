"""Prices of a machine that was measured: its kernels and collectives take what its calibration says."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property

from fourfold.config import DTYPE_BYTES
from fourfold.cost.calibration import Calibration, ContentionProfile, constants_of
from fourfold.cost.prices import Prices
from fourfold.cost.software import SoftwareProfile
from fourfold.hardware import Cluster
from fourfold.layout import Layout
from fourfold.model.work import Attention, Elementwise, Gemm

INSIDE = ("tp", "cp", "cp_ring", "cp_ulysses", "ep", "etp")
"""Groups whose collectives belong to segments."""

OWN = SoftwareProfile(host_launch_seconds=0.0, host_collective_seconds=0.0)


@dataclass(frozen=True)
class CalibratedPrices(Prices):
    """Prices of a cluster's `[calibration]` for as many ranks as the layout has."""

    calibration: Calibration | None = None

    @cached_property
    def contention_profile(self) -> ContentionProfile:
        assert self.calibration is not None
        return self.calibration.contention_profile(self.layout.world_size)

    @property
    def shares_cores(self) -> bool:
        """Whether ranks compute on the same cores."""
        return self.calibration is not None and self.calibration.cores > 0

    @cached_property
    def _kernel(self) -> Callable[[Gemm | Attention | Elementwise], float]:
        return cache(self.contention_profile.kernel)

    def collective(self, kind: str, axes: str, size: int) -> float:
        key = (kind, axes, size)
        found = self._collectives.get(key)
        if found is None:
            group = self.layout.group_size(tuple(axes.split("+")))
            found = self.contention_profile.link(kind, group).at(size) if group > 1 else 0.0
            found += self.contention_profile.delay_seconds if group > 1 and axes in INSIDE else 0.0
            self._collectives[key] = found
        return found

    def processor(self, kind: str, axes: str, size: int) -> float:
        """Seconds of one rank's cores that a collective takes, whatever its length."""
        group = self.layout.group_size(tuple(axes.split("+")))
        return self.contention_profile.link(kind, group).processor_at(size) if group > 1 else 0.0

    def transfer(self, size: int, source: int, target: int) -> float:
        return self.contention_profile.link("send", 2).at(size)

    def host_copy(self, size: float) -> float:
        """On a processor a thread reads and writes the memory that kernels do."""
        return self.memory(2 * size) if self.copies_share_memory else super().host_copy(size)

    def memory(self, size: float) -> float:
        return self.contention_profile.update_seconds + size / self.contention_profile.update_bytes_per_second


def calibrated_prices(cluster: Cluster, layout: Layout, dtype: str) -> CalibratedPrices | None:
    """The prices of a machine that was measured; None where the cluster's file has no `[calibration]`."""
    calibration = constants_of(cluster)
    if calibration is None:
        return None
    profile = calibration.contention_profile(layout.world_size)
    software = replace(
        OWN,
        step_seconds=profile.step_seconds,
        host_collective_seconds=profile.host_collective_seconds,
    )
    return CalibratedPrices(
        cluster=cluster,
        layout=layout,
        software=replace(software, contention=_contention(profile, calibration.cores)),
        dtype=dtype,
        gemm_dtype=dtype,
        element_bytes=DTYPE_BYTES[dtype],
        calibration=calibration,
    )


def _contention(profile: ContentionProfile, cores: int) -> float:
    """The share of the time beside a collective that a kernel loses: the share of its cores that the collective takes."""
    if not cores or not profile.links:
        return 0.0
    shares = [each.processor_at(size) / each.at(size) for each in profile.links.values() for size in (2**18, 2**21)]
    return min(1.0, sum(shares) / len(shares) * profile.ranks * profile.threads / cores)
