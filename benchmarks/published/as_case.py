"""A published case in the run file's words, as `fourfold validate` predicts it."""

from dataclasses import replace
from typing import Any

from case import ATTENTION_CORE, PublishedCase
from fourfold.config import UserError, parse_run
from fourfold.hardware import Cluster, Level
from fourfold.validate import Case, MeasuredStep, Software
from machine import usual_levels

MOST_LAYERS = 2_000
MOST_DIVISIONS = 50_000_000
"""stages x layers^2, in which stages are found."""
_DEGREES = (
    "pp", "virtual_stages", "schedule", "dp_replicate", "dp_shard", "zero", "cp", "tp", "sequence_parallel", "ep", "etp",
    "microbatch_sequences", "cp_method", "outermost",
)  # fmt: skip


def as_case(case: PublishedCase) -> Case:
    """The case with its layout in full, its cluster level by level and its software key by key. Raises `UserError` where no run
    file can say it."""
    layers, stages = case.model.num_layers, case.layout.pp * case.layout.virtual_stages
    if layers > MOST_LAYERS or stages * layers**2 > MOST_DIVISIONS:
        raise UserError(
            f"{layers} layers in {stages} stages: at most {MOST_LAYERS} layers are simulated, fewer in many stages"
        )
    model = replace(case.model, max_position=max(case.model.max_position, case.sequence_length))
    precision = case.precision
    table: dict[str, Any] = {
        "model": {key: value for key, value in vars(model).items() if value not in (None, ())},
        "batch": {"global_sequences": case.global_sequences, "sequence_length": case.sequence_length, "steps": 1},
        "layout": _layout(case),
        "precision": {
            "compute": _of_run_file(precision.compute),
            "master": "fp64" if precision.master == "fp64" else "fp32",
            "gradients": _of_run_file(precision.gradients),
        },
    }
    return Case(
        name=case.id,
        source=case.source,
        run=parse_run(table, source=case.id),
        model=model,
        cluster=cluster_of(case),
        software=software_of(case),
        measured=_measured(case),
        attention_share=case.attention_share,
    )


def _of_run_file(dtype: str) -> str:
    """fp16 takes the bytes of bf16, which run files know; the software says that it is fp16."""
    return "bf16" if dtype == "fp16" else dtype


def _layout(case: PublishedCase) -> dict[str, Any]:
    layout: dict[str, Any] = {name: getattr(case.layout, name) for name in _DEGREES}
    if case.layout.tp == 1:
        del layout["sequence_parallel"]
    if case.layout.virtual_stages == 1:
        del layout["virtual_stages"]
    layout["recompute"] = case.layout.policies(case.model.num_layers)
    sizes = even_sizes(case)
    return layout if sizes is None else {**layout, "segments_per_stage": sizes}


def even_sizes(case: PublishedCase) -> list[int] | None:
    """Segments of every stage where blocks are divided evenly, in the order of the model; None: divided by their cost."""
    stages, layers = case.layout.pp * case.layout.virtual_stages, case.model.num_layers
    if not case.even_stages or stages == 1 or layers % stages:
        return None
    sizes = [layers // stages] * stages
    sizes[0] += 1
    sizes[-1] += 1
    return sizes


def software_of(case: PublishedCase) -> Software:
    """The software of a case, key by key. Where weights and optimizer states are in 16 bits, there is no master copy."""
    precision = case.precision
    narrow = precision.master == precision.compute != "fp32"
    moment_bytes = case.moment_bytes if case.moment_bytes is not None else 2.0 if narrow else None
    return Software.model_validate(
        {
            "name": case.software,
            "compute_dtype": "fp16" if precision.compute == "fp16" else None,
            "gemm_dtype": precision.low,
            **case.kernels.stated,
            "attention_dropout": case.attention_dropout,
            "attention_recomputed": ATTENTION_CORE[0] in case.layout.recompute_modules,
            "overlap": case.overlap,
            "eager": case.eager or None,
            "low_precision_activations": case.narrow_operands or None,
            "optimizer_state_bytes": moment_bytes,
            "master_bytes": 0.0 if narrow else None,
            "offload": case.offloaded,
        }
    )


def _measured(case: PublishedCase) -> MeasuredStep:
    measured = case.measured
    return MeasuredStep(
        step_seconds=measured.step_seconds,
        peak_memory_bytes=measured.memory_bytes,
        memory_counts="allocated" if measured.memory_kind == "unstated" else measured.memory_kind,
        memory_rank="last" if measured.last_rank_alone else "largest",
        out_of_memory=measured.failed,
    )


def cluster_of(case: PublishedCase) -> Cluster:
    """NVLink, or what a node has in its place, and one network beyond it."""
    network = case.network
    inner = min(network.nvlink_domain, case.num_devices)
    within, *beyond = usual_levels(case.device)
    levels = [replace(within, devices=max(1, inner), part_multiple=None, scalable=False)]
    if case.num_devices > inner:
        usual = beyond[0] if beyond else within
        outside = network.internode_bytes_per_second or usual.bytes_per_second
        levels.append(Level("network", "switch", -(-case.num_devices // inner) * inner, outside, usual.latency_seconds))
    return Cluster(
        key=case.device,
        name=case.source,
        source=case.source,
        device=case.hardware,
        devices=levels[-1].devices,
        levels=tuple(levels),
        dollars_per_device_hour=None,
        mean_hours_between_failures_per_device=None,
        watts_per_device=None,
    )
