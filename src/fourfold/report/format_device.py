"""A device or a machine that was measured: the file, every figure with its meaning and its origin; and the result on a screen."""

from collections.abc import Iterator, Mapping
from typing import Any

import tomli_w

from fourfold.calibrate.findings import DeviceFindings
from fourfold.calibrate.kernels import library_text
from fourfold.calibrate.machine import best_matmul
from fourfold.report.units import flops_rate, format_bytes, seconds_text

MEANING = {
    "memory_bytes": "Memory: a GPU's as its driver states it; a processor's divided by the ranks that share it.",
    "memory_bytes_per_second": "Reads and writes together, of the better one of a large copy and a large sum.",
    "context_bytes": "Memory that a process takes beside its tensors: the driver's context, loaded kernels, the interpreter.",
    "host_bytes_per_second": "Copies from the host's pinned memory.",
    "host_launch_seconds": "Time of the host to start a kernel; 0 where the host is the device.",
    "torch_matmul_speed": "Speed of PyTorch's own matmuls, which short runs take, beside those that the constants describe.",
    "units": "Multiprocessors.",
    "peak_flops_per_second": "The best matmul of each format, warm. MFU is a share of these.",
    "gemm_share": "Share of the peak that a matmul reaches whose sizes are all large.",
    "gemm_half_tiles": "Number of 128 x 128 tiles, for each multiprocessor, at which a matmul loses half of its speed.",
    "gemm_half_inner": "Inner size at which a matmul loses half of its speed.",
    "gemm_full_rows": "With fewer rows a matmul is no faster.",
    "low_share": "Share of that speed, beside their own peak, that fp8 matmuls reach.",
    "attention_share": "Share of the peak that attention reaches forward where sequences and heads are large.",
    "attention_backward_share": "The same backward.",
    "attention_half_keys": "Keys at which attention loses half of its speed.",
    "attention_half_width": "Size of a head at which it does.",
    "attention_half_blocks": "Number of blocks of 128 queries of a head, for each multiprocessor, at which it does.",
    "memory_share": "Share of memory_bytes_per_second that norms, activations, residuals and updates reach; above 1 in caches.",
    "launch_seconds": "Time from one kernel's end to the next one's start; on a processor of a call.",
}


def device_text(found: DeviceFindings, out: str, how: str) -> str:
    """The file. `how`: the software and the time of the measurements."""
    device, lines = found.device, list[str]()
    lines += [f"# Measured by fourfold calibrate --device. Use it as: fourfold simulate RUN.toml --cluster {out}"]
    lines += [
        f"# A cluster of such devices: fourfold cluster new --nodes 4 --device {out}:8 --network 8x400G --link nvlink4"
    ]
    lines += [
        f"# Units: bytes, bytes per second, FLOP per second, seconds. {found.dtype} unless a format is named.",
        "",
    ]
    lines += [tomli_w.dumps({"name": device.name, "source": f"measured by fourfold calibrate: {how}"})]
    for key in (
        "memory_bytes",
        "memory_bytes_per_second",
        "context_bytes",
        "host_bytes_per_second",
        "host_launch_seconds",
        "torch_matmul_speed",
        "units",
    ):
        value = getattr(device, key)
        if value is not None:
            lines += _figure(key, value)
    for key, table in {"peak_flops_per_second": device.peak_flops_per_second, "kernels": device.kernels}.items():
        lines += ["", *(f"# {MEANING[key]}" for _ in range(key in MEANING)), f"[{key}]"]
        for name, value in table.items():
            lines += _figure(name, value)
    return "\n".join(
        [*lines, "", "# Beside the constants: what no price reads.", *(f"# {each}" for each in notes(found)), ""]
    )


def _figure(key: str, value: float) -> Iterator[str]:
    if key in MEANING:
        yield f"# {MEANING[key]}"
    yield f"{key} = {value}" if isinstance(value, int) else f"{key} = {float(f'{value:.4g}')!r}"


def notes(found: DeviceFindings) -> Iterator[str]:
    """Measurements beside the constants, and how well these describe what was measured."""
    first, last = found.rates[0], found.rates[-1]
    yield (
        f"sustained load: {len(found.rates)} windows of one matmul, {flops_rate(first)} to {flops_rate(last)}, "
        f"{100 * found.throttled:.0f} % lost"
    )
    for each in found.residuals:
        yield (
            f"{each.family}: {each.samples} measured, described to {100 * each.median:.0f} %, nine in ten to "
            f"{100 * each.nine_in_ten:.0f} %"
        )
    for check in found.checks:
        yield (
            f"a step of {check.parameters / 1e6:.3g} M parameters, {check.tokens} tokens: measured "
            f"{seconds_text(check.measured)}, predicted {seconds_text(check.predicted)} ({100 * check.error:+.0f} %), "
            f"MFU {100 * check.mfu:.0f} %"
        )


def screen(found: DeviceFindings) -> Iterator[str]:
    """The result on a screen."""
    device = found.device
    peaks = ", ".join(f"{name} {flops_rate(value)}" for name, value in device.peak_flops_per_second.items())
    yield f"{device.name}: {format_bytes(device.memory_bytes)}, {device.memory_bytes_per_second / 1e9:.4g} GB/s"
    yield f"matmuls: {peaks}"
    yield from notes(found)


def document(found: DeviceFindings, table: Mapping[str, Any]) -> dict[str, Any]:
    """The result as one JSON document. `table`: the file's."""
    return {
        **table,
        "sustained_flops_per_second": list(found.rates),
        "from_host_bytes_per_second": found.memory.from_host_bytes_per_second,
        "residuals": [each.__dict__ for each in found.residuals],
        "checks": [{**each.__dict__, "error": each.error} for each in found.checks],
    }


def machine_lines(
    devices: int, table: dict[str, Any], fits: dict[int, float], by_library: dict[int, tuple[str, ...]]
) -> list[str]:
    """The results in a few lines."""
    lines = []
    parts = {int(key[6:]): part for key, part in table["calibration"].items() if key.startswith("ranks_")}
    for ranks, part in sorted(parts.items()):
        kernels, software = part["kernels"], part["software"]
        peak = best_matmul(kernels)
        line = (
            f"{ranks} rank{'s' if ranks > 1 else ' '} x {software['threads']} thread{'s' if software['threads'] > 1 else ' '}: "
            f"matmuls{library_text(by_library[ranks])} {peak / 1e9:.1f} GFLOP/s a rank, operators "
            f"{kernels['memory_bytes_per_second'] / 1e9:.1f} GB/s and {1e6 * kernels['launch_seconds']:.1f} us each"
        )
        if ranks in fits:
            line += f", segments described to {100 * fits[ranks]:.1f} %"
        if ranks > 1:
            line += f"; alone a rank runs {software['relative_speeds'][0]:.2f} times as fast"
        lines.append(line)
    cores = table["calibration"]["cores"]
    if cores and devices > cores:
        lines.append(f"{devices} ranks share {cores} cores: what they slow one another down is in the file")
    return lines
