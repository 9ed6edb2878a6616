"""A calibration by hand: rates and times that are easy to reckon with."""

from typing import Any

SIZES = [16.0, 1024.0]


def contention_profile(ranks: int, rate: float = 1e9) -> dict[str, Any]:
    """The table `ranks_N`: every matmul and attention at `rate`, 1 GB/s, 1 us a launch; collectives 1 ms and 1 GB/s."""
    plane = [[rate, rate], [rate, rate]]
    link = {
        "bytes": [1e3, 1e6],
        "seconds": [1e-3, 2e-3],
        "start_seconds": [1e-6, 1e-6],
        "processor_seconds": [5e-4, 1e-3],
    }
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "shift", "send")
    groups = [size for size in (2, 4, 8) if size <= ranks]
    return {
        "kernels": {
            "gemms": {"sizes": SIZES, "plain": [plane, plane], "accumulated": [plane, plane]},
            "attention": {"queries": SIZES, "head_sizes": SIZES, "forward": plane, "backward": plane},
            "launch_seconds": 1e-6,
            "memory_bytes_per_second": 1e9,
            "update_seconds": 1e-5,
            "update_bytes_per_second": 2e9,
        },
        "software": {
            "threads": 1,
            "step_seconds": 0.0,
            "host_collective_seconds": 0.0,
            "relative_speeds": [1.0] * ranks,
        },
        "links": {f"group_{size}": {kind: dict(link) for kind in kinds} for size in groups},
    }


def cluster(counts: tuple[int, ...] = (1, 2, 4), **changes: Any) -> dict[str, Any]:
    """A whole cluster file."""
    calibration = {"cores": 4, **{f"ranks_{ranks}": contention_profile(ranks) for ranks in counts}, **changes}
    return {
        "name": "a machine",
        "source": "made by hand",
        "devices": counts[-1],
        "device": {
            "name": "a core",
            "source": "made by hand",
            "memory_bytes": 10**10,
            "memory_bytes_per_second": 1e9,
            "peak_flops_per_second": {"fp32": 1e9},
        },
        "levels": [
            {"name": "loopback", "kind": "shared", "devices": 4, "bytes_per_second": 1e9, "latency_seconds": 1e-3}
        ],
        "calibration": calibration,
    }
