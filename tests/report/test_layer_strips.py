"""Strips of layers: every peak stays, whatever the run's length, and what a resumed run samples again is not there twice."""

import json
from pathlib import Path

import numpy as np
import pytest

from fourfold.report.layer_strips import LayerStrips


def row(step: int, segments: list[str] | None = None, **values: list[float | None]) -> dict:
    return {"step": step, "segments": segments or ["embed", "b0"], **values}


def write(path: Path, rows: list[dict], how: str = "a") -> None:
    with path.open(how) as file:
        file.writelines(json.dumps(each) + "\n" for each in rows)


def test_rows_become_columns_by_segment(tmp_path: Path) -> None:
    path = tmp_path / "layers.jsonl"
    strips = LayerStrips(path)
    strips.refresh()
    assert strips.record().steps == []
    write(path, [row(9, gradient_norm=[1.0, 2.0], largest_score=[None, 3.0]), row(19, gradient_norm=[0.5, None])])
    strips.refresh()
    found = strips.record()
    assert (found.segments, found.steps, found.num_samples) == (["embed", "b0"], [9, 19], 2)
    assert found.values == {"gradient_norm": [[1.0, 0.5], [2.0, None]], "largest_score": [[None, None], [3.0, None]]}


def test_a_long_run_keeps_every_peak_in_memory_of_one_size(tmp_path: Path) -> None:
    """10,000 samples of 128 segments, of which one has a spike and one a dead expert."""
    strips, segments = LayerStrips(tmp_path / "layers.jsonl"), [f"b{n}" for n in range(128)]
    ones = [1.0] * 128
    for number in range(10_000):
        spike, dead = list(ones), list(ones)
        if number == 7_777:
            spike[60], dead[61] = 99.0, 0.0
        strips.add([row(100 * number + 99, segments, gradient_norm=spike, expert_load_min=dead)])
    found = strips.record()
    assert len(found.steps) <= 128
    assert found.num_samples == 10_000
    assert found.steps[-1] == 999_999
    assert max(found.values["gradient_norm"][60]) == 99.0
    assert min(found.values["expert_load_min"][61]) == 0.0
    assert all(value == 1.0 for value in found.values["gradient_norm"][59])
    assert found.steps[int(np.argmax(found.values["gradient_norm"][60]))] >= 777_799
    assert len(json.dumps(found.values)) < 400_000


@pytest.mark.parametrize("how", ["rewritten", "appended"])
def test_what_is_sampled_again_replaces_what_was(tmp_path: Path, how: str) -> None:
    path, strips = tmp_path / "layers.jsonl", LayerStrips(tmp_path / "layers.jsonl")
    before, again = [row(n, weight_norm=[1.0, 1.0]) for n in range(4)], [row(n, weight_norm=[2.0, 2.0]) for n in (2, 3)]
    write(path, before)
    strips.refresh()
    if how == "rewritten":
        write(tmp_path / "aside", before[:2] + again)
        (tmp_path / "aside").replace(path)
    else:
        write(path, again)
    strips.refresh()
    found = strips.record()
    assert found.steps == [0, 1, 2, 3]
    assert found.values["weight_norm"][0] == [1.0, 1.0, 2.0, 2.0]


def test_rows_that_no_run_leaves_are_left_out(tmp_path: Path) -> None:
    strips = LayerStrips(tmp_path / "layers.jsonl")
    strips.add(
        [
            {"step": 1},
            {"step": "x", "segments": ["a"]},
            row(-1),
            {"step": 1, "segments": []},
            {"step": 1, "segments": ["x" * 1000]},
            row(2, short=[1.0], text=["a", "b"], weight_norm=[1e400, 2.0], flag=[True, 1.0]),
        ]
    )
    assert strips.record().values == {"text": [[None], [None]], "weight_norm": [[None], [2.0]], "flag": [[None], [1.0]]}
