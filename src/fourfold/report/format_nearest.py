"""The published runs nearest to a predicted one, as lines of text."""

from fourfold.evidence import PublishedRun, nearest_runs
from fourfold.report.screen import NARROW, columns
from fourfold.report.units import seconds_text, table
from fourfold.simulate.summary import StepSummary

MODEL_WIDTH, SOURCE_WIDTH, NARROW_WIDTH = 26, 60, 16


def nearest_lines(summary: StepSummary) -> list[str]:
    """A table of the nearest published runs: their step times as measured and as predicted. On a narrow screen without layout,
    sequence length and software."""
    head = ["nearest measured runs", "devices", "layout", "sequence", "software", "measured", "predicted", "source"]
    simulation = summary.step.simulation
    rows = [_row(run) for run in nearest_runs(simulation.spec, simulation.prices)]
    if columns() >= NARROW:
        return table(head, rows, left=(0, 1, 2, 4, 7))
    kept = [index for index, name in enumerate(head) if name not in ("layout", "sequence", "software")]
    narrow = [[_cut(row[index], NARROW_WIDTH) for index in kept] for row in rows]
    return table(["nearest runs", *(head[index] for index in kept[1:])], narrow, left=(0, 1, 4))


def _row(run: PublishedRun) -> list[str]:
    shape = run.shape
    error = run.predicted_step_seconds / run.step_seconds - 1
    return [
        _cut(run.model, MODEL_WIDTH),
        f"{shape.devices:,} {shape.device}",
        run.layout,
        f"{shape.sequence_length:,}",
        shape.software,
        seconds_text(run.step_seconds),
        f"{seconds_text(run.predicted_step_seconds)} ({100 * error:+.0f} %)",
        _cut(run.source, SOURCE_WIDTH),
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
