"""`fourfold simulate`: a step of a run on a cluster, predicted, and the whole run's length and cost."""

import json as json_text
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fourfold.cli.numbers import parse_number
from fourfold.cli.software import software_overrides_of
from fourfold.config import RunConfig, UserError, load_run
from fourfold.config.schema import GemmDtype
from fourfold.hardware import THIS, Cluster, cluster_names, load_cluster
from fourfold.huggingface import resolve_model
from fourfold.launch.resolve import ResolvedRun, resolve_run, stated_vocab_size
from fourfold.launch.run_folder import RUN_FILE
from fourfold.report.format_campaign import campaign_lines
from fourfold.report.format_nearest import nearest_document, nearest_lines
from fourfold.report.format_run import layout_line, model_line
from fourfold.report.format_simulation import (
    chosen_ranks,
    communication_lines,
    format_software,
    late_lines,
    memory_curve_lines,
    memory_lines,
    spent_lines,
    step_lines,
)
from fourfold.report.simulation_document import simulation_document
from fourfold.simulate.campaign import (
    REPAIR_SECONDS,
    RESTART_SECONDS,
    Assumptions,
    Campaign,
    campaign,
    checkpoint_seconds,
)
from fourfold.simulate.collection import without_collection
from fourfold.simulate.published import PublishedStep, published_step
from fourfold.simulate.run_prices import check_devices, prices_for, transport_on
from fourfold.simulate.step import predict_step
from fourfold.simulate.summary import StepSummary
from fourfold.simulate.trace import write_trace
from fourfold.simulate.whole import check_layers, check_size, step_for_trace

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


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
        How many ranks the layout is for. Default: as many as it asks for.
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
    json
        Print one JSON document and nothing else.
    """
    software_overrides = software_overrides_of(gemm_dtype, context_bytes, fragmentation)
    config = load_run(_run_file(run), overrides)
    name = _cluster_name(config, cluster)
    published = None if overrides or name != config.cluster.preset else config.published
    software = software if software is not None else config.cluster.software
    if gemm_dtype is None:
        software_overrides = replace(software_overrides, gemm_dtype=config.cluster.gemm_dtype)
    machine = load_cluster(name)
    config = config.on_cluster(name)  # for layout = "auto"
    vocabulary = stated_vocab_size(config.model, config.data)
    check_layers(resolve_model(config.model, vocabulary))
    resolved = resolve_run(config, ranks, vocabulary, transport_on(machine))
    layout = resolved.layout
    check_devices(layout, machine)
    if pp_rank is not None and not 0 <= pp_rank < layout.pp:
        allowed = "0" if layout.pp == 1 else f"0 to {layout.pp - 1}"
        raise UserError(f"--pp-rank {pp_rank}: the layout has pp = {layout.pp}; allowed: {allowed}")
    assumptions, stated = _assumptions(
        resolved, machine, failure_hours, checkpoint_seconds, restart_seconds, repair_seconds, price
    )
    wanted = _tokens(config, tokens)
    prices = prices_for(resolved.config, resolved.spec, machine, software, software_overrides)
    check_size(resolved.spec)
    summary = StepSummary(predict_step(resolved.spec, prices, resolved.compiled), layout.num_microbatches)
    beside = published_step(published, resolved.config, summary) if published is not None else None
    length = None
    if wanted is not None:
        length = campaign(wanted, summary.tokens, summary.seconds, layout.world_size, machine.node_devices, assumptions)
    traced = _write_trace(trace, resolved, summary) if trace is not None else None
    if json:
        document = {"model_parameters": resolved.num_parameters, **simulation_document(summary, length, memory)}
        document["nearest"] = nearest_document(summary)
        document["published"] = None if beside is None else beside.document()
        if traced is not None:
            document["trace"] = {"file": str(trace), "text": traced}
        print(json_text.dumps(document, indent=1))
    else:
        print("\n".join(_text(resolved, machine, summary, length, pp_rank, memory, stated, beside)))
        if traced is not None:
            print(f"\n{traced}")
    return 0 if summary.fits else 1


def _text(
    resolved: ResolvedRun,
    machine: Cluster,
    summary: StepSummary,
    length: Campaign | None,
    pp_rank: int | None,
    memory: bool,
    stated: frozenset[str],
    published: PublishedStep | None,
) -> list[str]:
    columns = chosen_ranks(resolved.layout.pp, pp_rank)
    used = "" if machine.devices == summary.devices else f", {summary.devices:,} of them used"
    software = format_software(summary.step.simulation.prices)
    lines = [
        model_line(resolved),
        layout_line(resolved),
        f"on {machine.key}: {machine.devices:,} x {machine.device.name}{used} | software: {software}",
        "",
        *step_lines(summary),
        *([published.line()] if published is not None else []),
        "",
        *late_lines(summary),
        "",
        *spent_lines(summary, columns),
    ]
    traffic = communication_lines(summary)
    lines += ["", *traffic] if traffic else []
    lines += ["", *memory_lines(summary, columns)]
    if memory:
        lines += ["", *memory_curve_lines(summary, columns)]
    lines += ["", *nearest_lines(summary)]
    if length is not None:
        lines += ["", *campaign_lines(length, resolved.spec.checkpoint_bytes, stated)]
    else:
        lines += ["", "run        how long it is, is not stated: --tokens 15.6T, or batch.steps"]
    return lines


def _run_file(run: Path) -> Path:
    if run.is_dir() and not (run / RUN_FILE).is_file():
        raise UserError(
            f"{run}: the folder holds no {RUN_FILE}; name a run file, preset:NAME, or a folder that fourfold train wrote"
        )
    return run / RUN_FILE if run.is_dir() else run


def _cluster_name(config: RunConfig, stated: str | None) -> str:
    name = stated if stated is not None else config.cluster.preset
    if stated is None and name == THIS:
        known = cluster_names()
        shown = [
            name for name in ("h100-24576", "h800-2048", "dgx-a100", "gb200-nvl72", "tpu-v5p-8960") if name in known
        ]
        raise UserError(
            f"--cluster is missing, and the run file's [cluster] names none; what works: --cluster dgx-h100:64, a cluster file, or "
            f"one of {', '.join(shown)} and {len(known) - len(shown)} more in src/fourfold/hardware/clusters"
        )
    return name


def _tokens(config: RunConfig, stated: str | None) -> int | None:
    batch = config.batch
    if stated is not None:
        return math.ceil(parse_number(stated, "--tokens", "15.6T", least=1))
    if batch.tokens is not None:
        return batch.tokens
    return batch.steps * batch.global_sequences * batch.sequence_length if batch.steps is not None else None


def _assumptions(
    resolved: ResolvedRun,
    machine: Cluster,
    failure_hours: str | None,
    checkpoint: str | None,
    restart: str | None,
    repair: str | None,
    price: str | None,
) -> tuple[Assumptions, frozenset[str]]:
    """The given assumptions, else the cluster's, else the defaults; and which of them are given."""

    def number(text: str | None, option: str, example: str, default: float, least: float, most: float = 1e9) -> float:
        return default if text is None else parse_number(text, option, example, least, most)

    state, devices = resolved.spec.checkpoint_bytes, resolved.layout.world_size
    hours, dollars = machine.mean_hours_between_failures_per_device, machine.dollars_per_device_hour
    if failure_hours is not None:
        hours = parse_number(failure_hours, "--failure-hours", "50k", 1e-3, 1e12)
    if price is not None:
        dollars = parse_number(price, "--price", "2.5", 0.0, 1e6)
    default = checkpoint_seconds(state, devices, machine)
    given = {
        "checkpoint_seconds": number(checkpoint, "--checkpoint-seconds", "60", default, 1e-3),
        "restart_seconds": number(restart, "--restart-seconds", "600", RESTART_SECONDS, 0.0),
        "repair_seconds": number(repair, "--repair-seconds", "14400", REPAIR_SECONDS, 0.0),
    }
    texts = {"checkpoint_seconds": checkpoint, "restart_seconds": restart, "repair_seconds": repair}
    assumptions = Assumptions(
        failure_hours=hours, dollars_per_device_hour=dollars, watts_per_device=machine.watts_per_device, **given
    )
    return assumptions, frozenset(name for name, text in texts.items() if text is not None)


def _write_trace(path: Path, resolved: ResolvedRun, summary: StepSummary) -> str:
    shown, cut = step_for_trace(resolved.spec, summary.step)
    events = write_trace(shown, path)
    return f"trace of {events} events written to {path}; open it at ui.perfetto.dev{cut}"
