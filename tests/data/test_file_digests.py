"""Every byte of token files counts: where one changed, the run is told, and where none did, none is read twice."""

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fourfold.config import FinalFailure, RunFailure
from fourfold.data import file_digests as module
from fourfold.data.file_digests import file_digests
from fourfold.data.indexed import write_indexed
from fourfold.data.prepared import PreparedData, open_prepared

Prepare = Callable[..., PreparedData]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read in full, as they are read."""
    seen: list[str] = []
    digest = module._digest

    def note(path: Path) -> str:
        seen.append(path.name)
        return digest(path)

    monkeypatch.setattr(module, "_digest", note)
    return seen


def flip(path: Path, byte: int) -> None:
    """Other content of the same size in the same file, with the time of change that it had."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[byte] ^= 1
    with open(path, "r+b") as stream:
        stream.write(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_digest_is_that_of_every_byte_and_made_once(tmp_path: Path, reads: list[str]) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    for number, path in enumerate(paths):
        path.write_bytes(os.urandom(3_000_000 + number))
    record = tmp_path / "kept" / "record.json"
    for _ in range(2):
        assert file_digests(paths, record) == [sha256(path.read_bytes()).hexdigest() for path in paths]
    assert reads == ["a", "b"]
    flip(paths[1], 1_500_000)
    assert file_digests(paths, record)[1] == sha256(paths[1].read_bytes()).hexdigest()
    assert reads == ["a", "b", "b"]


@pytest.mark.parametrize("change", ["size", "time", "inode", "none"])
def test_what_the_file_system_says_decides_whether_a_file_is_read(
    tmp_path: Path, reads: list[str], change: str
) -> None:
    path, record = tmp_path / "a", tmp_path / "record.json"
    path.write_bytes(b"content")
    file_digests([path], record)
    state = path.stat()
    if change == "size":
        path.write_bytes(b"content.")
    elif change == "time":
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    elif change == "inode":
        (tmp_path / "b").write_bytes(b"content")
        (tmp_path / "b").rename(path)
    file_digests([path], record)
    assert len(reads) == (1 if change == "none" else 2)


def test_a_record_moves_with_its_folder_and_a_damaged_one_is_none(tmp_path: Path, reads: list[str]) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a").write_bytes(b"content")
    expected = file_digests([tmp_path / "one" / "a"], tmp_path / "one" / "record.json")
    moved = (tmp_path / "one").rename(tmp_path / "two")
    assert file_digests([moved / "a"], moved / "record.json") == expected
    assert len(reads) == 1
    for content in (b"{", b"[]", b'{"a": 3}', b'{"a": []}'):
        (moved / "record.json").write_bytes(content)
        assert file_digests([moved / "a"], moved / "record.json") == expected


def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"content")

    def grow(file: Path) -> str:
        file.write_bytes(b"content and more")
        return ""

    monkeypatch.setattr(module, "_digest", grow)
    with pytest.raises(RunFailure, match="changes while it is read"):
        file_digests([path], tmp_path / "record.json")
    with pytest.raises(RunFailure, match="cannot be read: No such file"):
        file_digests([tmp_path / "gone"], tmp_path / "record.json")


def test_one_bit_anywhere_in_the_tokens_ends_a_run_and_a_preparation(
    text_folder: Path, prepared_with: Prepare, reads: list[str]
) -> None:
    prepared = prepared_with(corpus=str(text_folder))
    begun = prepared.fingerprint()
    for _ in range(2):
        open_prepared(prepared.path).require(begun)
        prepared_with(corpus=str(text_folder))
    assert len(reads) == 4
    files = [prepared.folder / "part-0" / name for name in ("train.bin", "validation.bin")]
    for file in files:
        size = file.stat().st_size
        for byte in (0, size // 3 // 2 * 2, size - 2):
            flip(file, byte)
            with pytest.raises(FinalFailure, match="not those with which this run began"):
                prepared.require(begun)
            with pytest.raises(RunFailure, match=r"part-0: its token files are not as they were written.*; delete "):
                prepared_with(corpus=str(text_folder))
            flip(file, byte)
            prepared.require(begun)


def test_one_bit_anywhere_in_a_pair_is_another_corpus(tmp_path: Path, prepared_with: Prepare, reads: list[str]) -> None:
    with write_indexed(tmp_path / "pair", 257) as writer:
        for number in range(60):
            writer.append(np.array([number % 250] * 9 + [256]))
    first = prepared_with(corpus=str(tmp_path / "pair"))
    begun = first.fingerprint()
    assert prepared_with(corpus=str(tmp_path / "pair")).fingerprint() == begun
    assert sorted(reads) == ["pair.bin", "pair.idx", "validation.npy"]
    flip(tmp_path / "pair.bin", 666)
    with pytest.raises(
        FinalFailure, match=r"not those with which this run began.*; put the files of data\.corpus back"
    ):
        first.require(begun)
    assert prepared_with(corpus=str(tmp_path / "pair")).corpus_id != first.corpus_id


def test_a_run_of_an_earlier_version_goes_on_under_its_own_fingerprint(
    text_folder: Path, prepared_with: Prepare
) -> None:
    prepared = prepared_with(corpus=str(text_folder))
    old = prepared._sampled()
    prepared.require(old)
    flip(prepared.folder / "part-0" / "train.bin", 0)
    with pytest.raises(FinalFailure):
        prepared.require(old)
