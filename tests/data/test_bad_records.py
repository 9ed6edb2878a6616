"""Records that hold no document are refused with their place, or left out and counted where that was asked for."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from fourfold.config import UserError
from fourfold.data.prepared import PreparedData, open_prepared
from fourfold.report.corpus import corpus_lines, corpus_summary

Prepare = Callable[..., PreparedData]

GOOD = [f"document {number} of twenty" for number in range(20)]
BAD = {
    "cut": b'{"text": "cut',
    "zero bytes": bytes(64),
    "zero byte in a string": b'{"text": "a\0b"}',
    "latin-1": '{"text": "na\u00efve"}'.encode("latin-1"),
    "another key": b'{"body": "x"}',
    "null": b'{"text": null}',
    "a null line": b"null",
    "a number": b'{"text": 3}',
    "no object": b'["text"]',
    "too deep": b"[" * 100_000,
}


def write_lines(path: Path, bad: list[bytes]) -> None:
    lines = [json.dumps({"text": text}).encode() for text in GOOD]
    path.write_bytes(b"\n".join([*lines[:10], *bad, *lines[10:]]) + b"\n")


def documents(prepared: PreparedData) -> list[str]:
    """All documents, as the tokens spell them."""
    streams = prepared.streams(prepared.parts[0])
    text = "".join(bytes(min(t, 0xA) if t == 256 else t for t in s.read(0, len(s)).tolist()).decode() for s in streams)
    return text.split("\n")[:-1]


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_one_bad_line_is_refused_or_left_out(tmp_path: Path, prepared_with: Prepare, bad: bytes) -> None:
    path = tmp_path / "a.jsonl"
    write_lines(path, [bad])
    with pytest.raises(UserError, match=r'a\.jsonl: line 11 .*data\.bad_records = "skip"'):
        prepared_with(corpus=str(path))
    prepared = prepared_with(corpus=str(path), bad_records="skip")
    assert sorted(documents(prepared)) == sorted(GOOD)
    assert prepared.left_out() == {"bad_records": 1}
    (line,) = prepared.notices()
    assert f"{path}: 1 record left out: {path}: line 11 " in line


def test_bad_records_are_counted_and_the_first_are_named(tmp_path: Path, prepared_with: Prepare) -> None:
    write_lines(tmp_path / "a.jsonl", list(BAD.values()))
    prepared = prepared_with(corpus=str(tmp_path / "a.jsonl"), bad_records="skip")
    assert open_prepared(prepared.path) == prepared
    summary = corpus_summary(prepared)
    assert summary["parts"][0]["bad_records"] == len(BAD)
    (line,) = [line for line in corpus_lines(summary) if line.startswith("note ")]
    assert f"{len(BAD)} records left out" in line
    assert "line 11 is not valid JSON" in line
    assert "line 12 holds zero bytes" in line
    assert line.endswith("; and more")


def test_bad_rows_and_elements_are_left_out_too(tmp_path: Path, prepared_with: Prepare) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": [*GOOD[:3], None, *GOOD[3:]]}), tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps([*({"text": text} for text in GOOD), None, {"text": ["x"]}]))
    for name, place, count in (("a.parquet", "row 4 is null", 1), ("a.json", r"record 21 \(line 1\) holds null", 2)):
        with pytest.raises(UserError, match=place):
            prepared_with(corpus=str(tmp_path / name))
        prepared = prepared_with(corpus=str(tmp_path / name), bad_records="skip")
        assert sorted(documents(prepared)) == sorted(GOOD)
        assert prepared.left_out() == {"bad_records": count}


def test_where_every_record_is_bad_there_is_no_corpus(tmp_path: Path, prepared_with: Prepare) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n" * 5)
    with pytest.raises(UserError, match="holds no text"):
        prepared_with(corpus=str(tmp_path / "a.jsonl"), bad_records="skip")


def test_a_corpus_of_one_document_is_divided_without_its_bad_records(tmp_path: Path, prepared_with: Prepare) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "only this"}\nnull\n')
    prepared = prepared_with(corpus=str(tmp_path / "a.jsonl"), bad_records="skip")
    assert prepared.left_out() == {"bad_records": 1}
    assert prepared.train_tokens + prepared.validation_tokens == len("only this") + 2


def test_keys_of_a_stranger_reach_no_terminal_as_they_are(tmp_path: Path, prepared_with: Prepare) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"\x1b[31mred": 1, **{f"k{number}": 1 for number in range(50)}}))
    with pytest.raises(UserError) as caught:
        prepared_with(corpus=str(tmp_path / "a.jsonl"))
    assert "\x1b" not in str(caught.value)
    assert "..." in str(caught.value)
    assert "k49" not in str(caught.value)
