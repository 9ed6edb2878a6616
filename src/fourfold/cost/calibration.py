"""Measurements of a machine (`fourfold calibrate`): a cluster's `[calibration]` table, read and looked up.

A table `ranks_N` holds what was measured while N ranks ran at once, each with its share of the cores. Between the shapes and sizes
that were measured, rates and times are interpolated in the logarithms of both.

`CalibratedPrices` are those of such a machine: its kernels and collectives take what its calibration says.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise
from math import exp, log
from typing import Any

from fourfold.config import DTYPE_BYTES, UserError
from fourfold.cost.fitted import fitted
from fourfold.cost.prices import Prices
from fourfold.cost.software import OWN_SOFTWARE, SoftwareProfile
from fourfold.hardware import Cluster
from fourfold.layout import Layout
from fourfold.model.work import Attention, Elementwise, Gemm

AGAIN = "run `fourfold calibrate` again"
LEAST = 1e-12
INSIDE = ("tp", "cp", "cp_ring", "cp_ulysses", "ep", "etp")
"""Groups whose collectives belong to segments."""

OWN = SoftwareProfile(host_launch_seconds=0.0, host_collective_seconds=0.0)


@dataclass(frozen=True)
class Curve:
    """A positive function of one or more sizes, known on a grid: `values` are nested lists, one level an axis."""

    axes: tuple[tuple[float, ...], ...]
    values: Sequence[Any] = field(hash=False)

    def at(self, *sizes: float) -> float:
        """Interpolated between logarithms; beyond the grid, as at its edge."""
        return exp(_interpolate(self._logs, self.axes, sizes))

    @cached_property
    def _logs(self) -> Any:
        return _logarithms(self.values)


def _logarithms(values: Any) -> Any:
    return [_logarithms(each) for each in values] if isinstance(values, list) else log(max(values, LEAST))


def _interpolate(values: Any, axes: Sequence[Sequence[float]], sizes: Sequence[float]) -> float:
    if not axes:
        return float(values)
    axis, size = axes[0], min(max(sizes[0], axes[0][0]), axes[0][-1])
    if len(axis) == 1:
        return _interpolate(values[0], axes[1:], sizes[1:])
    low = min(max(bisect_right(axis, size) - 1, 0), len(axis) - 2)
    part = log(size / axis[low]) / log(axis[low + 1] / axis[low])
    first = _interpolate(values[low], axes[1:], sizes[1:])
    return first + part * (_interpolate(values[low + 1], axes[1:], sizes[1:]) - first) if part else first


@dataclass(frozen=True)
class Duration:
    """One kind of collective by the bytes of its buffer: seconds from start to join, and processor seconds of one rank."""

    seconds: Curve
    processor: Curve

    def at(self, size: float) -> float:
        return _beyond(self.seconds, size)

    def processor_at(self, size: float) -> float:
        return _beyond(self.processor, size)


def _beyond(curve: Curve, size: float) -> float:
    """Beyond the largest size that was measured, in proportion to the size."""
    return curve.at(size) * max(1.0, size / curve.axes[0][-1])


@dataclass(frozen=True)
class ContentionProfile:
    """Measurements with `ranks` ranks at once. Rates in FLOP/s, times in seconds.

    `memory_*` is of memory-bound kernels within segments, `update_*` of the optimizer and the norm. `delay_seconds`: what a
    collective inside a segment takes beyond its time on idle cores. `relative_speeds[i]`: how fast a rank of these computes while
    i + 1 of them do, beside its pace when all do. `torch_speeds`: how fast PyTorch's own library multiplies beside the rates here,
    which are of the faster one: plainly, and adding to a gradient.
    """

    ranks: int
    threads: int
    plain: Curve
    accumulated: Curve
    attention: Curve
    attention_backward: Curve
    memory_bytes_per_second: float
    launch_seconds: float
    update_bytes_per_second: float
    update_seconds: float
    step_seconds: float
    host_collective_seconds: float
    delay_seconds: float
    relative_speeds: tuple[float, ...]
    links: Mapping[tuple[int, str], Duration] = field(hash=False, default_factory=dict)
    torch_speeds: tuple[float, float] = (1.0, 1.0)

    def gemm(self, item: Gemm) -> float:
        rows, inner = item.rows, item.inner
        if item.accumulates:
            inner = max(1, inner // item.groups)
        else:
            rows = max(1, rows // item.groups)
        curve = self.accumulated if item.accumulates else self.plain
        return item.flops / curve.at(rows, item.columns, inner)

    def attend(self, item: Attention) -> float:
        curve = self.attention_backward if item.backward else self.attention
        return item.flops / curve.at((item.queries * item.keys) ** 0.5, (item.query_key_dim + item.value_dim) / 2)

    def kernel(self, item: Gemm | Attention | Elementwise) -> float:
        if isinstance(item, Gemm):
            return self.gemm(item)
        if isinstance(item, Attention):
            return self.attend(item)
        return item.launches * self.launch_seconds + item.bytes / self.memory_bytes_per_second

    def link(self, kind: str, group: int) -> Duration:
        """The collective in a group of so many ranks, or of the nearest size that was measured."""
        near = min((size for size, name in self.links if name == kind), key=lambda size: abs(size - group))
        return self.links[near, kind]


@dataclass(frozen=True)
class Calibration:
    """`profiles`: by their number of ranks. `cores`: that the ranks share; 0: each has a device of its own."""

    cores: int
    profiles: Mapping[int, ContentionProfile] = field(hash=False)

    def contention_profile(self, ranks: int) -> ContentionProfile:
        """Contention profile of so many ranks, or of the nearest number."""
        return self.profiles[min(self.profiles, key=lambda known: (abs(log(known / ranks)), known))]


def constants_of(cluster: Cluster) -> Calibration | None:
    """A cluster's `[calibration]`, read; None where it has none. Raises `UserError` naming the key."""
    table = cluster.calibration
    if not table:
        return None
    profiles = {}
    for name in table:
        if name.startswith("ranks_") and name[6:].isdigit():
            ranks = int(name[6:])
            profiles[ranks] = _profile(_Reader(cluster.key, f"calibration.{name}", table[name]), ranks)
    if not profiles:
        raise UserError(f"{cluster.key}: calibration has no table ranks_1, ranks_2, ...; {AGAIN}")
    return Calibration(int(_Reader(cluster.key, "calibration", table).number("cores", 0.0)), profiles)


@dataclass(frozen=True)
class _Reader:
    """A table of a cluster file, and where it stands."""

    cluster: str
    where: str
    table: Any

    def fail(self, key: str, wanted: str) -> UserError:
        return UserError(f"{self.cluster}: {self.where}.{key}: should be {wanted}; {AGAIN}")

    def part(self, key: str) -> "_Reader":
        value = self.table.get(key) if isinstance(self.table, Mapping) else None
        if not isinstance(value, Mapping):
            raise self.fail(key, "a table")
        return _Reader(self.cluster, f"{self.where}.{key}", value)

    def number(self, key: str, least: float = LEAST) -> float:
        value = self.table.get(key)
        if not isinstance(value, int | float) or value < least:
            raise self.fail(key, f"a number of at least {least:g}")
        return float(value)

    def axis(self, key: str) -> tuple[float, ...]:
        values = self.table.get(key)
        good = isinstance(values, list) and values and all(isinstance(v, int | float) and v > 0 for v in values)
        if not good or any(a >= b for a, b in pairwise(values)):
            raise self.fail(key, "a list of growing positive numbers")
        return tuple(map(float, values))

    def curve(self, key: str, *axes: tuple[float, ...]) -> Curve:
        values = self.table.get(key)
        if not _fits(values, [len(axis) for axis in axes]):
            raise self.fail(key, f"lists of {' x '.join(str(len(axis)) for axis in axes)} positive numbers")
        return Curve(axes, values)


def _fits(values: Any, lengths: Sequence[int]) -> bool:
    if not lengths:
        return isinstance(values, int | float) and values > 0
    return isinstance(values, list) and len(values) == lengths[0] and all(_fits(each, lengths[1:]) for each in values)


def _profile(reader: _Reader, ranks: int) -> ContentionProfile:
    kernels, software = reader.part("kernels"), reader.part("software")
    gemms, attention = kernels.part("gemms"), kernels.part("attention")
    sizes, queries = gemms.axis("sizes"), attention.axis("queries")
    widths = attention.axis("head_sizes")
    return ContentionProfile(
        ranks=ranks,
        threads=int(software.number("threads")),
        plain=gemms.curve("plain", sizes, sizes, sizes),
        accumulated=gemms.curve("accumulated", sizes, sizes, sizes),
        attention=attention.curve("forward", queries, widths),
        attention_backward=attention.curve("backward", queries, widths),
        memory_bytes_per_second=kernels.number("memory_bytes_per_second"),
        launch_seconds=kernels.number("launch_seconds", 0.0),
        update_bytes_per_second=kernels.number("update_bytes_per_second"),
        update_seconds=kernels.number("update_seconds", 0.0),
        step_seconds=software.number("step_seconds", 0.0),
        host_collective_seconds=software.number("host_collective_seconds", 0.0),
        delay_seconds=software.number("delay_seconds", 0.0) if "delay_seconds" in software.table else 0.0,
        relative_speeds=_relative_speeds(software, ranks),
        links=_links(reader) if ranks > 1 else {},
        torch_speeds=_torch_speeds(gemms),
    )


def _torch_speeds(gemms: _Reader) -> tuple[float, float]:
    if "torch_speeds" not in gemms.table:
        return 1.0, 1.0
    speeds = gemms.part("torch_speeds")
    return speeds.number("plain"), speeds.number("accumulated")


def _relative_speeds(software: _Reader, ranks: int) -> tuple[float, ...]:
    values = software.table.get("relative_speeds")
    if not _fits(values, [ranks]):
        raise software.fail("relative_speeds", f"a list of {ranks} positive numbers")
    return tuple(map(float, values))


def _links(reader: _Reader) -> dict[tuple[int, str], Duration]:
    links, found = reader.part("links"), {}
    for name in links.table:
        group, size = links.part(name), name.removeprefix("group_")
        if not size.isdigit():
            raise links.fail(name, "named group_2, group_4, ...")
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "shift", "send"):
            part = group.part(kind)
            sizes = part.axis("bytes")
            found[int(size), kind] = Duration(part.curve("seconds", sizes), part.curve("processor_seconds", sizes))
    if not found:
        raise reader.fail("links", "a table with a part for every size of group")
    return found


@dataclass(frozen=True)
class Speeds:
    """Speeds of kernels and links of a run, beside those that were measured of each alone. `gemm`: of every matmul; `by_library`:
    of those that do not add to a gradient and of those that do, where the run takes another library than was measured."""

    gemm: float = 1.0
    by_library: tuple[float, float] = (1.0, 1.0)
    attention: float = 1.0
    link: float = 1.0

    @classmethod
    def of(cls, software: SoftwareProfile, shipped: SoftwareProfile, by_library: tuple[float, float]) -> "Speeds":
        """Ratios of a profile's speeds, to which runs were fitted, to those of the one that ships."""
        return cls(
            gemm=software.gemm_speed / shipped.gemm_speed,
            by_library=by_library,
            attention=software.attention_speed / shipped.attention_speed,
            link=software.link_speed / shipped.link_speed,
        )

    def kernel(self, item: Gemm | Attention | Elementwise) -> float:
        if isinstance(item, Gemm):
            return self.gemm * self.by_library[item.accumulates]
        return self.attention if isinstance(item, Attention) else 1.0


@dataclass(frozen=True)
class CalibratedPrices(Prices):
    """Prices of a cluster's `[calibration]` for as many ranks as the layout has."""

    calibration: Calibration | None = None
    speeds: Speeds = Speeds()

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
        measured, speeds = self.contention_profile, self.speeds
        return cache(lambda item: measured.kernel(item) / speeds.kernel(item))

    def collective(self, kind: str, axes: str, size: int) -> float:
        key = (kind, axes, size)
        found = self._collectives.get(key)
        if found is None:
            group = self.layout.group_size(tuple(axes.split("+")))
            found = self.contention_profile.link(kind, group).at(size) / self.speeds.link if group > 1 else 0.0
            found += self.contention_profile.delay_seconds if group > 1 and axes in INSIDE else 0.0
            self._collectives[key] = found
        return found

    def processor(self, kind: str, axes: str, size: int) -> float:
        """Seconds of one rank's cores that a collective takes, whatever its length."""
        group = self.layout.group_size(tuple(axes.split("+")))
        return self.contention_profile.link(kind, group).processor_at(size) if group > 1 else 0.0

    def transfer(self, size: int, source: int, target: int) -> float:
        return self.contention_profile.link("send", 2).at(size) / self.speeds.link

    def host_copy(self, size: float) -> float:
        """On a processor a thread reads and writes the memory that kernels do."""
        return self.memory(2 * size) if self.copies_share_memory else super().host_copy(size)

    def memory(self, size: float) -> float:
        return self.contention_profile.update_seconds + size / self.contention_profile.update_bytes_per_second


def calibrated_prices(
    cluster: Cluster,
    layout: Layout,
    dtype: str,
    software: SoftwareProfile | None = None,
    *,
    by_torch: bool = False,
) -> CalibratedPrices | None:
    """The prices of a machine that was measured; None where the cluster's file has no `[calibration]`. `software`: fourfold's
    own, whose departures from what ships were fitted to runs; None: as it ships. `by_torch`: whether PyTorch's own library
    multiplies, not the faster one."""
    calibration = constants_of(cluster)
    if calibration is None:
        return None
    profile = calibration.contention_profile(layout.world_size)
    shipped = fitted().software(OWN_SOFTWARE)
    adjusted = software or shipped
    measured = replace(
        OWN,
        name=adjusted.name,
        base=adjusted.base,
        step_seconds=profile.step_seconds,
        host_collective_seconds=profile.host_collective_seconds,
        context_bytes=max(0, adjusted.context_bytes - shipped.context_bytes),
        extra=adjusted.extra - shipped.extra,
        saved_share=adjusted.saved_share / shipped.saved_share,
    )
    return CalibratedPrices(
        cluster=cluster,
        layout=layout,
        software=replace(measured, contention=_contention(profile, calibration.cores)),
        dtype=dtype,
        gemm_dtype=dtype,
        element_bytes=DTYPE_BYTES[dtype],
        calibration=calibration,
        speeds=Speeds.of(adjusted, shipped, profile.torch_speeds if by_torch else (1.0, 1.0)),
    )


def _contention(profile: ContentionProfile, cores: int) -> float:
    """The share of the time beside a collective that a kernel loses: the share of its cores that the collective takes."""
    if not cores or not profile.links:
        return 0.0
    shares = [each.processor_at(size) / each.at(size) for each in profile.links.values() for size in (2**18, 2**21)]
    return min(1.0, sum(shares) / len(shares) * profile.ranks * profile.threads / cores)
