"""`predict.py` on rows made by hand: one JSON document, reasons for what is skipped, one message for what is wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from predict import run as run_command
from scatter import COLOURS, Scatter, scatter_svg

ROWS = Path(__file__).parent / "rows"


@pytest.fixture
def validate(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command; (exit code, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command([*map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


Run = Callable[..., tuple[int, str, str]]


def test_json_is_one_document_with_every_row(validate: Run) -> None:
    code, out, _ = validate(ROWS, "--json")
    document = json.loads(out)
    assert code == 0
    assert len(document["rows"]) == 56
    assert [file["file"] for file in document["unread"]] == ["tables.json"]
    predicted = 0
    for row in document["rows"]:
        assert {"id", "predicted_step_seconds", "predicted_memory_bytes", "skipped", "step_error"} <= set(row)
        if row["skipped"] is None:
            predicted += 1
            assert row["predicted_step_seconds"] > 0
            assert row["predicted_memory_bytes"] > 0
        else:
            assert row["predicted_step_seconds"] is None
            assert row["predicted_memory_bytes"] is None
    assert predicted == document["overall"]["predicted"] >= 30
    assert document["overall"]["metrics"]["step"]["count"] > 20


def test_processes_give_what_one_gives(validate: Run) -> None:
    one = json.loads(validate(ROWS / "sweep.json", "--json")[1])
    two = json.loads(validate(ROWS / "sweep.json", "--json", "--jobs", 2)[1])
    assert one == two


def test_the_tables_name_files_errors_and_reasons(validate: Run) -> None:
    code, out, _ = validate(ROWS)
    assert code == 0
    for text in ("step time", "skill", "order of layouts", "memory", "skipped: ", "TPU v9", "not read: tables.json"):
        assert text in out


def test_rows_can_be_chosen(validate: Run) -> None:
    def ids(*options: object) -> list[str]:
        return [row["id"] for row in json.loads(validate(ROWS, "--json", *options)[1])["rows"]]

    assert {name.partition(":")[0] for name in ids("--source", "SWEEP")} == {"sweep"}
    assert len(ids("--limit", 7)) == 7
    code, _, err = validate(ROWS, "--source", "nowhere")
    assert code != 0
    assert err.count("\n") == 1
    assert "sweep" in err


def test_a_row_is_explained(validate: Run) -> None:
    code, out, _ = validate(ROWS, "--explain", "sweep:0", "--json")
    document = json.loads(out)
    assert code == 0
    assert sum(document["seconds"].values()) == pytest.approx(document["predicted"]["step_seconds"])
    held = sum(document["memory"]["bytes"].values())
    assert held == pytest.approx(document["predicted"]["memory_bytes"], rel=0.1)
    assert document["layout"]["tp"] == 2
    text = validate(ROWS, "--explain", "sweep:0")[1]
    assert "matmuls" in text
    assert "filled in" in text
    for name, reason in (("sweep:99", "sweep:"), ("papers:7", "is skipped")):
        code, _, err = validate(ROWS, "--explain", name)
        assert code != 0
        assert reason in err


def test_a_plot_names_the_largest_sources_and_how_many_share_a_colour() -> None:
    def drawn(number: int) -> str:
        pairs = tuple((1.0 + i, 2.0 + i, f"source-{i}") for i in range(number) for _ in range(number - i))
        return scatter_svg(Scatter("all", "s", pairs))

    colours = len(COLOURS)
    few, many = drawn(colours), drawn(colours + 3)
    assert all(f">source-{i}<" in few for i in range(colours))
    assert "other sources" not in few
    assert all((f">source-{i}<" in many) == (i < colours - 1) for i in range(colours + 3))
    assert ">4 other sources<" in many


def test_plots_are_drawings_of_points(validate: Run, tmp_path: Path) -> None:
    code, _, _ = validate(ROWS, "--plots", tmp_path / "made" / "here")
    assert code == 0
    drawings = sorted(path.name for path in (tmp_path / "made" / "here").iterdir())
    assert {"step-time.svg", "memory.svg", "step-time-sweep.svg"} <= set(drawings)
    svg = (tmp_path / "made" / "here" / "step-time-sweep.svg").read_text()
    assert svg.startswith("<svg")
    assert svg.count("<circle") == 4 + 1, "four rows that ran, and the legend"
    (tmp_path / "file").write_text("")
    code, _, err = validate(ROWS / "sweep.json", "--plots", tmp_path / "file")
    assert code != 0
    assert err.startswith("error: --plots")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("[1, 2]", "allowed: a table"),
        ('[{"n_gpus": -3}]', "n_gpus = -3"),
        ('[{"model": []}]', "model = []"),
        ('[{"id": {}}]', "id = {}"),
        ("[{}]", "not stated"),
        ('[{"n_gpus": 1e400}]', "n_gpus"),
        ('{"rows": [{}], "note": "x"}', "not stated"),
    ],
)
def test_a_bad_row_is_skipped_with_its_reason(validate: Run, tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "odd.json").write_text(content)
    code, out, _ = validate(tmp_path, ROWS / "sweep.json", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0
    assert len([row for row in rows if row["file"] == "sweep"]) == 6
    odd = [row for row in rows if row["file"] == "odd"]
    assert odd
    assert all(reason in row["skipped"] for row in odd)


@pytest.mark.parametrize("content", ["", "[", "3", "null", '"text"', "[" * 100_000])
def test_a_bad_file_is_an_error_alone_and_not_read_beside_others(validate: Run, tmp_path: Path, content: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(content)
    code, out, err = validate(file)
    assert code != 0
    assert (out, err.count("\n")) == ("", 1)
    assert "bad.json" in err
    code, out, _ = validate(file, ROWS / "sweep.json", "--json")
    assert code == 0
    assert [unread["file"] for unread in json.loads(out)["unread"]] == ["bad.json"]


@pytest.mark.parametrize(
    "arguments",
    [[], ["nowhere"], [ROWS, "--limit", 0], [ROWS, "--jobs", 0], [ROWS, "--jobs", "many"], [ROWS, "--plot", "x"]],
)
def test_wrong_use_is_one_message(validate: Run, arguments: list[Any]) -> None:
    code, out, err = validate(*arguments)
    assert code != 0
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err


def test_fields_that_are_missing_or_wild_never_raise(validate: Run, tmp_path: Path) -> None:
    """Every field of a row left out, set to null, to a text, to a large number: a reason or a prediction."""
    row = json.loads((ROWS / "sweep.json").read_text())[0]
    made = []
    for key in row:
        without = {k: v for k, v in row.items() if k != key}
        made += [without, {**row, key: None}, {**row, key: "?"}, {**row, key: 10**6}, {**row, key: []}]
        if isinstance(row[key], dict):
            for inner in row[key]:
                table = {k: v for k, v in row[key].items() if k != inner}
                for value in (None, "?", 0, 10**5, -1, 1.5, True, [], {}):
                    made.append({**row, key: {**table, inner: value}})
                made.append({**row, key: table})
    (tmp_path / "wild.json").write_text(json.dumps(made))
    code, out, err = validate(tmp_path / "wild.json", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0, err
    assert len(rows) == len(made)
    failed = [row["skipped"] for row in rows if row["skipped"] and "simulator fails" in row["skipped"]]
    assert failed == []
