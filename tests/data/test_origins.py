"""Samples of a step: what is printed is what the ranks read, and lies in the files and records that are named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fourfold.config import RunConfig, RunFailure, UserError, parse_run
from fourfold.data.batches import GlobalBatches
from fourfold.data.indexed import write_indexed
from fourfold.data.prepare import prepare
from fourfold.data.prepared import PreparedData
from fourfold.huggingface import resolve_model
from fourfold.layout import resolve_layout
from fourfold.program.resolve import resolve_step
from fourfold.report.step_samples import step_lines, step_samples
from fourfold.train.feed import feed_tables, rank_feed, rank_rows

END, G, S = 256, 8, 32
MODEL = {"num_layers": 4, "hidden_size": 32, "num_heads": 4, "ffn_size": 56, "vocab_size": 257}


def write_sources(place: Path) -> list[dict[str, Any]]:
    """A source of each kind: JSON Lines and a file of text, arrays of NumPy, a Megatron pair. Weights change along the run."""
    texts = place / "texts"
    texts.mkdir()
    for file in range(3):
        lines = [
            json.dumps({"text": f"file {file} document {number} " + "of words " * (number % 5)}) for number in range(30)
        ]
        lines[4] = "\n" + lines[4]  # an empty line is no record
        (texts / f"{file}.jsonl").write_text("\n".join(lines) + "\n")
    (texts / "whole.txt").write_text("a file that is one document " * 40)
    ids = [[number, *range(100, 100 + number % 13), END] for number in range(90)]
    (place / "ids").mkdir()
    np.save(place / "ids" / "a.npy", np.array([token for each in ids[:50] for token in each], "u2"))
    np.save(place / "ids" / "b.npy", np.array([token for each in ids[50:] for token in each], "u4"))
    with write_indexed(place / "pair", 257) as writer:
        for each in ids:
            writer.append(np.array(each[::-1]))
        writer.append(np.array([], np.int64))
        writer.append(np.array([7] * 50))
    later = [{"step": 6, "weight": 0.5}, {"step": 20, "weight": 4.0, "linear": True}]
    return [
        {"path": str(texts)},
        {"path": str(place / "ids"), "weight": 0.0, "later": later},
        {"path": str(place / "pair"), "later": [{"tokens": 10 * G * S, "weight": 3.0}]},
    ]


def config_of(place: Path, sources: list[dict[str, Any]], **layout: int) -> RunConfig:
    data = {"corpus": sources, "tokenizer": "bytes", "validation_every": 5, "directory": str(place / "cache")}
    batch = {"global_sequences": G, "sequence_length": S, "steps": 40}
    return parse_run({"model": MODEL, "data": data, "batch": batch, "layout": {"zero": 0, **layout}})


@pytest.fixture
def run(tmp_path: Path) -> tuple[RunConfig, PreparedData]:
    config = config_of(tmp_path, write_sources(tmp_path))
    return config, prepare(config.data, lambda line: None)


STEPS = (0, 5, 6, 13, 39)


@pytest.mark.parametrize(
    "layout", [{}, {"dp_shard": 4}, {"dp_replicate": 2, "pp": 2}, {"tp": 2, "dp_shard": 2}, {"cp": 2}], ids=str
)
def test_the_rows_are_those_that_every_rank_reads(
    run: tuple[RunConfig, PreparedData], tmp_path: Path, layout: dict[str, int]
) -> None:
    config, prepared = run
    config = config.model_copy(update={"layout": config_of(tmp_path, [{"path": "x"}], **layout).layout})
    model, device = resolve_model(config.model), torch.device("cpu")
    size = int(np.prod([*layout.values(), 1]))
    resolved = resolve_layout(config, model, size)
    spec = resolve_step(config, model, resolved, "native")
    for step in STEPS:
        printed = {row["row"]: row["tokens"] for row in step_samples(prepared, config, step)["rows"]}
        read: dict[int, list[int]] = {}
        for rank in range(size):
            rows = rank_rows(spec.layout, rank)
            feed = rank_feed(
                spec, GlobalBatches.of_run(prepared, config).batch(step, rows), rank, feed_tables(spec, device)
            )
            tokens = torch.cat([feed.load(number).tokens for number in range(spec.layout.num_microbatches)])
            for row, ids in zip(rows, tokens.tolist(), strict=True):
                read[row] = [*read.get(row, []), *ids] if "cp" in layout else ids
        assert sorted(printed) == sorted(read) == list(range(G))
        for row, ids in printed.items():
            assert (sorted(read[row]) == sorted(ids)) if "cp" in layout else (read[row] == ids)


def test_token_ids_lie_in_the_file_at_the_place_that_is_named(run: tuple[RunConfig, PreparedData]) -> None:
    config, prepared = run
    seen = set()
    for step in range(40):
        for row in step_samples(prepared, config, step)["rows"]:
            assert [column for each in row["documents"] for column in range(*each["columns"])] == list(range(S))
            for each in row["documents"]:
                if each["file_offset"] is None:
                    continue
                path = Path(each["file"])
                ids = np.load(path) if path.suffix == ".npy" else np.fromfile(path, "<u2")
                first, stop = each["columns"]
                start = each["file_offset"]
                assert ids[start : start + stop - first].tolist() == row["tokens"][first:stop]
                # Its document, by the ends of text before it; those of the pair begin with one, but for the last, of sevens.
                begin = start - each["offset"]
                if path.suffix == ".npy":
                    assert begin == 0 or ids[begin - 1] == END
                    number = (ids[:begin] == END).sum()
                else:
                    assert ids[begin] == (END if each["document"] < 91 else 7)
                    number = (ids[:begin] == END).sum() + (each["document"] == 91)  # an empty one before it
                assert number == each["document"] == each["record"] - 1
                seen.add(path.name)
    assert seen == {"a.npy", "b.npy", "pair.bin"}


def test_text_is_that_of_the_record_that_is_named(run: tuple[RunConfig, PreparedData], tmp_path: Path) -> None:
    config, prepared = run
    seen = set()
    for step in range(12):
        for row in step_samples(prepared, config, step)["rows"]:
            for each in row["documents"]:
                if each["file_offset"] is not None:
                    continue
                path = tmp_path / "texts" / each["file"]
                lines = [line for line in path.read_text().splitlines() if line]
                text = json.loads(lines[each["record"] - 1])["text"] if path.suffix == ".jsonl" else path.read_text()
                ids = [*text.encode(), END]
                first, stop = each["columns"]
                assert ids[each["offset"] : each["offset"] + stop - first] == row["tokens"][first:stop]
                assert text[each["offset"] :].startswith(each["text"])
                seen.add(each["file"])
    assert seen >= {"0.jsonl", "1.jsonl", "2.jsonl"}


def test_a_file_that_is_gone_or_another_leaves_the_number_of_the_training_document(
    run: tuple[RunConfig, PreparedData], tmp_path: Path
) -> None:
    config, prepared = run
    table = step_samples(prepared, config, 0)
    for path in (tmp_path / "texts").iterdir():
        if path.name == "1.jsonl":
            path.write_text(path.read_text() + "\n")
        else:
            path.unlink()
    later = step_samples(prepared, config, 0)
    of_text = [each for row in later["rows"] for each in row["documents"] if each["file_offset"] is None]
    assert of_text
    assert all(each["record"] is None for each in of_text)
    assert any("training document" in line for line in step_lines(later))
    for before, after in zip(table["rows"], later["rows"], strict=True):
        assert before["tokens"] == after["tokens"]
        assert [each["document"] for each in before["documents"]] == [each["document"] for each in after["documents"]]


def test_one_row_is_that_of_all(run: tuple[RunConfig, PreparedData]) -> None:
    config, prepared = run
    every = step_samples(prepared, config, 13)
    assert [step_samples(prepared, config, 13, row)["rows"][0] for row in range(G)] == every["rows"]
    assert len(step_lines(every)) == 1 + G + sum(len(row["documents"]) for row in every["rows"])


def test_the_end_of_a_document_alone_is_found_too(tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_text("".join(chr(97 + number % 26) for number in range(5000)))
    config = config_of(tmp_path, [{"path": str(tmp_path / "book.txt")}])
    prepared = prepare(config.data, lambda line: None)
    for row in step_samples(prepared, config, 3)["rows"]:
        [each] = row["documents"]
        assert (each["file"], each["record"], each["document"]) == ("book.txt", 1, 0)
        assert [97 + (each["offset"] + place) % 26 for place in range(S)] == row["tokens"]


@pytest.mark.parametrize(("step", "row", "message"), [
    (40, None, r"--step 40: allowed: 0 to 39, .*--step 39"), (-1, None, "--step -1"),
    (0, 8, r"--row 8: allowed: 0 to 7, .* --row 0"),
])  # fmt: skip
def test_steps_and_rows_that_a_run_has_not_are_refused(
    run: tuple[RunConfig, PreparedData], step: int, row: int | None, message: str
) -> None:
    config, prepared = run
    with pytest.raises(UserError, match=message):
        step_samples(prepared, config, step, row)


@pytest.mark.parametrize("damage", [
    lambda part: part.pop("files"), lambda part: part["files"][0].pop("path"), lambda part: part["files"].pop(),
    lambda part: part["validation_rule"].update(rules=3), lambda part: part.update(files=[]), lambda part: part.update(files=None),
    lambda part: part.update(kind="tokens"), lambda part: part["files"][0].update(documents="x"),
])  # fmt: skip
def test_a_manifest_that_lies_is_named(
    run: tuple[RunConfig, PreparedData], damage: Callable[[dict[str, Any]], None]
) -> None:
    config, prepared = run
    path = prepared.folder / "manifest.json"
    table = json.loads(path.read_text())
    damage(table["parts"][0])
    path.write_text(json.dumps(table))
    with pytest.raises(RunFailure, match=r"manifest\.json: .*prepare the data again"):
        step_samples(prepared, config, 0)
