"""Results as HTML for notebooks: a headline, a few figures, tables. Plain, complete in itself, every text escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import islice
from typing import TYPE_CHECKING

from fourfold.report.format_run import layout_line, model_line
from fourfold.report.format_simulation import KINDS
from fourfold.report.program_table import program_rows
from fourfold.report.units import (
    duration,
    format_bytes,
    format_count,
    format_figure,
    format_flops,
    per_cent,
    seconds_text,
    sparkline,
)

if TYPE_CHECKING:
    from fourfold.api.planning import PlanResult
    from fourfold.api.programs import RunProgram
    from fourfold.api.simulation import SimulationResult
    from fourfold.api.training import TrainResult
    from fourfold.api.verification import Verification

MOST_ROWS = 40


def plan_html(result: "PlanResult") -> str:
    """The layouts that were found, and the heuristic baseline."""
    plan, request = result.found, result.request
    where = f"{request.devices} x {request.cluster.device.name}"
    batch = f"{request.global_sequences} sequences of {request.sequence_length} tokens a step"
    rows = [(str(number), each) for number, each in enumerate(result.layouts, 1)]
    rows += [("heuristic baseline", plan.heuristic_baseline)] if plan.heuristic_baseline is not None else []
    cells = [
        (name, seconds_text(each.seconds), format_figure(plan.tokens_per_second(each)), per_cent(plan.mfu(each)),
         format_bytes(each.memory_bytes), each.candidate.words())
        for name, each in rows
    ]  # fmt: skip
    headline = result.best.candidate.words() if result.best is not None else "nothing was found to fit"
    head = ("", "step", "tokens/s/device", "MFU", "memory", "layout")
    return _card(
        headline, (f"{where}, {batch}", *result.notes, *result.searched), {}, _table(head, cells) if cells else ""
    )


def simulation_html(result: "SimulationResult") -> str:
    """The step's figures, and its critical path."""
    summary, device = result.summary, result.summary.device
    figures = {
        "step": seconds_text(summary.seconds),
        "tokens/s": format_count(summary.tokens_per_second),
        "MFU": per_cent(summary.mfu),
        "pipeline bubble": per_cent(summary.bubble_fraction),
        "imbalance": per_cent(summary.imbalance_fraction),
        "peak memory": f"{format_bytes(result.memory_bytes)} of {format_bytes(device.memory_bytes)}",
    }
    if result.campaign is not None:
        figures["run"] = f"{format_count(result.campaign.tokens)} tokens in {duration(result.campaign.seconds)}"
    lines = [model_line(result.resolved), layout_line(result.resolved), f"{summary.devices:,} x {device.name}"]
    lines += [result.published.line(result.step_seconds)] if result.published is not None else []
    rows = [(kind, seconds_text(each), per_cent(each / summary.seconds)) for kind, each in summary.path.items()]
    headline = result.fit.phrase
    return _card(headline, lines, figures, _table(("critical path", "time", "of the step"), rows))


def program_html(program: "RunProgram") -> str:
    """The first pipeline rank's instructions, and where its memory is highest."""
    first = program.lists[0].pp_rank if program.lists else 0
    lines = [model_line(program.resolved), layout_line(program.resolved)]
    if not program.lists:
        return _card("no program", lines, {}, "")
    peak, total = program.memory_peak(first), len(program.instructions(first))
    figures = {
        "instructions": f"{total:,}",
        "peak memory": f"{format_bytes(peak.bytes)} at #{peak.index}",
        **{KINDS.get(kind, kind): format_bytes(size) for kind, size in islice(peak.by_kind().items(), 3)},
    }
    rows = [
        (f"{row['index']}", row["instruction"], format_bytes(row["live_bytes"]), format_flops(row["flops"]) if row["flops"] else "")
        for row in program_rows(program.lists[0])[:MOST_ROWS]
    ]  # fmt: skip
    more = [f"the first {MOST_ROWS} of {total:,} instructions"] if total > MOST_ROWS else []
    table = _table(("#", "instruction", "live memory", "compute"), rows)
    return _card(f"pipeline rank {first}, {program.kind}", [*lines, *more], figures, table)


def verification_html(result: "Verification") -> str:
    """The verdict, with the faults or the extent of the proof."""
    lines = [model_line(result.resolved), layout_line(result.resolved)]
    if not result.sound:
        faults = [(str(each.rank), f"#{each.index}", each.message, each.fix) for each in result.faults[:MOST_ROWS]]
        table = _table(("rank", "instruction", "fault", "what mends it"), faults)
        return _card(f"NOT sound: {len(result.faults)} faults", lines, {}, table)
    counted = ("kind", "ranks", "distinct_programs", "instructions", "collectives", "waits")
    rows = [tuple(str(each[key]) for key in counted) for each in result.proofs()]
    return _card("sound", lines, {}, _table(tuple(key.replace("_", " ") for key in counted), rows))


def train_html(result: "TrainResult") -> str:
    """Losses, and where the run lies."""
    loss, last = result.validation_loss, result.losses[-1:]
    figures = {
        "steps": f"{result.steps:,}",
        "loss": f"{sparkline(result.losses, 40)} {last[0]:.4f}" if last else "not known",
        "validation loss": "not known" if loss is None else f"{loss:.4f} nats per token",
        "report": result.report,
    }
    return _card(str(result.folder), [], figures, "")


def _card(headline: str, lines: Iterable[str], figures: Mapping[str, str], table: str) -> str:
    shown = "<br>".join(escape(line) for line in lines)
    items = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in figures.items())
    summary = f"<table><tbody>{items}</tbody></table>" if items else ""
    return f"<div><h4>{escape(headline)}</h4><p>{shown}</p>{summary}{table}</div>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls where it is wide."""

    def row(kind: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{kind}>{escape(cell)}</{kind}>" for cell in cells) + "</tr>"

    body = "\n".join(row("td", cells) for cells in rows)
    return f'<div class="wide">\n<table><thead>{row("th", head)}</thead><tbody>\n{body}\n</tbody></table></div>'
