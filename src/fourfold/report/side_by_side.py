"""Layouts, clusters and runs side by side: one column each, predicted or measured, with the differences marked."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fourfold.config import UserError
from fourfold.config.run_rows import newest_rows
from fourfold.launch.run_folder import RunFolder
from fourfold.launch.shown import resolve_shown
from fourfold.report.units import (
    duration,
    format_bytes,
    format_dollars,
    format_figure,
    per_cent,
    seconds_text,
    spelled_out,
    table,
)
from fourfold.results.fit import Fit
from fourfold.results.prediction import layout_record
from fourfold.results.record import document as json_document
from fourfold.train.measured import read_measured

Figures = dict[str, Any]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SMALL = 1e-3
"""Exposed communication that takes less of every step than this has no row."""


@dataclass(frozen=True)
class Side:
    """One column. `figures`: those of `fourfold simulate --json`, None where they are not known."""

    name: str
    kind: Literal["predicted", "measured"]
    figures: Figures


def predicted_side(name: str, document: Mapping[str, Any]) -> Side:
    """From the document of `fourfold simulate --json`. Raises `UserError` where it is none."""
    try:
        same = (
            "cluster",
            "software",
            "devices",
            "step_seconds",
            "tokens",
            "tokens_per_second_per_device",
            "mfu",
            "fits",
        )
        figures = {
            key: document[key] for key in (*same, "bubble_fraction", "imbalance_fraction", "device_memory_bytes")
        }
        figures["fit"] = Fit.read(document["fit"]).document()
        figures["memory_bytes"] = max(rank["device_bytes"] for rank in document["memory"])
        figures["exposed_seconds"] = {each["axes"]: each["exposed_seconds"] for each in document["communication"]}
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{name}: not what plan --json or simulate --json writes: {error!r:.100}") from None
    published = document.get("published") or {}
    others = {
        "layout": document.get("layout"),
        "run": document.get("run"),
        "published_seconds": published.get("step_seconds"),
    }
    return Side(name, "predicted", figures | others)


def planned_sides(name: str, document: Mapping[str, Any], every: bool) -> list[Side]:
    """From the document of `fourfold plan --json`: its best layout, or `every` layout that it lists. Raises `UserError`."""
    best = document.get("best")
    if not best or not isinstance(document.get("best_step"), dict):
        raise UserError(f"{name}: the plan found no layout that fits; there is nothing to compare")
    first = predicted_side(f"{name} #1" if every else name, document["best_step"])
    sides = [Side(first.name, first.kind, first.figures | {"layout": best[0]["layout"]})]
    same = {key: document[key] for key in ("cluster", "software", "devices", "tokens")}
    for number, each in enumerate(best[1:] if every else [], 2):
        own = {
            key: each[key] for key in ("layout", "step_seconds", "tokens_per_second_per_device", "mfu", "memory_bytes")
        }
        limit = {
            "device_memory_bytes": first.figures["device_memory_bytes"],
            "fits": True,
            "fit": _fit_document(name, each),
        }
        sides.append(Side(f"{name} #{number}", "predicted", {**dict.fromkeys(first.figures), **same, **own, **limit}))
    return sides


def _fit_document(name: str, priced: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return Fit.read(priced["fit"]).document()
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{name}: not what plan --json writes: {error!r:.100}") from None


def measured_side(name: str, folder: RunFolder, tokens: float | None, price: float | None, trust: bool = False) -> Side:
    """From what the ranks of a run measured, as `fourfold report` reads it. `price`: dollars a device hour. `trust`: imports the
    code that the run names. Raises `UserError`."""
    config, everything = folder.stage_config(trust), read_measured(folder.path)
    if not everything:
        raise UserError(
            f"{name}: no rank has written what it measured yet; what works: the folder of a run that is done"
        )
    latest = max(everything, key=lambda each: each.last_step)
    ranks = [each for each in everything if each.world_size == latest.world_size]
    step, size = max(each.step_seconds for each in ranks), latest.world_size
    count = config.batch.global_sequences * config.batch.sequence_length
    timed = (row for row in newest_rows(folder.metrics) if row.get("mfu") and row.get("step_seconds"))
    last = next(timed, None)
    layout = json_document(layout_record(resolve_shown(config, "exchange").layout))
    seconds = None if tokens is None else tokens / count * step
    run = None
    if seconds is not None:
        dollars = None if price is None else seconds * size / 3600 * price
        run = {
            "tokens": tokens,
            "training_seconds": seconds,
            "seconds": None,
            "dollars": dollars,
            "training_dollars": dollars,
        }
    return Side(
        name,
        "measured",
        {
            "cluster": config.cluster.preset,
            "software": "fourfold",
            "devices": size,
            "step_seconds": step,
            "tokens": count,
            "tokens_per_second_per_device": count / step / size,
            "mfu": last["mfu"] * last["step_seconds"] / step if last is not None else None,
            "fits": True,
            "fit": None,
            "bubble_fraction": None,
            "imbalance_fraction": None,
            "device_memory_bytes": None,
            "memory_bytes": max((peak for each in ranks if (peak := each.peak_memory_bytes)), default=None),
            "exposed_seconds": {},
            "layout": layout,
            "run": run,
            "published_seconds": None,
        },
    )


def side_by_side_document(sides: Sequence[Side]) -> dict[str, Any]:
    """All columns, in the order of the command line; `differs`: the figures in which they are not equal."""
    keys = [key for key in sides[0].figures if any(side.figures[key] != sides[0].figures[key] for side in sides)]
    return {"columns": [{"name": each.name, "kind": each.kind, **each.figures} for each in sides], "differs": keys}


def side_by_side_lines(sides: Sequence[Side], width: int) -> list[str]:
    """Who is who, then the figures, as many columns beside each other as fit into `width`."""
    lines = [
        line for letter, side in zip(LETTERS, sides, strict=False) for line in _legend(letter, side, sides[0], width)
    ]
    rows = _rows(sides)
    label = max(len(row[0]) for row in rows)
    cell = max(len(text) for row in rows for text in row[1:]) + 2
    block = max(1, (width - label) // cell)
    for begin in range(1, len(sides) + 1, block):
        head = ["", *LETTERS[begin - 1 : begin - 1 + block][: len(sides) - begin + 1]]
        lines += ["", *table(head, [[row[0], *row[begin : begin + block]] for row in rows])]
    return [*lines, "", *_verdict(sides), "*: columns differ. In parentheses: beside A. Memory: of the fullest device."]


def layout_texts(layout: Mapping[str, Any] | None) -> dict[str, str]:
    """`{"tp": "8", "pp": "4 (1f1b)", ...}`: what departs from one device's plain step."""
    if layout is None:
        return {}
    stages = f", VPP {layout['virtual_stages']}" if layout["virtual_stages"] > 1 else ""
    details = {"cp": f" ({layout['cp_method']})", "pp": f" ({layout['schedule']}{stages})"}
    texts = {axis: f"{layout[axis]}{details.get(axis, '')}" for axis in ("tp", "cp", "pp") if layout[axis] > 1}
    if layout["dp_replicate"] > 1:
        texts["dp"] = f"{layout['dp_replicate']} x {layout['dp_shard']}"
    elif layout["dp_shard"] > 1:
        texts["dp"] = str(layout["dp_shard"])
    texts |= {axis: str(layout[axis]) for axis in ("ep", "etp") if layout[axis] > 1}
    recompute = layout["recompute"] if isinstance(layout["recompute"], str) else "by block"
    texts |= {"ZeRO": str(layout["zero"]), "microbatch": str(layout["microbatch_sequences"]), "recompute": recompute}
    return texts | ({"outermost": layout["outermost"]} if layout["outermost"] != "pp" else {})


def _legend(letter: str, side: Side, first: Side, width: int) -> list[str]:
    """Lines that say what a column is, and its layout; of all but the first, how that departs from the first's."""
    figures = side.figures
    where = f"{figures['devices']:,} devices of {figures['cluster']}, software {figures['software']}"
    own, other = layout_texts(figures["layout"]), layout_texts(first.figures["layout"])
    if side is first or not own or not other:
        layout = ", ".join(f"{key} {text}" for key, text in own.items())
    else:
        keys = [key for key in {**other, **own} if own.get(key) != other.get(key)]
        changes = ", ".join(f"{key} {other.get(key, '1')} -> {own.get(key, '1')}" for key in keys)
        layout = f"layout: {changes or 'as A'}"
    lines = [f"{letter}  {side.name}", f"   {side.kind}: {where}", *([f"   {layout}"] if layout else [])]
    return [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="     ")]


def _rows(sides: Sequence[Side]) -> list[list[str]]:
    """Label and cells of every row that some column has a value for."""
    figures = [side.figures for side in sides]
    rows = [["", *(side.kind for side in sides)]]

    def row(label: str, values: Sequence[Any], text: Callable[[Any], str], relative: bool = False) -> None:
        if all(value is None for value in values):
            return
        cells = ["-" if value is None else text(value) for value in values]
        if relative and values[0]:
            cells = [
                cell if value in (None, values[0]) else f"{cell} ({_beside(value / values[0])})"
                for cell, value in zip(cells, values, strict=True)
            ]
        known = [value for value in values if value is not None]
        rows.append([f"{'*' if any(value != known[0] for value in known) else ' '} {label}", *cells])

    row("fits", [each["fit"] for each in figures], lambda fit: Fit.read(fit).cell)
    row("step", [each["step_seconds"] for each in figures], seconds_text, relative=True)
    row("published step", [each["published_seconds"] for each in figures], seconds_text)
    rates = [each["tokens_per_second_per_device"] for each in figures]
    row("tokens/s/device", rates, format_figure, relative=True)
    row("MFU", [each["mfu"] for each in figures], per_cent)
    row("memory a device", [each["memory_bytes"] for each in figures], format_bytes)
    row("of", [each["device_memory_bytes"] for each in figures], format_bytes)
    row("bubble", [each["bubble_fraction"] for each in figures], per_cent)
    row("imbalance", [each["imbalance_fraction"] for each in figures], per_cent)
    exposed = [each["exposed_seconds"] or {} for each in figures]
    for axes in dict.fromkeys(axes for each in exposed for axes in each):
        if any(each.get(axes, 0.0) > SMALL * side["step_seconds"] for each, side in zip(exposed, figures, strict=True)):
            values = [each.get(axes, 0.0) if each else None for each in exposed]
            row(f"exposed {spelled_out(axes)}", values, lambda seconds: seconds_text(seconds) if seconds else "0")
    runs = [each["run"] or {} for each in figures]
    row("training", [each.get("training_seconds") for each in runs], duration, relative=True)
    if any(each.get("failures") for each in runs):
        row("with failures", [each.get("seconds") for each in runs], duration)
    alike = len({each.get("failures") is None for each in runs if each}) < 2
    label, key = ("cost", "dollars") if alike else ("cost without failures", "training_dollars")
    row(label, [each.get(key) for each in runs], format_dollars, relative=True)
    return rows


def _beside(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %" if 0.5 <= ratio <= 2 else f"{ratio:.3g} x"


def _verdict(sides: Sequence[Side]) -> list[str]:
    """The column with the most tokens/s/device of those that fit."""
    fitting = [(letter, side) for letter, side in zip(LETTERS, sides, strict=False) if side.figures["fits"]]
    if not fitting:
        return ["none of them fits"]
    letter, best = max(fitting, key=lambda pair: pair[1].figures["tokens_per_second_per_device"])
    kinds = "" if len({side.kind for side in sides}) == 1 else f" ({best.kind})"
    return [f"most tokens/s/device of those that fit: {letter}, {best.name}{kinds}"]
