"""Which files make a corpus, which documents a file holds, and what is said when something is wrong with them."""

import bz2
import gzip
import json
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from fourfold.config import UserError
from fourfold.config.schema import DataSection
from fourfold.data import formats
from fourfold.data.corpus import is_generated_table, list_sources
from fourfold.data.formats import read_documents
from fourfold.data.manifest import TextCorpus, scan_text

NOWHERE = Path("/nonexistent-cache")


def scan(name: Path | str, text_key: str = "text", every: int = 5, **settings: Any) -> TextCorpus:
    section = {"directory": str(NOWHERE), "text_key": text_key, "validation_every": every, **settings}
    return scan_text(str(name), DataSection.model_validate(section))


def texts_of(name: Path | str, text_key: str = "text") -> list[str]:
    return [text for source in list_sources(str(name), NOWHERE).sources for text in read_documents(source, text_key)]


def json_lines(texts: list[str], key: str = "text") -> bytes:
    return b"".join(json.dumps({key: text, "id": i}).encode() + b"\n" for i, text in enumerate(texts))


TEXTS = ["one", "two\nlines", "café 東京", 'quoted "text"']

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}

WRITERS: dict[str, Callable[[list[str]], bytes]] = {
    "a.jsonl": json_lines,
    "a.ndjson": json_lines,
    "a.json": json_lines,
    "a.jsonl.gz": lambda texts: gzip.compress(json_lines(texts)),
    "a.json.gz": lambda texts: gzip.compress(json_lines(texts)),
    "a.jsonl.zst": lambda texts: zstandard.compress(json_lines(texts)),
    "two-members.jsonl.gz": lambda texts: gzip.compress(json_lines(texts[:1])) + gzip.compress(json_lines(texts[1:])),
    "two-streams.jsonl.bz2": lambda texts: bz2.compress(json_lines(texts[:1])) + bz2.compress(json_lines(texts[1:])),
    "padded.jsonl.xz": lambda t: (
        lzma.compress(json_lines(t[:1])) + bytes(8) + lzma.compress(json_lines(t[1:])) + bytes(4)
    ),
    "marked.jsonl": lambda texts: b"\xef\xbb\xbf" + json_lines(texts),
    "utf-16.jsonl": lambda texts: json_lines(texts).decode().encode("utf-16"),
    "utf-16.json.gz": lambda texts: gzip.compress(json_lines(texts).decode().encode("utf-16")),
    "two-frames.jsonl.zst": lambda t: zstandard.compress(json_lines(t[:1])) + zstandard.compress(json_lines(t[1:])),
    "windows.jsonl": lambda texts: json_lines(texts).replace(b"\n", b"\r\n"),
    "blank-lines.jsonl": lambda texts: b"\n" + json_lines(texts).replace(b"\n", b"\n\n"),
    "no-last-newline.jsonl": lambda texts: json_lines(texts).rstrip(b"\n"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_json_lines_variant_holds_the_same_documents(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(WRITERS[name](TEXTS))
    assert texts_of(tmp_path / name) == TEXTS


def test_parquet_holds_the_same_documents(tmp_path: Path) -> None:
    table = pyarrow.table({"body": [*TEXTS, ""], "n": list(range(5))})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    assert texts_of(tmp_path / "a.parquet", "body") == TEXTS


@pytest.mark.parametrize("suffix", PACK)
def test_a_text_file_is_one_document_byte_for_byte(tmp_path: Path, suffix: str) -> None:
    text = "first\r\nsecond\n\n\tthird"
    (tmp_path / f"a.txt{suffix}").write_bytes(PACK[suffix](text.encode()))
    assert texts_of(tmp_path) == [text]


JSON_LAYOUTS: dict[str, Callable[[list[dict[str, str]]], str]] = {
    "an array on one line": json.dumps,
    "an array, printed": lambda records: json.dumps(records, indent=2),
    "an array, one record a line": lambda records: "[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n",
    "records, printed": lambda records: "\n".join(json.dumps(record, indent=1) for record in records),
    "records behind each other": lambda records: "".join(map(json.dumps, records)),
    "one record a line": lambda records: "\n".join(map(json.dumps, records)),
}


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("layout", JSON_LAYOUTS)
def test_records_in_json_are_documents_in_every_layout(
    tmp_path: Path, layout: str, suffix: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "_CHUNK_BYTES", chunk)
    texts = [*TEXTS, 'brackets ]}[{ and \\ " quotes', "x" * 200]
    content = JSON_LAYOUTS[layout]([{"id": "7", "text": text} for text in texts]).encode()
    (tmp_path / f"a.json{suffix}").write_bytes(gzip.compress(content) if suffix else content)
    assert texts_of(tmp_path) == texts


def test_one_printed_record_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{\n "text": "x"\n}\n')
    assert texts_of(tmp_path) == ["x"]


@pytest.mark.parametrize(
    "content", ['{"depth": 3}\n', "[1,\n2]\n", '{\n "a": [],\n "b": 1}', "[]", '// a comment\n{"a": 1}', "3"]
)
def test_json_without_records_stays_text(tmp_path: Path, content: str) -> None:
    (tmp_path / "settings.json").write_text(content)
    assert texts_of(tmp_path) == [content]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a"},\n{"body": "b"}]', r"record 2 \(line 2\) has no key 'text'.*its keys: body"),
        ('[{"body": "a"}]', r"record 1 \(line 1\) has no key 'text'"),
        ('[{"text": "a"},\n\n null]', r"record 2 \(line 3\) holds null, not an object"),
        ('[{"text": "a"},\n{"text": "b"}', "line 2 ends inside the array"),
        ('[{"text": "a"}\n{"text": "b"}]', "line 2 has no comma or ] here"),
        ('[{"text": "a"},{"text": "b"},\n {"text": b}' + " " * 99, r"line 2 is not valid JSON \(Expecting value\)"),
        ('[{"text": "a", "b": 0x1},\n{"text": "b"}]', r"line 1 is not valid JSON"),
        ('{\n "text": "a', r"line 2 is not valid JSON \(Unterminated string"),
        ('[{"text": "a"}] []', "holds something behind the array"),
        ('{"data": [{"text": "a"}],\n "version": 1}', "holds its records under the key 'data'"),
        (
            '{\n"text": "a"}\n{\n"text": ["b"]}',
            r"record 2 \(line 3\) holds an array under the key 'text', not a string",
        ),
        ('[{"text": "a"}, ' + "[" * 100_000, "line 1 is nested too deeply"),
    ],
)
def test_what_is_wrong_with_json_records_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(UserError, match=message) as caught:
        texts_of(tmp_path)
    assert str(tmp_path / "a.json") in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "cut', "line 2 is not valid JSON"),
        (b'["text"]', "line 2 holds an array, not an object"),
        (b'{"body": "x"}', "no key 'text' (data.text_key); its keys: body"),
        (b'{"text": 3}', "line 2 holds a number under the key 'text', not a string"),
        (b'{"text": null}', "line 2 holds null under the key 'text', not a string"),
        (b'{"text": "\xff"}', "line 2 is not UTF-8 (byte 0xff at position 11)"),
        (bytes(64), "line 2 holds zero bytes alone"),
        (b'{"text": "a\0"}', "line 2 holds zero bytes,"),
        (b"[" * 100_000, "line 2 is not valid JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with pytest.raises(UserError) as caught:
        scan(tmp_path)
    assert str(tmp_path / "a.jsonl") in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2", ".xz"])
def test_a_cut_compressed_file_is_named(tmp_path: Path, suffix: str) -> None:
    pack = PACK[suffix]
    complete = pack(json_lines([str(os.urandom(40)) for _ in range(500)]))
    for content in (complete[: len(complete) // 2], b"no archive at all"):
        (tmp_path / f"a.jsonl{suffix}").write_bytes(content)
        with pytest.raises(UserError, match=r"a\.jsonl\.\w+: "):
            scan(tmp_path)


def test_bad_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match=r"a\.parquet is not a readable Parquet file"):
        scan(path)
    pyarrow.parquet.write_table(pyarrow.table({"body": ["x"], "n": [1]}), path)
    with pytest.raises(UserError, match=r"no column 'text' \(data\.text_key\); its columns: body, n"):
        scan(path)
    with pytest.raises(UserError, match="holds int64, not strings"):
        scan(path, "n")


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"x")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'fourfold\[parquet\]'"):
        scan(tmp_path)


def test_half_a_surrogate_pair_becomes_a_replacement_character(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "a\\ud800b"}\n{"text": "\\ud83d\\ude00"}\n')
    assert texts_of(tmp_path) == ["a\ufffdb", "\U0001f600"]


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_text("text")
    (tmp_path / "sub" / "up").symlink_to(tmp_path, target_is_directory=True)
    assert texts_of(tmp_path) == ["text"]


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(top: Path, onerror: Callable[[OSError], None]) -> list[object]:
        onerror(PermissionError(13, "Permission denied", str(top)))
        return []

    monkeypatch.setattr(os, "walk", walk)
    with pytest.raises(UserError, match="this folder cannot be read: Permission denied"):
        list_sources(str(tmp_path), NOWHERE)


def test_globs_and_single_files(text_folder: Path) -> None:
    every = texts_of(text_folder)
    assert len(every) == 40
    assert texts_of(f"{text_folder}/**/*.txt") == every
    assert texts_of(f"{text_folder}/*") == every
    assert len(texts_of(f"{text_folder}/odd/1*.txt")) == 5
    assert len(texts_of(text_folder / "odd" / "11.txt")) == 1


def test_remote_urls_read_like_a_folder(text_folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in text_folder.rglob("*.txt"):
        memory.pipe(f"/remote/{path.relative_to(text_folder)}", path.read_bytes())
    memory.pipe("/remote/.hidden", b"hidden")
    local, remote = scan(text_folder), scan("memory://remote")
    assert remote.corpus_id == local.corpus_id
    assert remote.skipped == {"hidden": 1}
    assert len(scan("memory://remote/odd/*.txt").files) == 20
    assert len(scan("memory://remote/odd/11.txt").files) == 1
    with pytest.raises(UserError, match="nothing is there"):
        scan("memory://elsewhere")
    with pytest.raises(UserError, match=r"data\.corpus = 'nosuch://x'"):
        scan("nosuch://x")


@pytest.mark.parametrize("name", ["", "no/such/folder", "no/such/*.txt"])
def test_a_missing_corpus_is_named_with_what_works(name: str) -> None:
    with pytest.raises(UserError) as caught:
        scan(name)
    assert f"data.corpus = {name!r}" in str(caught.value)
    assert 'corpus = "stdlib"' in str(caught.value)


def test_an_empty_corpus_says_what_was_skipped(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no text \(there is no file in it\).*what works"):
        scan(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"\0\1\2")
    (tmp_path / "weights.idx").write_bytes(b"MMIDIDX\0\0")
    with pytest.raises(UserError, match=r"weights\.bin \(binary: it holds zero bytes\)") as caught:
        scan(tmp_path)
    assert f"corpus = '{tmp_path / 'weights.idx'}'" in str(caught.value)


def test_the_identity_follows_content_and_names_and_nothing_else(text_folder: Path, tmp_path: Path) -> None:
    first = scan(text_folder)
    os.utime(text_folder / "odd" / "11.txt", (1, 1))
    moved = tmp_path / "moved"
    text_folder.rename(moved)
    assert scan(moved).corpus_id == first.corpus_id
    path = moved / "odd" / "11.txt"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"#")
    changed = scan(moved)
    path.write_bytes(content)
    path.rename(path.with_name("11b.txt"))
    renamed = scan(moved)
    assert len({first.corpus_id, changed.corpus_id, renamed.corpus_id}) == 3


def test_the_manifest_names_every_file(text_folder: Path) -> None:
    corpus = scan(text_folder)
    manifest = json.loads(json.dumps(corpus.manifest()))
    assert [file["path"] for file in manifest["files"]] == [
        path.relative_to(text_folder).as_posix() for path in sorted(text_folder.rglob("*.txt"))
    ]
    assert {file["split"] for file in manifest["files"]} == {"train", "validation"}
    assert all(file["size_bytes"] == (text_folder / file["path"]).stat().st_size for file in manifest["files"])


def test_stdlib_is_source_that_people_wrote() -> None:
    corpus = scan("stdlib", every=20)
    paths = {file.path for file in corpus.files}
    assert {"argparse.py", "json/decoder.py", "asyncio/base_events.py", "typing.py"} <= paths
    assert not {"pydoc_data/topics.py", "html/entities.py", "encodings/cp437.py", "encodings/mac_roman.py"} & paths
    folders = {part for path in paths for part in path.split("/")[:-1]}
    assert not folders & {"test", "tests", "idle_test", "site-packages", "__pycache__"}
    assert 300 < len(paths) < 2000
    assert corpus.skipped["generated table"] > 30


def test_a_table_is_told_by_its_header_or_its_lines() -> None:
    assert is_generated_table('"""Codec generated from X.TXT with gencodec.py."""\n')
    assert is_generated_table("table = (\n" + "    'x' # 0x41\n" * 400 + ")\n")
    assert not is_generated_table("def f(x):\n    return x\n" * 400)
    assert not is_generated_table("names = [\n    'a',\n]\n")
