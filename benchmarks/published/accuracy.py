"""Writes accuracy.md and accuracy_by_source.md: published runs predicted, by fitted constants and by those fitted without the file.

python benchmarks/published/fit_constants.py DIR benchmarks/published/rows --write --cross cross.json
python benchmarks/published/predict.py DIR benchmarks/published/rows --json --plots plots > fitted.json
python benchmarks/published/accuracy.py fitted.json cross.json
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tables import defaults_lines

HERE = Path(__file__).parent
ROWS, TEXT = HERE / "rows", HERE / "accuracy_text.md"


def percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


SWEEPS = ("nanotron_playbook_sweep", "nanotron_playbook_failed")
"""Sources that are no table of tuned runs."""


def aims(fitted: dict[str, Any], crossed: dict[str, Any]) -> str:
    """The aims, and whether they are reached; means over rows, or files that reach them."""

    def verdict(reached: bool, text: str) -> str:
        return f"{'reached' if reached else 'not'}: {text}"

    columns = []
    for document in (fitted, crossed):
        files = {name: one["metrics"] for name, one in document["by_source"].items()}
        overall, sweep = document["overall"]["metrics"], files["nanotron_playbook_sweep"]
        tuned = [m for name, m in files.items() if name not in SWEEPS and m["step"]["count"]]
        accurate, skilled = sum(m["step"]["mean"] <= 0.1 for m in tuned), sum((m["skill"] or 9) < 0.7 for m in tuned)
        ranking = sweep["ranking"]
        columns.append(
            [
                f"{accurate} of {len(tuned)} files, {skilled} of {len(tuned)}",
                verdict(sweep["healthy"]["mean"] <= 0.12, f"{percent(sweep['healthy']['mean'])} %"),
                verdict(overall["memory"]["mean"] <= 0.08, f"{percent(overall['memory']['mean'])} %"),
                verdict(overall["fit"]["share"] >= 0.97, f"{percent(overall['fit']['share'])} %"),
                verdict(ranking["correlation_mean"] >= 0.9, number(ranking["correlation_mean"])),
                verdict(ranking["regret_median"] < 0.03, f"{percent(ranking['regret_median'])} %"),
            ]
        )
    names = [
        "step time of tuned tables, mean 10 %, skill under 0.7",
        "healthy part of the sweep, mean 12 %",
        "memory, mean 8 %",
        "runs that ran, predicted to fit, 97 %",
        "rank correlation on the sweep, 0.9",
        "median regret on the sweep, under 3 %",
    ]
    head = ["aim, on rows and sources not fitted on", "fitted", "cross"]
    rows = [list(row) for row in zip(names, *columns, strict=True)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * 3, *rows])


def summaries(
    fitted: dict[str, Any], crossed: dict[str, Any], collected: bool
) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Metrics, fitted and cross-validated, of every source that this project collected, or of every other one and all together."""
    ours = {path.stem for path in ROWS.glob("*.json")}
    both = [
        (name, source["metrics"], crossed["by_source"][name]["metrics"])
        for name, source in fitted["by_source"].items()
        if (name in ours) == collected
    ]
    together = ("**all**", fitted["overall"]["metrics"], crossed["overall"]["metrics"])
    return both if collected else [*both, together]


def times(fitted: dict[str, Any], crossed: dict[str, Any], collected: bool = False) -> str:
    """Step time, fitted beside cross-validated."""
    rows = []
    for name, one, two in summaries(fitted, crossed, collected):
        if not one["step"]["count"]:
            continue
        row = [name, str(one["step"]["count"]), percent(one["null_mean"])]
        for metrics in (one, two):
            step = metrics["step"]
            row += [percent(step["median"]), percent(step["mean"]), percent(step["bias"]), number(metrics["skill"])]
        rows.append([*row, percent(one["healthy"]["mean"]), percent(two["healthy"]["mean"])])
    head = ["source", "runs", "null %", "median %", "mean %", "bias %", "skill"]
    return table([*head, *(f"cross {text}" for text in head[3:]), "healthy mean %", "cross healthy %"], rows)


def order(fitted: dict[str, Any], crossed: dict[str, Any], collected: bool = False) -> str:
    rows = []
    for name, one, two in summaries(fitted, crossed, collected):
        if not one["ranking"]["groups"]:
            continue
        row = [name, str(one["ranking"]["groups"])]
        for metrics in (one, two):
            ranking = metrics["ranking"]
            row += [
                number(ranking["correlation_mean"]),
                percent(ranking["regret_median"]),
                percent(ranking["regret_mean"]),
            ]
        rows.append(row)
    head = ["rank correlation", "median regret %", "mean regret %"]
    return table(["source", "groups", *head, *(f"cross {text}" for text in head)], rows)


def memory(fitted: dict[str, Any], crossed: dict[str, Any], collected: bool = False) -> str:
    rows = []
    for name, one, two in summaries(fitted, crossed, collected):
        fit, other = one["fit"], two["fit"]
        if not one["memory"]["count"] and not fit["ran"] and not fit["failed"]:
            continue
        row = [name, str(one["memory"]["count"])]
        for metrics in (one, two):
            row += [percent(metrics["memory"]["median"]), percent(metrics["memory"]["mean"])]
        row += [str(fit["ran"]), percent(fit["share"]), percent(other["share"])]
        rows.append([*row, f"{fit['failed_predicted_not_to_fit']} of {fit['failed']}" if fit["failed"] else ""])
    head = ["source", "runs", "median %", "mean %", "cross median %", "cross mean %", "ran", "predicted to fit %"]
    return table([*head, "cross fit %", "failed, predicted not to fit"], rows)


def skipped(document: dict[str, Any]) -> str:
    reasons = sorted(document["overall"]["skipped"].items(), key=lambda item: -item[1])[:12]
    return table(["rows", "why they are skipped"], [[str(n), reason] for reason, n in reasons])


def by_source(fitted: dict[str, Any], crossed: dict[str, Any]) -> str:
    """The page of the sources that this project collected."""
    head = """\
# Accuracy by source

The rows of `benchmarks/published/rows`, source by source ([README](rows/README.md)). [accuracy.md](accuracy.md) says what the
columns are and how this page is written.
"""
    made = (("Step time", times), ("Order of layouts", order), ("Memory", memory))
    return head + "".join(f"\n## {name}\n\n{make(fitted, crossed, True)}\n" for name, make in made)


def number_collected() -> str:
    """How many rows this project collected, and how many of them are not from memory as a whole."""
    rows = [row for path in sorted(ROWS.glob("*.json")) for row in json.loads(path.read_text(encoding="utf-8"))]
    read = sum(not row.get("from_memory") for row in rows)
    return f"{len(rows):,} more rows that this project collected, {read:,} of them read"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fitted", type=Path)
    parser.add_argument("crossed", type=Path)
    options = parser.parse_args()
    fitted, crossed = (json.loads(path.read_text(encoding="utf-8")) for path in (options.fitted, options.crossed))
    text = TEXT.read_text(encoding="utf-8")
    tables = {
        "AIMS": aims(fitted, crossed),
        "TIMES": times(fitted, crossed),
        "ORDER": order(fitted, crossed),
        "MEMORY": memory(fitted, crossed),
    }
    for key, lines in tables.items():
        text = text.replace(f"<!-- {key} -->", lines)
    text = text.replace("<!-- SKIPPED -->", skipped(fitted)).replace("<!-- COLLECTED -->", number_collected())
    text = text.replace(
        "<!-- DEFAULTS -->", "\n".join(f"- {line}" for line in (" ".join(d.split()) for d in defaults_lines()))
    )
    (HERE / "accuracy.md").write_text(text, encoding="utf-8")
    (HERE / "accuracy_by_source.md").write_text(by_source(fitted, crossed), encoding="utf-8")


if __name__ == "__main__":
    main()
