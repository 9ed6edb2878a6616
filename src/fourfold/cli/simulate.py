"""`fourfold simulate`: a step of a run on a cluster, predicted, and the whole run's length and cost."""

from pathlib import Path

from fourfold.api.simulation import SimulationResult
from fourfold.api.simulation import simulate as predict
from fourfold.cli.options import Flag, check_pp_rank, print_json
from fourfold.config.schema import GemmDtype
from fourfold.report.format_advice import advice_lines
from fourfold.report.format_campaign import campaign_lines
from fourfold.report.format_interval import interval_lines
from fourfold.report.format_matrices import matrix_lines
from fourfold.report.format_nearest import nearest_lines
from fourfold.report.format_run import layout_line, model_line
from fourfold.report.format_simulation import (
    check_lines,
    chosen_ranks,
    communication_lines,
    format_software,
    late_lines,
    memory_curve_lines,
    memory_lines,
    spent_lines,
    step_lines,
)
from fourfold.report.screen import columns, print_screen
from fourfold.report.verdict import verdict_lines
from fourfold.simulate.paused_garbage_collection import without_collection


@without_collection()
def simulate(
    run: Path,
    /,
    *overrides: str,
    cluster: str | None = None,
    ranks: int | None = None,
    software: str | None = None,
    gemm_dtype: GemmDtype | None = None,
    context_bytes: str | None = None,
    fragmentation: float | None = None,
    pp_rank: int | None = None,
    memory: Flag = False,
    trace: Path | None = None,
    tokens: str | None = None,
    failure_hours: str | None = None,
    checkpoint_seconds: str | None = None,
    restart_seconds: str | None = None,
    repair_seconds: str | None = None,
    price: str | None = None,
    trust: Flag = False,
    json: Flag = False,
) -> int:
    """Predict a step of a run on a cluster: time, MFU, what waits for what, communication, memory; and the run's length and cost.

    The program that `fourfold show` prints is run against prices of kernels and links. Needs neither torch nor the corpus nor the
    cluster.

    Parameters
    ----------
    run
        A run file, the folder of a run, or preset:NAME.
    overrides
        Keys of the run file, as section.key=value.
    cluster
        NAME, NAME:DEVICES or a cluster file. Default: the run file's [cluster] preset.
    ranks
        How many ranks the layout is for. Default: as many as it states; all devices of the cluster where it leaves
        layout.dp_shard open. A layout that leaves devices idle ends with exit code 1, unless this says so.
    software
        Whose software runs it: fourfold, or a framework and its year. Default: fourfold.
    gemm_dtype
        The format of matmuls but the head's, as in Transformer Engine. Default: the run file's, as fourfold has them.
    context_bytes
        What a process holds on its device before anything is allocated (driver, NCCL's buffers), for example 1.5G. Default: the
        software's.
    fragmentation
        What the allocator reserves beyond what is live, as a share. Default: the software's.
    pp_rank
        Show this pipeline rank alone in the tables. Default: the first, the last and some between.
    memory
        Draw the memory over the step, and all kinds of buffers at its peak.
    trace
        Write the simulated step to this file, for ui.perfetto.dev.
    tokens
        How many tokens the run trains on, for example 15.6T. Default: what the run file says.
    failure_hours
        Device hours for each interruption of a job. Default: the cluster's figure, if it has one.
    checkpoint_seconds
        How long a checkpoint stops training. Default: the state over 1 GB/s a node.
    restart_seconds
        From a failure until training goes on, with spares. Default: 600.
    repair_seconds
        Until a failed node is replaced, without spares. Default: 14400.
    price
        Dollars for a device hour. Default: the cluster's, if it has one.
    trust
        Import the Python code that the run names (layout.schedule, model.block = python:...). train imports it in any case.
    json
        Print one JSON document and nothing else.
    """
    found = predict(
        run,
        overrides,
        cluster=cluster,
        ranks=ranks,
        software=software,
        gemm_dtype=gemm_dtype,
        context_bytes=context_bytes,
        fragmentation=fragmentation,
        tokens=tokens,
        failure_hours=failure_hours,
        checkpoint_seconds=checkpoint_seconds,
        restart_seconds=restart_seconds,
        repair_seconds=repair_seconds,
        price=price,
        trust=trust,
    )
    if pp_rank is not None:
        check_pp_rank(pp_rank, found.resolved.layout.pp)
    traced = found.write_trace(trace) if trace is not None else None
    if json:
        document = found.to_json(memory_curves=memory)
        if traced is not None:
            document["trace"] = {"file": str(trace), "text": traced}
        print_json(document)
    else:
        print_screen([*_text(found, pp_rank, memory), *(["", traced] if traced is not None else [])])
    return 0 if found.fits and found.idle is None else 1


def _text(found: SimulationResult, pp_rank: int | None, memory: bool) -> list[str]:
    resolved, machine, summary = found.resolved, found.cluster, found.summary
    ranks = chosen_ranks(resolved.layout.pp, pp_rank, columns())
    used = "" if machine.devices == summary.devices else f", {summary.devices:,} of them used"
    software = format_software(summary.step.simulation.prices)
    lines = [
        *verdict_lines(summary),
        *([f"idle:   {found.idle}"] if found.idle is not None else []),
        *advice_lines(found.advice, summary),
        "",
        model_line(resolved),
        layout_line(resolved),
        f"on {machine.key}: {machine.devices:,} x {machine.device.name}{used} | software: {software}",
        "",
        *step_lines(summary),
        *matrix_lines(summary),
        *interval_lines(summary),
        *([found.published.line(summary.seconds)] if found.published is not None else []),
        "",
        *late_lines(summary),
        "",
        *spent_lines(summary, ranks),
    ]
    traffic = communication_lines(summary)
    lines += ["", *traffic] if traffic else []
    lines += ["", *memory_lines(summary, ranks)]
    if memory:
        lines += ["", *memory_curve_lines(summary, ranks)]
    lines += ["", *check_lines(found.checks)] if found.checks else []
    lines += ["", *nearest_lines(summary)]
    if found.campaign is not None:
        lines += ["", *campaign_lines(found.campaign, resolved.spec.checkpoint_bytes, found.stated)]
    else:
        lines += ["", "run        how long it is, is not stated: --tokens 15.6T, or batch.steps"]
    return lines
