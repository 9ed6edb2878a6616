"""Losses of validation sets by name: the same under every layout, and those of an evaluation of the set alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fourfold.config import dump_run, parse_run
from fourfold.data.prepare import prepare, prepare_validation
from tests.support.training_ranks import start_training


def write_texts(folder: Path, word: str, count: int) -> str:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.txt").write_text(f"{word} {number} " + f"of many {word} " * (number % 7 + 3))
    return str(folder)


def trained(
    place: Path, name: str, ranks: int, run: dict[str, Any], layout: dict[str, int], sources: list[str]
) -> dict[str, Any]:
    """The newest metrics of a run of two steps in fp64."""
    config = parse_run(
        {
            "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "ffn_size": 48, "vocab_size": 257},
            "data": {
                "corpus": [{"path": path} for path in sources],
                "tokenizer": "bytes",
                "document_mask": True,
                "directory": str(place / "tokens"),
            },
            "batch": {"global_sequences": 8, "sequence_length": 32, "steps": 2},
            "layout": layout,
            "precision": {"compute": "fp64"},
            "run": {"evaluate_sequences": 3, "sample_tokens": 0, "threads_per_rank": 1, **run},
        }
    )
    prepared = prepare(config.data, lambda line: None)
    sets = prepare_validation(config, prepared, lambda line: None)
    out = place / name
    out.mkdir()
    (out / "run.toml").write_text(dump_run(config))
    table = {"prepared": str(prepared.path), "validation": {name: str(each.path) for name, each in sets.items()}}
    (out / "data.json").write_text(json.dumps(table))
    ended = [rank.finish(120) for rank in start_training(out, ranks)]
    assert all(code == 0 for code, _ in ended), ended
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    found = [event for event in events if event["event"] == "evaluate"]
    assert found[-1].get("validation_losses") == rows[-1].get("validation_losses")
    return rows[-1]


def test_losses_by_name_are_the_same_under_every_layout_and_those_of_each_set_alone(tmp_path: Path) -> None:
    sources = [write_texts(tmp_path / "web", "word", 60), write_texts(tmp_path / "math", "number", 60)]
    code = write_texts(tmp_path / "code", "line", 20)
    ids = tmp_path / "ids.npy"
    np.save(ids, np.array([number % 250 for number in range(300)], "u2"))
    # 7 sequences of one set take several runs of the evaluation's program, whatever its rows; those of ids are fewer than asked.
    validation = [
        {"name": "code", "corpus": code, "sequences": 7},
        {"name": "ids", "corpus": str(ids), "sequences": 50},
    ]
    named = {"evaluate_sources": True, "validation": validation}
    found = [
        trained(tmp_path, f"layout {number}", ranks, named, layout, sources)
        for number, (ranks, layout) in enumerate(
            [(1, {"microbatch_sequences": 1}), (2, {"zero": 2, "microbatch_sequences": 2})]
        )
    ]
    assert set(found[0]["validation_losses"]) == {*sources, "code", "ids"}
    assert found[1]["validation_losses"] == pytest.approx(found[0]["validation_losses"], rel=1e-12)
    assert found[1]["validation_loss"] == pytest.approx(found[0]["validation_loss"], rel=1e-12)
    # In one run of a program that has all its rows.
    together = {**named, "evaluate_sequences": 7, "evaluate_sources": False}
    alone = trained(tmp_path, "together", 1, together, {"microbatch_sequences": 1}, sources)
    assert alone["validation_losses"]["code"] == pytest.approx(found[0]["validation_losses"]["code"], rel=1e-12)
    assert list(alone["validation_losses"]) == ["code", "ids"]


def test_the_loss_of_the_only_source_is_the_validation_loss(tmp_path: Path) -> None:
    sources = [write_texts(tmp_path / "web", "word", 60)]
    row = trained(tmp_path, "run", 1, {"evaluate_sources": True}, {"microbatch_sequences": 1}, sources)
    assert row["validation_losses"] == {sources[0]: row["validation_loss"]}
