"""Files of a corpus that are not read are named with the reason, and a run refuses when they hold much of it."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from fsspec.implementations.local import LocalFileSystem

from fourfold.config import UserError
from fourfold.config.schema import DataSection
from fourfold.data.manifest import TextCorpus, scan_text
from fourfold.data.prepared import PreparedData
from fourfold.report.corpus import corpus_lines, corpus_summary

Prepare = Callable[..., PreparedData]


def scan(folder: Path, **settings: Any) -> TextCorpus:
    return scan_text(str(folder), DataSection.model_validate({"directory": "/nonexistent-cache", **settings}))


def archive(write: Callable[[io.BytesIO], None]) -> bytes:
    content = io.BytesIO()
    write(content)
    return content.getvalue()


def tar(content: io.BytesIO) -> None:
    with tarfile.open(fileobj=content, mode="w") as made:
        member = tarfile.TarInfo("a.txt")
        member.size = 4
        made.addfile(member, io.BytesIO(b"text"))


def zipped(content: io.BytesIO) -> None:
    with zipfile.ZipFile(content, "w") as made:
        made.writestr("a.txt", "text" * 100)


UNREAD: dict[str, tuple[bytes, str]] = {
    "nul.txt": (b"a\0b", "binary: it holds zero bytes"),
    "latin.txt": ("na\u00efve".encode("latin-1"), "not UTF-8 (byte 0xef at position 3)"),
    "bare-utf-16.txt": ("words".encode("utf-16-le"), "binary: it holds zero bytes"),
    "broken-utf-16.txt": (b"\xff\xfea", "not the UTF-16 that its first bytes say (truncated data)"),
    "empty.txt": (b"", "empty"),
    "empty.txt.gz": (gzip.compress(b""), "empty"),
    "empty.jsonl": (b"\n\n", "empty"),
    "a.zip": (archive(zipped), "a zip archive"),
    "a.tar": (archive(tar), "a tar archive"),
    "a.tar.gz": (gzip.compress(archive(tar)), "a tar archive"),
    "gzipped.txt": (gzip.compress(b"text" * 9), "compressed by gzip, but not named .gz"),
    "zstd.txt": (zstandard.compress(b"text" * 9), "compressed by Zstandard, but not named .zst"),
    "bz2.txt": (bz2.compress(b"text" * 9), "compressed by bzip2, but not named .bz2"),
    "xz.txt": (lzma.compress(b"text" * 9), "compressed by xz, but not named .xz"),
    "lz4.jsonl.lz4": (b"\x04\x22\x4d\x18\x64\x40\xa7\0\0\0\0", "compressed by LZ4"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of 50,000 bytes."""
    (tmp_path / "a.txt").write_text("text " * 10_000)
    (tmp_path / "b.txt").write_text("word " * 10_000)
    return tmp_path


@pytest.mark.parametrize("name", UNREAD)
def test_a_file_that_is_not_read_is_named_with_the_reason(folder: Path, name: str) -> None:
    content, reason = UNREAD[name]
    (folder / name).write_bytes(content)
    (file,) = scan(folder, skip=True).unread
    assert (file.path, file.reason, file.size_bytes) == (name, reason, len(content))


def test_what_is_no_file_is_named_too(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "sub").mkdir()
    (elsewhere / "sub" / "c.txt").write_text("more text")
    (folder / "linked").symlink_to(elsewhere, target_is_directory=True)
    (folder / "dangling.txt").symlink_to(folder / "gone")
    os.mkfifo(folder / "pipe.txt")
    (folder / "inner").mkdir()
    (folder / "inner" / "same").symlink_to(folder / "inner", target_is_directory=True)
    found = {(file.path, file.reason, file.size_bytes) for file in scan(folder).unread}
    assert found == {
        ("linked", "a link to a folder, which is not followed", 9),
        ("dangling.txt", "a link to nothing", 0),
        ("pipe.txt", "not a regular file", 0),
    }


def test_hidden_files_are_none_of_a_corpus(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "objects").write_bytes(bytes(10**6))
    (folder / ".env").write_text("SECRET=1")
    corpus = scan(folder)
    assert corpus.skipped == {"hidden": 2}
    assert corpus.manifest()["skipped_files"] == {"hidden": 2}
    assert corpus.unread == ()


def test_more_than_one_per_cent_of_the_bytes_is_refused(folder: Path) -> None:
    """100,000 bytes are read: 1,010 of 101,010 are one per cent."""
    (folder / "c.bin").write_bytes(bytes(1010))
    assert len(scan(folder).unread) == 1
    (folder / "c.bin").write_bytes(bytes(1011))
    with pytest.raises(UserError, match=r"1\.0 % of its bytes .*: c\.bin \(binary.*data\.skip = true"):
        scan(folder)
    assert len(scan(folder, skip=True).files) == 2


def test_the_largest_files_are_named_and_the_others_counted(folder: Path) -> None:
    for number in range(9):
        (folder / f"{number}.bin").write_bytes(bytes(1000 + number))
    with pytest.raises(UserError, match=r": 8\.bin \(.*\), 7\.bin \(.*\), 6\.bin \(.*\) and 6 more; what works"):
        scan(folder)


def test_a_file_that_cannot_be_opened_is_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "secret.txt").write_text("x" * 500)
    original = LocalFileSystem.open

    def refuse(self: LocalFileSystem, path: str, *rest: Any, **options: Any) -> Any:
        if path.endswith("secret.txt"):
            raise PermissionError(13, "Permission denied")
        return original(self, path, *rest, **options)

    monkeypatch.setattr(LocalFileSystem, "open", refuse)
    (file,) = scan(folder).unread
    assert (file.path, file.reason, file.size_bytes) == ("secret.txt", "Permission denied", 500)


def test_a_damaged_file_is_refused_or_left_out_with_all_its_documents(folder: Path) -> None:
    """Documents before the damage count neither as such nor in the choice of the validation set."""
    lines = b"".join(b'{"text": "%s"}\n' % os.urandom(60).hex().encode() for _ in range(2000))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress(lines)[:-2000])
    with pytest.raises(UserError, match=r"c\.jsonl\.gz: cannot be decompressed to its end"):
        scan(folder)
    corpus = scan(folder, skip=True)
    (file,) = corpus.unread
    assert file.path == "c.jsonl.gz"
    assert "cannot be decompressed to its end" in file.reason
    (folder / "c.jsonl.gz").unlink()
    without = scan(folder)
    assert (corpus.files, corpus.split, corpus.corpus_id) == (without.files, without.split, without.corpus_id)


def test_a_bad_record_is_no_matter_of_its_file(folder: Path) -> None:
    (folder / "c.jsonl").write_text("null\n")
    with pytest.raises(UserError, match="line 1 holds null"):
        scan(folder, skip=True)
    (file,) = scan(folder, bad_records="skip").unread
    assert file.reason == "no record of it holds a document"


def test_the_report_names_them_also_where_the_tokens_were_found(
    folder: Path, tmp_path: Path, prepared_with: Prepare
) -> None:
    """The tokens are those of the corpus without the file; their description is not."""
    before = prepared_with(corpus=str(folder))
    (folder / "c.bin").write_bytes(bytes(100))
    after = prepared_with(corpus=str(folder))
    assert after.folder == before.folder
    assert before.left_out() == {}
    assert after.left_out() == {"unread_files": 1, "unread_bytes": 100}
    assert prepared_with(corpus=str(folder)) == after
    lines = corpus_lines(corpus_summary(after))
    assert f"note              {folder}: 1 file of 100 bytes not read: c.bin (binary: it holds zero bytes)" in lines


@pytest.mark.parametrize(
    "content", ['["one text", "another"]', '{"body": "a text"}', '{"rows": [{"body": "a"}]}', "[[1], 2]"]
)
def test_json_without_records_is_counted_and_is_no_corpus_by_itself(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, prepared_with: Prepare, content: str
) -> None:
    (folder / "settings.json").write_text(content)
    prepared = prepared_with(corpus=str(folder))
    assert prepared.notices() == [f"{folder}: 1 .json file read as text: without records"]
    assert prepared.left_out() == {}
    alone = tmp_path_factory.mktemp("alone") / "a.json.gz"
    alone.write_bytes(gzip.compress(content.encode()))
    with pytest.raises(
        UserError, match=r"nothing in it but JSON without records.*a\.json\.gz has its text under 'text'"
    ):
        prepared_with(corpus=str(alone))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_text_is_decoded_by_its_byte_order_mark(folder: Path, encoding: str) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    text = "na\u00efve \u6771\u4eac \U0001f642\r\n" * 5000
    (folder / "c.txt").write_bytes((mark + text).encode(encoding))
    corpus = scan(folder)
    assert corpus.unread == ()
    assert text in {train + validation for train, validation in corpus.documents()}
