"""A validation's result as plain lines for a terminal."""

from collections.abc import Callable, Sequence

from defaults import DEFAULTS
from fourfold.report.units import table as aligned
from outcome import PublishedOutcome, SourceSummary

_MOST_REASONS = 12
_WIDEST = 96


def summary_lines(outcome: PublishedOutcome) -> list[str]:
    """The tables: step time, order of layouts, memory, and what was skipped."""
    summaries = [*outcome.by_source.items(), ("all", outcome.overall)]
    lines = [
        *table(("step time", "rows", "pairs", "median", "mean", "bias", "null", "skill", "healthy"), summaries, _step),
        "",
        *table(("order of layouts", "groups", "rank mean", "regret med", "mean", "max"), summaries, _order),
        "",
        *table(("memory", "pairs", "median", "mean", "bias", "ran", "fit"), summaries, _memory),
        "",
        *_skipped(outcome),
    ]
    return lines


def defaults_lines() -> list[str]:
    """The documented defaults, one a line."""
    width = max(map(len, DEFAULTS))
    return [f"{key:<{width}}  {sentence}" for key, sentence in DEFAULTS.items()]


def table(
    head: Sequence[str],
    summaries: Sequence[tuple[str, SourceSummary]],
    cells: Callable[[SourceSummary], Sequence[str] | None],
) -> list[str]:
    """Aligned columns, the first to the left; a summary without cells has no line."""
    rows = [(name, *made) for name, summary in summaries if (made := cells(summary)) is not None]
    if not rows:
        return [f"{head[0]}: nothing to compare"]
    return aligned(head, rows)


def _step(summary: SourceSummary) -> Sequence[str] | None:
    m = summary.metrics
    if not m.step.count:
        return None
    skill = "-" if m.skill is None else f"{m.skill:.2f}"
    return (
        str(summary.rows), str(m.step.count), percent(m.step.median), percent(m.step.mean), percent(m.step.bias, sign=True),
        percent(m.null_mean), skill, percent(m.healthy.mean),
    )  # fmt: skip


def _order(summary: SourceSummary) -> Sequence[str] | None:
    r = summary.metrics.ranking
    if not r.groups:
        return None
    mean = "-" if r.correlation_mean is None else f"{r.correlation_mean:.3f}"
    return str(r.groups), mean, percent(r.regret_median), percent(r.regret_mean), percent(r.regret_max)


def _memory(summary: SourceSummary) -> Sequence[str] | None:
    memory, fit = summary.metrics.memory, summary.metrics.fit
    if not memory.count and not fit.ran:
        return None
    return (
        str(memory.count), percent(memory.median), percent(memory.mean), percent(memory.bias, sign=True), str(fit.ran),
        percent(fit.share),
    )  # fmt: skip


def percent(value: float | None, sign: bool = False) -> str:
    """A fraction in per cent, `-` where there is none."""
    if value is None:
        return "-"
    return f"{100 * value:+.1f} %" if sign else f"{100 * value:.1f} %"


def _skipped(outcome: PublishedOutcome) -> list[str]:
    reasons = list(outcome.overall.skipped.items())
    total = sum(count for _, count in reasons)
    lines = [f"skipped: {total} of {outcome.overall.rows} rows"]
    lines += [f"{count:>6}  {_cut(reason)}" for reason, count in reasons[:_MOST_REASONS]]
    rest = sum(count for _, count in reasons[_MOST_REASONS:])
    if rest:
        lines.append(f"{rest:>6}  {len(reasons) - _MOST_REASONS} other reasons")
    lines += [f"not read: {file.file}: {file.reason}" for file in outcome.unread]
    return lines


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
