"""Intervals and measured runs beside a prediction, as `fourfold simulate` prints it and gives it as JSON."""

import json

import pytest

from fourfold.report.units import format_bytes, seconds_text

RUN = ("preset:llama3-70b",)


def document(fourfold, *arguments: str) -> dict:
    return json.loads(fourfold("simulate", *arguments, "--json").out)


def test_figures_stand_in_their_intervals_and_are_printed_with_them(fourfold) -> None:
    found, text = document(fourfold, *RUN), fourfold("simulate", *RUN).out
    low, high = found["step_seconds_interval"]
    assert low < found["step_seconds"] < high
    assert f"80 % of runs measure step {seconds_text(low)} to {seconds_text(high)}, memory " in text
    least, most = found["memory_bytes_interval"]
    assert least < found["memory_bytes"] < most
    assert found["memory_bytes"] == max(rank["device_bytes"] for rank in found["memory"])
    assert f"memory {format_bytes(least)} to {format_bytes(most)}" in text


def test_software_that_is_not_named_has_the_wider_interval(fourfold) -> None:
    def width(software: str) -> float:
        found = document(fourfold, *RUN, "--software", software)
        low, high = found["step_seconds_interval"]
        return high / low

    assert width("fourfold") > width("nemo")


def test_the_nearest_published_runs_stand_below(fourfold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    found, text = document(fourfold, *RUN), fourfold("simulate", *RUN).out
    assert len(found["nearest"]) == 3
    lines = text[text.index("nearest measured runs") :].splitlines()[1:4]
    for run, line in zip(found["nearest"], lines, strict=True):
        assert f"{run['devices']:,} {run['device']}" in line
        error = run["predicted_step_seconds"] / run["step_seconds"] - 1
        assert f"({100 * error:+.0f} %)" in line
        assert run["source"][:20] in line


def test_the_nearest_run_of_a_published_preset_is_like_it(fourfold) -> None:
    nearest = document(fourfold, *RUN)["nearest"][0]
    assert nearest["software"] == "nemo"
    assert nearest["parameters"] == pytest.approx(70e9, rel=0.1)
