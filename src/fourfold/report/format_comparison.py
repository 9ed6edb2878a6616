"""Predicted beside measured in a terminal."""

from fourfold.report.format_run import layout_line, model_line
from fourfold.report.units import format_bytes, seconds_text, table
from fourfold.results.comparison import Comparison, Difference, KindComparison, RankComparison, furthest

SHOWN_DIFFERENCES = 5
SHOWN_RANKS = 16
SMALL = 1e-3
"""Kinds of instructions that take less of a step than this go together."""


def comparison_lines(found: Comparison) -> list[str]:
    """The lines of `fourfold report`."""
    lines = [model_line(found.resolved), layout_line(found.resolved), *(f"note: {note}" for note in found.notes), ""]
    lines += [*headline(found), ""]
    if found.differences:
        lines += [
            "largest differences",
            *(f"  {difference_line(found, d)}" for d in found.differences[:SHOWN_DIFFERENCES]),
        ]
        lines.append("")
    lines += [*kind_lines(found), "", *rank_lines(found)]
    return lines


def headline(found: Comparison) -> list[str]:
    """The step, memory and bytes, each predicted beside measured."""
    measured = found.ranks[0].measured
    steps = f"median of {measured.steps} steps to step {measured.last_step}, the slowest rank's"
    if found.predicted_seconds is not None and found.error is not None and found.cluster is not None:
        lines = [
            f"step      predicted {seconds_text(found.predicted_seconds)} on {found.cluster.name}, measured "
            f"{seconds_text(found.measured_seconds)} ({steps}): {signed(found.error)}"
        ]
    else:
        lines = [
            f"step      measured {seconds_text(found.measured_seconds)} ({steps})",
            f"          not predicted: {found.why_not}",
        ]

    lines.append(f"memory    {_memory_text(found)}")
    unequal = [rank for rank in found.ranks if not rank.sent_equal]
    sent = sum(sum(rank.measured.sent_bytes.values()) for rank in found.ranks)
    which = f"different on rank {unequal[0].measured.rank}" if unequal else "equal on every rank and axis"
    if found.ranks[0].routed:
        which += ", but for the experts' rows: predicted as even shares, counted as the router sent them"
    return [*lines, f"bytes     {format_bytes(sent)} sent by all ranks in a step; predicted and counted: {which}"]


def _memory_text(found: Comparison) -> str:
    """The rank whose predicted peak is furthest off; the largest predicted one where nothing measured any."""
    if all(rank.peak_error is None for rank in found.ranks):
        most = max(rank.predicted_peak for rank in found.ranks)
        return f"predicted {format_bytes(most)} at most; not measured: run.track_memory = true does"
    worst = max(found.ranks, key=lambda rank: abs(rank.peak_error or 0.0))
    pair = f"predicted {format_bytes(worst.predicted_peak)}, measured {_bytes(worst.measured.peak_memory_bytes)}"
    on = f"on rank {worst.measured.rank}, which is furthest off" if len(found.ranks) > 1 else "at most"
    return f"{pair} {on}: {signed(worst.peak_error or 0.0, 2)}"


def _bytes(size: int | None) -> str:
    return "-" if size is None else format_bytes(size)


def difference_line(found: Comparison, each: Difference) -> str:
    """`clip norm: 34.1 ms measured, 12.0 ms predicted: 22.1 ms more, +2.6 % of the step; most on rank 3 (40 ms more)`."""
    text = (
        f"{each.kind}: {seconds_text(each.measured)} measured, {seconds_text(each.predicted)} predicted: "
        f"{_more(each.seconds)}, {signed(each.share)} of the step"
    )
    return f"{text}; most on rank {each.rank} ({_more(each.rank_seconds)})" if len(found.ranks) > 1 else text


def _more(seconds: float) -> str:
    return f"{seconds_text(abs(seconds))} {'more' if seconds > 0 else 'less'}"


def signed(share: float, digits: int = 1) -> str:
    return f"{100 * share:+.{digits}f} %".replace("-0.00 ", "0.00 ").replace("+0.00 ", "0.00 ")


def shown_kinds(found: Comparison) -> list[KindComparison]:
    """The mean over ranks; kinds that take next to nothing together as `others`."""
    least = SMALL * found.measured_seconds
    large = [each for each in found.kinds if max(each.measured, each.predicted or 0.0) >= least]
    few = [each for each in found.kinds if max(each.measured, each.predicted or 0.0) < least]
    if few:
        predicted = sum(each.predicted or 0.0 for each in few) if found.step is not None else None
        large.append(KindComparison("others", sum(e.count for e in few), sum(e.measured for e in few), predicted))
    return large


def kind_lines(found: Comparison) -> list[str]:
    """A row a kind of instruction."""
    rows = []
    for each in shown_kinds(found):
        row = [each.kind, f"{each.count}", _milliseconds(each.predicted), _milliseconds(each.measured)]
        share = each.difference / found.measured_seconds
        rows.append([*row, _milliseconds(each.difference, True), signed(share)] if found.step is not None else row)
    head = ["a step of a rank, mean", "times", "predicted ms", "measured ms"]
    return table([*head, "difference", "of the step"] if found.step is not None else head, rows)


def rank_lines(found: Comparison) -> list[str]:
    """A row a rank."""
    rows = []
    for rank in furthest(found, SHOWN_RANKS):
        peak = rank.measured.peak_memory_bytes
        row = [f"rank {rank.measured.rank}", f"{rank.pp_rank}", _milliseconds(rank.predicted_seconds)]
        row += [_milliseconds(rank.measured.step_seconds), format_bytes(rank.predicted_peak), _bytes(peak)]
        row += [format_bytes(sum(rank.measured.sent_bytes.values())), "=" if rank.sent_equal else "DIFFERS"]
        rows.append([*row, _largest(rank)])
    cut = len(found.ranks) - len(rows)
    note = [f"{cut} more ranks, nearer to the median"] if cut else []
    head = [
        "",
        "pp",
        "predicted ms",
        "measured ms",
        "predicted peak",
        "measured peak",
        "sent",
        "",
        "largest difference",
    ]
    return [*table(head, rows, left=(0, 8)), *note]


def _largest(rank: RankComparison) -> str:
    if rank.predicted_seconds is None:
        return ""
    most = max(rank.kinds, key=lambda each: abs(each.difference))
    return f"{most.kind}, {_more(most.difference)}"


def _milliseconds(seconds: float | None, with_sign: bool = False) -> str:
    if seconds is None:
        return ""
    return f"{1e3 * seconds:+.2f}" if with_sign else f"{1e3 * seconds:.2f}"
