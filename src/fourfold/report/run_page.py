"""`report.html`: one page of a run, complete in itself: what it learned, predicted beside measured, its timelines."""

import time
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from fourfold.config import RunFailure
from fourfold.config.json_lines import read_jsonl
from fourfold.config.whole_file import write_whole
from fourfold.launch.run_folder import RunFolder
from fourfold.report.comparison import Comparison, furthest
from fourfold.report.format_comparison import SHOWN_DIFFERENCES, difference_line, headline, shown_kinds, signed
from fourfold.report.format_run import layout_line, model_line
from fourfold.report.format_simulation import seconds_text
from fourfold.report.run_charts import BANDS, curve, timelines
from fourfold.report.run_state import RunInfo, RunState, describe_event
from fourfold.report.units import format_bytes, format_count

PAGE = "report.html"
SHOWN_RANKS, SHOWN_EVENTS = 64, 40


def write_page(found: Comparison, folder: RunFolder, path: Path) -> None:
    """Writes the page in one piece. Raises `RunFailure` where it cannot be written."""
    try:
        write_whole(path, page(found, folder))
    except OSError as error:
        raise RunFailure(
            f"--html {path}: cannot be written: {error.strerror}; what works: --html report.html in a folder that is there"
        ) from None


def page(found: Comparison, folder: RunFolder) -> str:
    """The document."""
    state = _state(found, folder)
    style = resources.files("fourfold.report").joinpath("run_page.css").read_text(encoding="utf-8")
    name = escape(folder.path.resolve().name)
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}: fourfold</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>\n{style}</style></head><body>",
        f"<h1>{name}</h1>",
        f"<p>{escape(model_line(found.resolved))}<br>{escape(layout_line(found.resolved))}</p>",
        *(f'<p class="note">{escape(note)}</p>' for note in found.notes),
        _tiles(found, state),
        _curves(found, state),
        _section(
            "Predicted beside measured", "<ul>", *(f"<li>{escape(line)}</li>" for line in _headline(found)), "</ul>"
        ),
        _differences(found),
        _kinds(found),
        _timelines(found),
        _ranks(found),
        _traffic(found),
        _events(state),
        _run_file(folder),
        "</body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _state(found: Comparison, folder: RunFolder) -> RunState:
    steps = found.resolved.config.batch.steps or 0
    info = RunInfo(folder.path.name, folder.path, "", "", steps, None, None, 0)
    state = RunState(info, begun=0.0)
    state.refresh()
    return state


def _section(title: str, *parts: str) -> str:
    return "\n".join([f"<section><h2>{escape(title)}</h2>", *parts, "</section>"])


def _headline(found: Comparison) -> list[str]:
    return [" ".join(line.split()) for line in headline(found)]


def _tiles(found: Comparison, state: RunState) -> str:
    validation, mfu, rate = state.validation, state.number("mfu"), state.tokens_per_second
    tiles = [("step, measured", seconds_text(found.measured_seconds))]
    if found.predicted_seconds is not None and found.error is not None:
        tiles.append(("step, predicted", f"{seconds_text(found.predicted_seconds)} ({signed(found.error)})"))
    tiles.append(("steps", f"{state.step:,}"))
    if state.losses:
        tiles.append(("loss", f"{state.losses[-1]:.4f}"))
    if validation is not None:
        tiles.append(("validation loss", f"{validation[0]:.4f}"))
    if rate is not None:
        tiles.append(("tokens/s", format_count(rate)))
    if mfu is not None:
        tiles.append(("MFU", f"{100 * mfu:.1f} %"))
    tiles.append(("peak memory", format_bytes(max(rank.measured.peak_memory_bytes for rank in found.ranks))))
    return '<div class="tiles">' + "".join(f"<div><b>{escape(v)}</b>{escape(k)}</div>" for k, v in tiles) + "</div>"


def _curves(found: Comparison, state: RunState) -> str:
    rows = list(state.rows.values())

    def points(key: str) -> list[tuple[float, float]]:
        return [(float(row["step"]), float(row[key])) for row in rows if isinstance(row.get(key), int | float)]

    loss = curve(points("loss"), points("validation_loss"), None, "loss, dots: validation", "nats per token")
    seconds = curve(points("step_seconds"), [], found.predicted_seconds, "seconds of a step", "dashed: predicted")
    figures = [("loss (dots: validation)", loss), ("seconds of a step (dashed: predicted)", seconds)]
    shown = [f"<figure>{svg}<figcaption>{escape(text)}</figcaption></figure>" for text, svg in figures if svg]
    return f'<div class="curves">{"".join(shown)}</div>' if shown else ""


def _differences(found: Comparison) -> str:
    if not found.differences:
        return ""
    lines = [f"<li>{escape(difference_line(found, each))}</li>" for each in found.differences[:SHOWN_DIFFERENCES]]
    return _section("Largest differences", "<ol>", *lines, "</ol>")


def _kinds(found: Comparison) -> str:
    kinds = shown_kinds(found)
    longest = max((max(each.measured, each.predicted or 0.0) for each in kinds), default=0.0) or 1.0
    known = found.step is not None
    rows = []
    for each in kinds:
        cells = [escape(each.kind), f"{each.count:,}", _milliseconds(each.predicted), _milliseconds(each.measured)]
        if known:
            cells += [f"{1e3 * each.difference:+.2f}", signed(each.difference / found.measured_seconds)]
        bars = _bar("measured", each.measured / longest)
        rows.append([*cells, (_bar("predicted", (each.predicted or 0.0) / longest) if known else "") + bars])
    head = ["instruction", "times a step", "predicted ms", "measured ms"]
    head += ["difference", "of the step", "predicted above measured"] if known else [""]
    return _section("Kinds of instructions, mean over ranks", html_table(head, rows))


def _bar(kind: str, share: float) -> str:
    return f'<span class="bar {kind}" style="width:{100 * share:.1f}%"></span>'


def _timelines(found: Comparison) -> str:
    drawn = timelines(found)
    if not drawn:
        return ""
    legend = "".join(f'<span class="key {band}"></span>{band} ' for band in BANDS)
    return _section("One step over time", drawn, f'<p class="legend">{legend}</p>')


def _ranks(found: Comparison) -> str:
    rows = []
    for rank in furthest(found, SHOWN_RANKS):
        measured = rank.measured
        waits = sum(each.measured for each in rank.kinds if each.kind.startswith("wait for"))
        rows.append(
            [
                f"{measured.rank}",
                f"{rank.pp_rank}",
                _milliseconds(rank.predicted_seconds),
                _milliseconds(measured.step_seconds),
                _milliseconds(waits),
                format_bytes(rank.predicted_peak),
                format_bytes(measured.peak_memory_bytes),
                format_bytes(sum(measured.sent_bytes.values())) + ("" if rank.sent_equal else " (not as predicted)"),
            ]
        )
    head = [
        "rank",
        "pp",
        "predicted ms",
        "measured ms",
        "of it waits",
        "predicted peak",
        "measured peak",
        "communication volume",
    ]
    cut = len(found.ranks) - len(rows)
    note = f"<p>{cut} more ranks, nearer to the median</p>" if cut else ""
    return _section("Ranks", html_table(head, rows), note)


def _traffic(found: Comparison) -> str:
    names = dict.fromkeys(axes for rank in found.ranks for axes in (*rank.predicted_bytes, *rank.measured.sent_bytes))
    rows = []
    for axes in names:
        predicted = sum(rank.predicted_bytes.get(axes, 0) for rank in found.ranks)
        counted = sum(rank.measured.sent_bytes.get(axes, 0) for rank in found.ranks)
        if predicted or counted:
            rows.append(
                [escape(axes), f"{predicted:,}", f"{counted:,}", "equal" if predicted == counted else "different"]
            )
    return (
        _section("Bytes sent in a step, all ranks", html_table(["group", "predicted", "counted", ""], rows))
        if rows
        else ""
    )


def _events(state: RunState) -> str:
    shown = [event for event in state.events if event.get("event") != "phase"][-SHOWN_EVENTS:]
    rows = [[_clock(event.get("time")), escape(describe_event(event))] for event in shown]
    return _section("Events", html_table(["time", "event"], rows)) if rows else ""


def _clock(seconds: object) -> str:
    known = isinstance(seconds, int | float) and 0 <= seconds < 1e11
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if known else ""  # type: ignore[arg-type]


def _run_file(folder: RunFolder) -> str:
    text = "".join(f"{row}\n" for row in folder.run_file.read_text(encoding="utf-8").splitlines())
    metrics = sum(1 for _ in read_jsonl(folder.metrics))
    summary = f"<summary>run.toml: everything resolved ({metrics:,} steps in metrics.jsonl)</summary>"
    return f"<section><details>{summary}<pre>{escape(text)}</pre></details></section>"


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.2f}"


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table that scrolls where it is wide. Cells are escaped already."""
    lines = ["<table><thead><tr>", *(f"<th>{cell}</th>" for cell in head), "</tr></thead><tbody>"]
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join(['<div class="wide">', *lines, "</tbody></table></div>"])
