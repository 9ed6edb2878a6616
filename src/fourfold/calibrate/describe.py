"""A cluster file from what was measured: its tables, and what they say in the words of any cluster."""

from collections.abc import Sequence
from typing import Any

import torch

from fourfold.calibrate.kernels import library_text
from fourfold.calibrate.rounds import Table


def describe(
    calibration: dict[str, Any], device: str, memory: int, dtype: str, name: str, by_library: Sequence[str] = ()
) -> Table:
    """The cluster file: what the tables say in the words of any cluster, and the tables. `by_library`: the kinds of matmuls that
    oneDNN computed."""
    counts = sorted(int(key[6:]) for key in calibration if key.startswith("ranks_"))
    most = counts[-1]
    alone = calibration[f"ranks_{counts[0]}"]["kernels"]
    peak = best_matmul(alone)
    rate, latency = 1e9, 1e-4
    if most > 1:
        send = calibration[f"ranks_{most}"]["links"][f"group_{most}"]["send"]
        latency = send["seconds"][0]
        rate = most // 2 * send["bytes"][-1] / max(send["seconds"][-1] - latency, 1e-9)
    share = calibration["cores"] / max(calibration["cores"], most) if calibration["cores"] else 1.0
    library = library_text(by_library)
    table: Table = {
        "name": name,
        "source": f"measured by fourfold calibrate: torch {torch.__version__}, {dtype}{library}, ranks at once: {counts}",
        "devices": most,
        "device": {
            "name": f"a rank's share of {name}"[:200],
            "source": "measured: the best matmul, memory-bound kernels within segments",
            "memory_bytes": memory // (most if device == "cpu" else 1),
            "memory_bytes_per_second": max(1e3, min(1e18, alone["memory_bytes_per_second"] * share)),
            "peak_flops_per_second": {dtype: peak * share},
        },
        "levels": [
            {
                "name": "loopback" if device == "cpu" else "links",
                "kind": "shared" if device == "cpu" else "switch",
                "devices": max(2, most),
                "bytes_per_second": rate if device == "cpu" else rate / max(1, most // 2),
                "latency_seconds": min(latency, 1.0),
            }
        ],
        "calibration": calibration,
    }
    if device == "cuda":
        table["device"]["units"] = torch.cuda.get_device_properties(0).multi_processor_count
    return table


def best_matmul(kernels: dict[str, Any]) -> float:
    """FLOP/s of the best of a rank's matmuls, of its table of kernels."""
    return max(value for plane in kernels["gemms"]["plain"] for row in plane for value in row)
