"""The roofline of a device (Williams, Waterman & Patterson 2009), with the kernels of a run's step on it.

Kernels are those that the programs' instructions declare, FLOPs, bytes and seconds those by which a step is priced.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fourfold.cost.kernels import kernel_bytes
from fourfold.cost.phase import unchunked
from fourfold.cost.prices import Prices
from fourfold.explore.machine import priced_setup
from fourfold.explore.setup import Setup
from fourfold.launch.resolve import ResolvedRun
from fourfold.model.recorded_rank import RecordedUnit
from fourfold.model.recorder.operations import RecorderOperations
from fourfold.model.recorder.recording import Recording
from fourfold.model.shape import Shape
from fourfold.model.spec import Segment, bind_weights
from fourfold.model.work import Attention, Elementwise, Gemm, Work
from fourfold.program import lower_pipeline
from fourfold.program.instruction import Opcode

KINDS = {Gemm: "matmul", Attention: "attention", Elementwise: "elementwise"}
Kernel = Gemm | Attention | Elementwise
Names = dict[tuple[int, int, bool], str]
"""By (out, in, whether they are experts')."""


@dataclass
class _KernelPlace:
    """Sums over the kernels of one place of a step."""

    kind: str
    shape: str
    number: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    seconds: float = 0.0


@dataclass
class _Step:
    """All places of a step on one device, on average over pipeline ranks."""

    resolved: ResolvedRun
    prices: Prices
    places: dict[tuple[str, str, str], _KernelPlace] = field(default_factory=dict)
    attention: Attention | None = None

    def __post_init__(self) -> None:
        spec = self.resolved.spec
        segments = {segment.name: segment for segment in spec.segments}
        works: dict[tuple[str, Opcode, Work], tuple[Segment | None, float]] = {}
        for program in lower_pipeline(spec, compiled=self.resolved.compiled):
            for pattern, microbatches in program.steps.microbatches.items():
                if pattern.op.info.phase and pattern.work.items:
                    segment = segments.get(pattern.segment or "")
                    key = (_kind(segment) if pattern.op.is_compute else "all parameters", pattern.op, pattern.work)
                    before = works.get(key, (segment, 0.0))[1]
                    works[key] = (segment, before + len(microbatches) / spec.layout.pp)
        names: dict[str, Names] = {}
        for (kind, op, work), (segment, number) in works.items():
            if segment is not None and kind not in names:
                names[kind] = weight_names(segment, self.resolved, spec.shape)
            self._add(kind, op, work, number, names.get(kind, {}))

    def _add(self, kind: str, op: Opcode, work: Work, number: float, names: Names) -> None:
        software, prices = self.prices.software, self.prices
        if kind == "head":
            prices = self.prices.plain
            work = unchunked(work) if software.unchunked_head else work
        kernels = [each for each in work.items if isinstance(each, Kernel)]
        named = [_named(each, names, op) for each in kernels]
        for index, item in enumerate(kernels):
            sizes = (prices.kernels, prices.gemm_dtype, prices.dtype, prices.element_bytes)
            seconds, moved = prices.kernel(item), kernel_bytes(item, *sizes)
            if isinstance(item, Elementwise) and not op.is_compute:
                seconds, moved = prices.memory(item.bytes), item.bytes
            if not seconds:
                continue
            if isinstance(item, Attention):
                self.attention = self.attention or item
            name = named[index] or _beside(named, index)
            place = self.places.setdefault(
                (kind, op.info.phase or "", name), _KernelPlace(KINDS[type(item)], _shape(item))
            )
            flops = item.flops * (prices.masked_share if isinstance(item, Attention) else 1)
            place.number += number
            place.flops += number * flops
            place.bytes += number * moved
            place.seconds += number * seconds


def _kind(segment: Segment | None) -> str:
    if segment is None or segment.kind != "block":
        return "all parameters" if segment is None else segment.kind
    return "MTP module" if segment.depth else "expert block" if segment.moe else "block"


def _named(item: Kernel, names: Names, op: Opcode) -> str:
    """A matmul by the weights that have its shape; empty for what has no name of its own."""
    if isinstance(item, Attention):
        return "attention"
    if isinstance(item, Elementwise):
        return ""
    if item.batch > 1:
        return "gated delta rule"

    def weight(out: int, inner: int) -> str | None:
        routed = item.groups > 1  # a rank with one expert has matmuls like any other
        return names.get((out, inner, routed)) or names.get((out, inner, True))

    if item.accumulates:
        return f"{weight(item.rows, item.columns) or 'matmul'}, weight gradient"
    forward, gradient = weight(item.columns, item.inner), weight(item.inner, item.columns)
    if op.is_backward and gradient is not None:
        return f"{gradient}, input gradient"
    return forward or "matmul"


def _beside(named: list[str], index: int) -> str:
    """Elementwise kernels by the kernel that they stand before, else after."""
    after = next((name for name in named[index:] if name), None)
    before = next((name for name in reversed(named[:index]) if name), None)
    return f"before {after}" if after else f"after {before}" if before else "elementwise"


def _shape(item: Kernel) -> str:
    if isinstance(item, Gemm):
        groups = f", {item.groups} experts" if item.groups > 1 else ""
        batch = f"{item.batch} x " if item.batch > 1 else ""
        return f"{batch}[{item.rows}, {item.inner}] x [{item.inner}, {item.columns}]{groups}"
    if isinstance(item, Attention):
        return f"{item.sequences} x {item.queries} queries, {item.heads} heads of {item.query_key_dim}"
    return f"{item.launches} kernels"


def weight_names(segment: Segment, resolved: ResolvedRun, shape: Shape) -> Names:
    """Parameters of a segment by the shape that one rank's matmul has of them."""
    names: Names = {}
    ops = RecorderOperations(Recording(staging=False))
    owners = [each for each in resolved.spec.segments if {unit.name for unit in each.own} & {*segment.units}]
    units = {unit.name: RecordedUnit(unit, shape, ops) for each in owners for unit in each.own}
    bind_weights(segment, units)
    for weight in (weight for unit in units.values() for weight in unit.made.values()):
        size, routed = weight.data.shape, len(weight.data.shape) > 2
        if len(size) >= 2:
            rows = size[0] if len(size) == 2 else size[1] * size[2] if len(size) == 4 else size[1]
            words = " ".join(each.removesuffix(".weight").rpartition(".")[2] for each in weight.data.storage.parameters)
            names.setdefault((rows, size[-1], routed), f"experts' {words}" if routed else words)
    return names


def roofline_document(setup: Setup) -> dict[str, Any]:
    """Peaks, the memory's rate, and every place of a step with kernels, longest first. Raises `UserError`."""
    resolved, cluster, prices = priced_setup(setup)
    device, rate = cluster.device, cluster.device.memory_bytes_per_second
    step = _Step(resolved, prices)
    dtypes = dict.fromkeys((prices.matmul_format, prices.dtype))
    peaks = {dtype: device.peak(dtype) for dtype in dtypes}
    found = step.attention
    size = None
    if found is not None:
        size = {
            "sequences": found.sequences,
            "tokens": found.queries,
            "heads": found.heads,
            "head_dim": found.query_key_dim,
        }
    points = sorted(_points(step, peaks, rate), key=lambda each: -each["step_seconds"])
    return {
        "cluster": cluster.key,
        "device": device.key,
        "software": prices.software.name,
        "gemm_dtype": prices.matmul_format,
        "dtype": prices.dtype,
        "memory_bytes_per_second": rate,
        "memory_bound_share": sum(each["step_share"] for each in points if each["bound"] == "memory"),
        "roofs": [{"dtype": name, "flops_per_second": peak, "ridge": peak / rate} for name, peak in peaks.items()],
        "kernels": points,
        "attention": size,
    }


def _points(step: _Step, peaks: dict[str, float], rate: float) -> Iterator[dict[str, Any]]:
    prices, by_format = step.prices, defaultdict(lambda: step.prices.dtype)
    by_format["matmul"] = prices.matmul_format
    total = sum(place.seconds for place in step.places.values())
    for (segment, phase, name), place in step.places.items():
        peak = peaks[prices.dtype if segment == "head" else by_format[place.kind]]
        intensity = place.flops / place.bytes if place.flops else None
        reached = place.flops / place.seconds
        moved = place.bytes / place.seconds
        by_memory = intensity is None or intensity * rate < peak
        yield {
            "segment": segment,
            "phase": phase,
            "name": name,
            "kind": place.kind,
            "shape": place.shape,
            "count": place.number,
            "flops": place.flops / place.number,
            "bytes": place.bytes / place.number,
            "seconds": place.seconds / place.number,
            "intensity": intensity,
            "flops_per_second": reached,
            "bytes_per_second": moved,
            "bound": "memory" if by_memory else "compute",
            "roof_share": moved / rate if by_memory else reached / peak,
            "step_seconds": place.seconds,
            "step_share": place.seconds / total,
        }
