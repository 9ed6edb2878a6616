"""`fourfold compare`: its figures are those of `fourfold simulate --json` and of what ranks measured, to the last bit."""

import json
from pathlib import Path

import pytest

from tests.report.test_comparison import as_predicted

RUN = "preset:llama3-70b"
NARROW = "layout.tp=8 layout.cp=1"
SMALL = ("model.num_layers=8", "layout.virtual_stages=2", "batch.global_sequences=32")


def _columns(fourfold, *arguments: str) -> list[dict]:
    result = fourfold("compare", *arguments, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)["columns"]


def _same(column: dict, document: dict) -> None:
    for key in (
        "step_seconds",
        "tokens_per_second_per_device",
        "mfu",
        "fits",
        "bubble_fraction",
        "cluster",
        "software",
        "layout",
    ):
        assert column[key] == document[key], key
    assert column["memory_bytes"] == max(rank["device_bytes"] for rank in document["memory"])
    assert column["exposed_seconds"] == {each["axes"]: each["exposed_seconds"] for each in document["communication"]}
    assert column["run"] == document.get("run")


def test_layouts_have_the_figures_of_simulate(fourfold) -> None:
    options = ("--tokens", "1T", "--price", "2.5")
    columns = _columns(fourfold, RUN, *SMALL, "--with", NARROW, *options)
    assert [each["name"] for each in columns] == [RUN, f"{RUN} {NARROW}"]
    for column, keys in zip(columns, ((), NARROW.split()), strict=True):
        _same(column, json.loads(fourfold("simulate", RUN, *SMALL, *keys, *options, "--json").out))
        assert column["run"]["dollars"] > 0


def test_clusters_and_software_have_the_figures_of_simulate(fourfold) -> None:
    clusters, software = ("dgx-h100:64", "dgx-a100:64"), ("megatron", "fourfold")
    arguments = [word for name in clusters for word in ("--cluster", name)]
    arguments += [word for name in software for word in ("--software", name)]
    columns = iter(_columns(fourfold, RUN, *SMALL, *arguments))
    for cluster in clusters:
        for profile in software:
            result = fourfold("simulate", RUN, *SMALL, "--cluster", cluster, "--software", profile, "--json")
            _same(next(columns), json.loads(result.out))


def test_documents_are_columns_too(fourfold, here) -> None:
    simulated = fourfold("simulate", RUN, *SMALL, "--json").out
    planned = fourfold("plan", RUN, *SMALL, "--budget", "1", "--keep", "3", "--json").out
    (here / "simulated.json").write_text(simulated)
    (here / "planned.json").write_text(planned)
    first, second = _columns(fourfold, "simulated.json", "planned.json")
    _same(first, json.loads(simulated))
    _same({**second, "layout": None}, {**json.loads(planned)["best_step"], "layout": None})
    best = json.loads(planned)["best"]
    assert second["layout"] == best[0]["layout"]
    listed = _columns(fourfold, "planned.json")
    assert [each["step_seconds"] for each in listed] == [each["step_seconds"] for each in best]
    assert [each["layout"] for each in listed] == [each["layout"] for each in best]


def test_a_run_is_measured_and_where_the_cluster_is_known_predicted(fourfold, here) -> None:
    as_predicted(here / "a")
    as_predicted(here / "b", stretch={"forward block": 1.0})
    for name in ("a", "b"):
        text = (here / name / "run.toml").read_text()
        (here / name / "run.toml").write_text(
            text.replace('"bpe:4096"', '"bytes"').replace("vocab_size = 256", "vocab_size = 264")
        )
    measured, predicted, slower, _ = _columns(fourfold, "a", "b", "--cluster", "dgx-h100:8", "--tokens", "1M")
    report = json.loads(fourfold("report", "a", "--cluster", "dgx-h100:8", "--json").out)
    assert [measured["kind"], predicted["kind"], slower["kind"]] == ["measured", "predicted", "measured"]
    assert measured["step_seconds"] == report["measured_step_seconds"]
    assert measured["memory_bytes"] == max(rank["measured_peak_bytes"] for rank in report["ranks"])
    assert predicted["step_seconds"] == report["predicted_step_seconds"]
    assert measured["step_seconds"] == pytest.approx(predicted["step_seconds"], rel=0.05)
    assert measured["layout"] == predicted["layout"]
    assert slower["step_seconds"] > measured["step_seconds"] + 0.5
    assert measured["run"]["training_seconds"] == pytest.approx(1e6 / 256 * measured["step_seconds"])
    assert [each["kind"] for each in _columns(fourfold, "a", "b")] == ["measured", "measured"]


def test_the_screen_marks_what_differs(fourfold, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = fourfold("compare", RUN, *SMALL, "--with", NARROW, "--with", "layout.recompute=full")
    lines = result.out.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line[2:19].strip(): line for line in lines if line[:2] in ("* ", "  ") and line.strip()}
    assert rows["step"].startswith("*")
    assert rows["of"].startswith(" ")
    assert "layout: tp 4 -> 8, cp 2 (ring) -> 1" in result.out
    assert "recompute none -> full" in result.out
    assert result.out.count("predicted") >= 6
    assert "most tokens/s/device of those that fit: A" in result.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "what works: fourfold compare"),
        ([RUN], "1 columns: allowed: 2 to 26"),
        ([RUN, "preset:llama3-70"], "did you mean preset:llama3-70b?"),
        ([RUN, "--with", "layout.tp=3"], f"{RUN} layout.tp=3: "),
        ([RUN, "none.json"], "none.json: cannot be read as a JSON document"),
        ([RUN, "other.json"], "other.json: not what plan --json or simulate --json writes"),
        ([RUN, "list.json"], "list.json: not a document of plan --json"),
        ([RUN, "other.json", "batch.steps=8"], "other.json: keys and options change no document"),
        ([RUN, "texts"], "texts: holds no run.toml"),
        ([RUN, "--with", "layout.tq=8"], "did you mean 'tp'?"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_refused(fourfold, here: Path, arguments: list[str], expected: str) -> None:
    (here / "other.json").write_text('{"step_seconds": 3}')
    (here / "list.json").write_text("[1]")
    result = fourfold("compare", *arguments)
    assert result.code == 2
    assert expected in result.err
    assert "Traceback" not in result.err


def test_costs_are_compared_like_with_like(fourfold) -> None:
    """A cluster whose failures are known beside one of which nothing is: both without."""
    options = ("--tokens", "1T", "--price", "2", "--cluster", "h100-24576:64")
    known = _columns(fourfold, RUN, *SMALL, *options, "--with", NARROW)
    assert all(column["run"]["failures"] for column in known)
    lines = fourfold("compare", RUN, *SMALL, *options, "--cluster", "dgx-h100:64").out.splitlines()
    (cost,) = (line for line in lines if "cost" in line)
    assert "cost without failures" in cost
    columns = _columns(fourfold, RUN, *SMALL, *options, "--cluster", "dgx-h100:64")
    assert [bool(column["run"]["failures"]) for column in columns] == [True, False]
    shown = [f"${column['run']['training_dollars']:,.0f}" for column in columns]
    assert all(each in cost for each in shown)
