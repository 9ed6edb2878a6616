"""Runs as cases: a finished one, by its run file and `metrics.jsonl`; one of the literature, by its preset's published figure."""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from fourfold.config import RunConfig, UserError
from fourfold.config.schema import ClusterSection
from fourfold.hardware import THIS, load_cluster
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.simulate.published import published_step
from fourfold.validate.case import Case, MeasuredStep
from fourfold.validate.software import Software


def run_case(name: str, run: RunConfig, metrics: Iterable[Mapping[str, Any]], cluster: str | None = None) -> Case:
    """The case of a run of fourfold's own. `run`: as its folder's `run.toml` has it, complete; `metrics`: the objects of its
    `metrics.jsonl`, whose first step is left out: it warms up. `cluster` None: the run's own.

    Raises `UserError` where fewer than two steps were measured, or nothing says how fast the machine is."""
    steps = {row["step"]: row for row in metrics if isinstance(row.get("step"), int)}
    warm = [steps[step] for step in sorted(steps)][1:]
    seconds = [value for row in warm if (value := _positive(row.get("step_seconds"))) is not None]
    if not seconds:
        raise UserError(
            f"{name}: its metrics.jsonl has fewer than two steps; what works: the folder of a run that trained"
        )
    machine = cluster if cluster is not None else run.cluster.preset
    if machine == THIS:
        raise UserError(
            f"{name}: nothing says how fast its machine is; what works: fourfold calibrate --out this-machine.toml, then "
            "fourfold validate RUN_DIR --cluster this-machine.toml"
        )
    peaks = [value for row in warm if (value := _positive(row.get("peak_memory_bytes"))) is not None]
    return Case(
        name=name,
        source=f"{name}/metrics.jsonl, median of {len(seconds)} steps",
        run=run,
        model=resolve_model(run.model),
        cluster=load_cluster(machine),
        software=Software(),
        measured=MeasuredStep(
            step_seconds=median(seconds), peak_memory_bytes=max(peaks, default=None), memory_rank="first"
        ),
    )


def preset_case(name: str, run: RunConfig) -> Case:
    """The case of a run preset. Raises `UserError` where its source states no figure."""
    model, cluster = resolve_model(run.model), load_cluster(run.cluster.preset)
    published = published_step(run, model, resolve_layout(run, model), cluster.device)
    if published is None:
        raise UserError(f"preset:{name}: no published figure is known of it; what works: fourfold validate presets")
    return Case(
        name=name,
        source=published.source,
        run=run,
        model=model,
        cluster=cluster,
        software=_software_of(run.cluster),
        measured=MeasuredStep(step_seconds=published.seconds),
    )


def _software_of(stated: ClusterSection) -> Software:
    attention = "unfused" if stated.attention == "recomputed" else stated.attention
    again = stated.attention == "recomputed" or None
    name = stated.software or Software().name
    return Software(name=name, gemm_dtype=stated.gemm_dtype, attention=attention, attention_recomputed=again)


def _positive(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 < value < 1e15 else None
