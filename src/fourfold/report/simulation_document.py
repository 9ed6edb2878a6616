"""A predicted step, and the run it belongs to, as one JSON document."""

import math
from typing import Any

from fourfold.layout import Layout
from fourfold.report.fit import fit_of
from fourfold.report.format_interval import interval_document
from fourfold.report.verdict import verdict_lines
from fourfold.simulate.campaign import Campaign
from fourfold.simulate.memory import MemoryOverTime, memory_over_time
from fourfold.simulate.summary import StepSummary

LAYOUT_KEYS = (
    "pp", "schedule", "virtual_stages", "dp_replicate", "dp_shard", "zero", "cp", "cp_method", "tp", "sequence_parallel",
    "ep", "etp", "microbatch_sequences", "outermost", "overlap_experts", "offload_optimizer",
)  # fmt: skip


def simulation_document(summary: StepSummary, run: Campaign | None, with_curves: bool) -> dict[str, Any]:
    """Everything `fourfold simulate` prints. Units are in the keys."""
    simulation = summary.step.simulation
    layout, prices = simulation.spec.layout, simulation.prices
    document: dict[str, Any] = {
        "cluster": prices.cluster.key,
        "device": prices.cluster.device.key,
        "software": prices.software.name,
        "gemm_dtype": prices.matmul_format,
        "devices": summary.devices,
        "layout": layout_document(layout),
        "num_microbatches": summary.num_microbatches,
        "simulated_microbatches": layout.num_microbatches,
        "step_seconds": summary.seconds,
        "step_seconds_interval": interval_document("time", summary),
        "tokens": summary.tokens,
        "tokens_per_second": summary.tokens_per_second,
        "tokens_per_second_per_device": summary.tokens_per_second / summary.devices,
        "flops_per_token": summary.flops_per_token,
        "executed_flops": summary.executed_flops,
        "peak_flops_per_second": summary.peak_flops_per_second,
        "mfu": summary.mfu,
        "hfu": summary.hfu,
        "bubble_fraction": summary.bubble_fraction,
        "imbalance_fraction": summary.imbalance_fraction,
        "waiting_fraction": summary.waiting_fraction,
        "busiest_pp_rank": summary.busiest_rank,
        "time_shares": summary.time_shares,
        "spent_seconds": summary.spent,
        "communication": [
            {
                "axes": each.axes,
                "levels": list(each.levels),
                "sent_bytes": each.sent_bytes,
                "busy_seconds": each.busy_seconds,
                "exposed_seconds": each.exposed_seconds,
            }
            for each in summary.communication
        ],
        "links": [
            {
                "name": each.level.name,
                "devices": each.level.devices,
                "device_bytes_per_second": each.level.device_bytes_per_second,
                "sent_bytes": each.sent_bytes,
                "total_bytes": each.total_bytes,
                "full_seconds": each.full_seconds,
                "full_share": each.full_seconds / summary.seconds,
            }
            for each in summary.links
        ],
        "critical_path_seconds": summary.path,
        "memory": [
            {
                "pp_rank": rank,
                "device_bytes": summary.step.device_bytes[rank],
                "program_bytes": peak.bytes,
                "instruction": simulation.programs[rank].instructions[peak.index].short,
                "by_kind_bytes": peak.by_kind(),
            }
            for rank, peak in enumerate(simulation.peaks)
        ],
        "memory_bytes": max(summary.step.device_bytes),
        "memory_bytes_interval": interval_document("memory", summary),
        "context_bytes": int(simulation.prices.software.context_bytes),
        "allocator_fragmentation": simulation.prices.software.fragmentation,
        "device_memory_bytes": summary.device.memory_bytes,
        "memory_limit_bytes": summary.memory_limit,
        "fits": summary.fits,
        "fit": fit_of(summary).document(),
        "verdict": verdict_lines(summary),
    }
    if summary.step.host_bytes:
        document["host_memory_bytes"] = summary.step.host_bytes
    if summary.host_bound:
        document["host_bound"] = summary.host_bound
    if with_curves:
        document["memory_over_time"] = [
            curve_document(rank, memory_over_time(simulation, rank)) for rank in range(layout.pp)
        ]
    if run is not None:
        document["run"] = campaign_document(run)
    return document


def layout_document(layout: Layout) -> dict[str, Any]:
    """The layout by the keys of the run file; `recompute` and `offload` are lists where blocks differ."""
    policies = layout.recompute[1:-1]
    recompute = policies[0] if len({*policies}) == 1 else list(policies)
    offload = ["activations" if away else "none" for away in layout.offload[1 : len(policies) + 1]]
    stated = "none" if not any(layout.offload) else offload[0] if len({*offload}) == 1 else offload
    return {key: getattr(layout, key) for key in LAYOUT_KEYS} | {"recompute": recompute, "offload": stated}


def curve_document(pp_rank: int, curve: MemoryOverTime) -> dict[str, Any]:
    """Memory of a pipeline rank's device over the step."""
    kinds = {kind: list(sizes) for kind, sizes in curve.by_kind.items()}
    return {"pp_rank": pp_rank, "ends_seconds": list(curve.ends), "bytes": list(curve.bytes), "by_kind_bytes": kinds}


def campaign_document(run: Campaign) -> dict[str, Any]:
    """A run's length and cost; null where a figure is not known or not finite."""
    failures = run.failures
    document: dict[str, Any] = {
        "tokens": run.tokens,
        "steps": run.steps,
        "training_seconds": run.training_seconds,
        "training_device_hours": run.training_device_hours,
        "seconds": _finite(run.seconds),
        "device_hours": _finite(run.device_hours),
        "goodput": run.goodput,
        "rented_devices": run.rented,
        "dollars": _finite(run.dollars),
        "training_dollars": _finite(run.training_dollars),
        "joules": _finite(run.joules),
        "failures": None,
    }
    if failures is not None:
        document["failures"] = {
            "mean_seconds_between": failures.mean_seconds,
            "expected": _finite(failures.expected),
            "checkpoint_seconds": run.assumptions.checkpoint_seconds,
            "restart_seconds": run.assumptions.restart_seconds,
            "repair_seconds": run.assumptions.repair_seconds,
            "young_interval_seconds": failures.young_seconds,
            "daly_interval_seconds": failures.daly_seconds,
            "best_interval_seconds": failures.best_seconds,
            "checkpoint_steps": failures.checkpoint_steps,
            "goodput_with_spares": failures.with_spares.efficiency,
            "spare_devices": failures.with_spares.spare_devices,
            "goodput_without_spares": failures.without_spares.efficiency,
        }
    return document


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
