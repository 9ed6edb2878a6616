"""Token ids that somebody else made: every format gives the documents that were written, and damage is named with its file."""

import os
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fourfold.config import RunFailure, UserError
from fourfold.config.schema import CorpusPart
from fourfold.data.batches import GlobalBatches
from fourfold.data.indexed import JoinedTokens, write_indexed
from fourfold.data.prepared import PreparedData, open_prepared

Prepare = Callable[..., PreparedData]
END = 256
DOCUMENTS = [[(7 * number + place) % 250 for place in range(4 + number % 9)] + [END] for number in range(60)]
ALL = [token for document in DOCUMENTS for token in document]


def llmc(path: Path, ids: list[int], dtype: str, magic: tuple[int, int], count: int | None = None) -> None:
    header = struct.pack("<3i", *magic, len(ids) if count is None else count).ljust(1024, b"\0")
    path.write_bytes(header + np.array(ids, dtype).tobytes())


def write(place: Path, ids: list[int], kind: str) -> str:
    """A corpus of ids in a new folder or file; its name."""
    place.mkdir()
    if kind.startswith("raw"):
        (place / "a.bin").write_bytes(np.array(ids, f"<{kind[4:]}").tobytes())
    elif kind.startswith("npy"):
        np.save(place / "a.npy", np.array(ids, kind[4:]))
    elif kind == "headerless.npy":
        (place / "a.npy").write_bytes(np.array(ids, "<u2").tobytes())
    elif kind == "gpt2":
        llmc(place / "a.bin", ids, "<u2", (20240520, 1))
    elif kind == "llama3":
        llmc(place / "a.bin", ids, "<u4", (20240801, 7))
    return str(place)


def sides(prepared: PreparedData, part: int = 0) -> tuple[list[int], list[int]]:
    train, validation = prepared.streams(prepared.parts[part])
    return train.read(0, len(train)).tolist(), validation.read(0, len(validation)).tolist()


@pytest.fixture
def as_pair(tmp_path: Path, prepared_with: Prepare) -> tuple[list[int], list[int]]:
    """Training and validation tokens of the documents as a Megatron pair."""
    with write_indexed(tmp_path / "pair", 257) as writer:
        for document in DOCUMENTS:
            writer.append(np.array(document))
    return sides(prepared_with(corpus=str(tmp_path / "pair")))


KINDS = [
    ("raw u2", "uint16"), ("raw i4", "int32"), ("raw u8", "uint64"), ("npy <u2", None), ("npy >i8", None), ("npy u4", "uint32"),
    ("headerless.npy", "uint16"), ("gpt2", None), ("llama3", "uint32"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
def test_every_format_gives_the_tokens_of_a_pair(
    tmp_path: Path, prepared_with: Prepare, as_pair: tuple[list[int], list[int]], kind: str, dtype: str | None
) -> None:
    corpus = write(tmp_path / "tokens", ALL, kind)
    [file] = Path(corpus).iterdir()
    before = file.read_bytes(), file.stat().st_mtime_ns
    prepared = prepared_with(corpus=corpus, token_dtype=dtype)
    assert sides(prepared) == as_pair
    assert sides(prepared_with(corpus=str(file), token_dtype=dtype)) == as_pair
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before
    [part] = prepared.parts
    assert (part.kind, part.train_documents + part.validation_documents) == ("tokens", 60)
    assert open_prepared(prepared.path) == prepared
    GlobalBatches(prepared, 16, 4, 0, True).batch(0, range(4))


def test_a_document_is_on_one_side_wherever_it_stands(tmp_path: Path, prepared_with: Prepare) -> None:
    """In any order of documents and files, in any format, with an end-of-text behind it or not, and twice in the corpus."""
    each = [[number] * (3 + number % 5) + [END] for number in range(60)]
    found = []
    for number, dtype in enumerate(("u2", "i8", "u4")):
        documents = [*each, *each[:20]]
        random.Random(number).shuffle(documents)
        place = tmp_path / f"corpus {number}"
        place.mkdir()
        for file in range(4):
            ids = [token for document in documents[20 * file : 20 * file + 20] for token in document]
            np.save(place / f"{file}.npy", np.array(ids[:-1], dtype))  # the last document of a file has no end
        train, validation = (set(ids) - {END} for ids in sides(prepared_with(corpus=str(place))))
        assert not train & validation
        assert train | validation == set(range(60))
        found.append(validation)
    assert found[0] == found[1] == found[2]


def test_another_key_chooses_other_documents(tmp_path: Path, text_folder: Path, prepared_with: Prepare) -> None:
    write(tmp_path / "tokens", ALL, "npy u2")
    for corpus in (str(tmp_path / "tokens"), str(text_folder)):
        found = [prepared_with(corpus=corpus, validation_key=key) for key in ("", "a", "b", "a")]
        assert found[1] == found[3]
        assert len({tuple(sides(each)[1]) for each in found}) == 3
        assert len({each.folder for each in found}) == 3
        assert len({tuple(sorted(train + validation)) for train, validation in map(sides, found)}) == 1


def test_without_an_end_of_text_a_file_is_one_document(tmp_path: Path, prepared_with: Prepare) -> None:
    write(tmp_path / "one", list(range(200)), "npy u1")
    train, validation = sides(prepared_with(corpus=str(tmp_path / "one")))
    assert (train, validation) == (list(range(160)), list(range(160, 200)))
    with pytest.raises(UserError, match=r"data\.document_mask = true: .*one' holds no end-of-text .*data\.eos"):
        prepared_with(corpus=str(tmp_path / "one"), document_mask=True)
    for number in range(1, 9):
        np.save(tmp_path / "one" / f"{number}.npy", np.full(20, number))
    [part] = prepared_with(corpus=str(tmp_path / "one")).parts
    assert part.train_documents + part.validation_documents == 9


def test_formats_mix_in_a_blend_each_with_its_own_dtype(
    tmp_path: Path, prepared_with: Prepare, text_folder: Path
) -> None:
    parts = [
        CorpusPart(path=write(tmp_path / "short", ALL, "raw u2"), token_dtype="uint16"),
        CorpusPart(path=write(tmp_path / "long", ALL, "raw u4")),
        CorpusPart(path=str(text_folder)),
    ]
    prepared = prepared_with(corpus=parts, token_dtype="uint32")
    assert sides(prepared, 0) == sides(prepared, 1)
    assert [part.kind for part in prepared.parts] == ["tokens", "tokens", "text"]


@pytest.mark.parametrize(
    ("kind", "dtype", "bad", "place"),
    [("raw u2", "uint16", 60_000, 7), ("npy i4", None, -1, 203), ("gpt2", None, 257, 0)],
)
def test_an_id_beyond_the_vocabulary_is_named_with_file_and_place(
    tmp_path: Path, prepared_with: Prepare, kind: str, dtype: str | None, bad: int, place: int
) -> None:
    corpus = write(tmp_path / "tokens", [*ALL[:place], bad, *ALL[place:]], kind)
    [file] = Path(corpus).iterdir()
    with pytest.raises(
        UserError, match=rf"{file}: token {place} holds the token id {bad}, but data\.tokenizer = 'bytes' has 257"
    ):
        prepared_with(corpus=corpus, token_dtype=dtype)


class Touch:
    """An object that leaves a file behind where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod, (self.path,)


def cut(path: Path, size: int) -> None:
    """An array of NumPy of so many bytes; below 0: with so many more than it has."""
    np.save(path, np.array(ALL, "u2"))
    path.write_bytes(path.read_bytes()[:size] if size > 0 else path.read_bytes() + b"\0" * -size)


def headed(path: Path, header: str) -> None:
    text = header.encode().ljust(117) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(1000))


DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    ("a.npy", lambda p: cut(p, 500), "no array of NumPy that can be read .*cut short"),
    ("a.npy", lambda p: cut(p, 20), "no array of NumPy that can be read"),
    ("a.npy", lambda p: cut(p, -3), r"holds \d+ bytes, but its header \(\d+ tokens of uint16"),
    ("a.npy", lambda p: np.save(p, np.array([1, "x"], object), allow_pickle=True), "no array of NumPy that can be read"),
    ("a.npy", lambda p: np.save(p, np.zeros((4, 9), int)), r"shape \(4, 9\) of int64; what works: one dimension"),
    ("a.npy", lambda p: np.save(p, np.zeros(9)), "of float64; what works: one dimension of integers"),
    ("a.npy", lambda p: np.save(p, np.zeros(9, [("a", "u2")])), "what works: one dimension of integers"),
    ("a.npy", lambda p: headed(p, "{'descr': '<u2', 'fortran_order': False, 'shape': (999999999999999999,)}"), "no array of NumPy"),
    ("a.npy", lambda p: headed(p, "{'descr': '<u2', 'fortran_order': False, 'shape': (-4,)}"), "no array of NumPy|header"),
    ("a.npy", lambda p: headed(p, "{'descr': '|O', 'fortran_order': False, 'shape': (4,)}"), "no array of NumPy"),
    ("a.npy", lambda p: headed(p, "[" * 99), "no array of NumPy"),
    ("a.npy", lambda p: headed(p, "{'descr': __import__('os'), 'shape': (4,)}"), "no array of NumPy"),
    ("a.npy", lambda p: np.save(p, np.zeros(0, "u2")), "no array of NumPy|0 tokens"),
    ("a.bin", lambda p: llmc(p, ALL, "<u2", (20240520, 1), len(ALL) + 1), r"but its header \(\d+ tokens of uint16\) asks for \d+"),
    ("a.bin", lambda p: llmc(p, ALL, "<u2", (20240520, 1), -5), r"but its header \(-5 tokens"),
    ("a.bin", lambda p: p.write_bytes(b""), "is empty"),
    ("a.bin", lambda p: p.write_bytes(bytes(100)), "has no header that tells .* data.token_dtype=uint16.*a.idx where it is half"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGE)
def test_damage_and_what_cannot_be_read_are_named_with_the_file(
    tmp_path: Path, prepared_with: Prepare, name: str, damage: Callable[[Path], None], message: str
) -> None:
    file = tmp_path / name
    damage(file)
    with pytest.raises((RunFailure, UserError), match=rf"(?s){file}: .*({message})|{message}"):
        prepared_with(corpus=str(file))


def test_a_raw_file_of_half_an_id_and_a_header_against_its_key_are_refused(
    tmp_path: Path, prepared_with: Prepare
) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(101))
    with pytest.raises(
        RunFailure, match=r"a\.bin: holds 101 bytes, which is no whole number of uint16 of 2 bytes: it is cut"
    ):
        prepared_with(corpus=str(tmp_path / "a.bin"), token_dtype="uint16")
    np.save(tmp_path / "b.npy", np.zeros(9, "i4"))
    with pytest.raises(
        UserError, match=r"b\.npy: its header says int32, and data\.token_dtype uint16; what works: leave"
    ):
        prepared_with(corpus=str(tmp_path / "b.npy"), token_dtype="uint16")


def test_nothing_is_unpickled(tmp_path: Path, prepared_with: Prepare) -> None:
    touched = tmp_path / "touched"
    content = np.array([Touch(str(touched))], object)
    np.save(tmp_path / "a.npy", content, allow_pickle=True)
    (tmp_path / "b.npy").write_bytes(pickle.dumps(content))
    for name in ("a.npy", "b.npy"):
        with pytest.raises((RunFailure, UserError), match=name):
            prepared_with(corpus=str(tmp_path / name))
    assert not touched.exists()


def test_files_of_ids_among_text_are_no_part_of_it_and_named(text_folder: Path, prepared_with: Prepare) -> None:
    np.save(text_folder / "ids.npy", np.array(ALL, "u2"))
    with pytest.raises(
        UserError, match=r"ids\.npy \(an array of NumPy; files of token ids are a corpus of their own\)"
    ):
        prepared_with(corpus=str(text_folder))


def test_ids_are_mapped_from_a_disk_and_not_from_a_url(prepared_with: Prepare) -> None:
    with pytest.raises(UserError, match=r"s3://bucket/a\.npy.* mapped into memory, .*copy it to a disk"):
        prepared_with(corpus="s3://bucket/a.npy")


def test_a_glob_of_pairs_is_one_corpus(
    tmp_path: Path, prepared_with: Prepare, as_pair: tuple[list[int], list[int]]
) -> None:
    (tmp_path / "pairs").mkdir()
    for number in range(3):
        with write_indexed(tmp_path / "pairs" / str(number), 257) as writer:
            for document in DOCUMENTS[20 * number : 20 * number + 20]:
                writer.append(np.array(document))
    assert sides(prepared_with(corpus=str(tmp_path / "pairs" / "*.bin"))) == as_pair


def test_files_that_changed_since_are_noticed(tmp_path: Path, prepared_with: Prepare) -> None:
    corpus = write(tmp_path / "tokens", ALL, "npy u2")
    first = prepared_with(corpus=corpus)
    np.save(tmp_path / "tokens" / "a.npy", np.array([*ALL[1:], 3], "u2"))
    assert prepared_with(corpus=corpus).corpus_id != first.corpus_id
    np.save(tmp_path / "tokens" / "a.npy", np.array([*ALL, 3], "u2"))
    with pytest.raises(RunFailure, match="it has changed since"):
        first.streams(first.parts[0])


def test_joined_arrays_slice_as_one() -> None:
    arrays = [np.arange(5, dtype="u2"), np.arange(5, 5, dtype="i4"), np.arange(5, 9, dtype=">u8"), np.arange(9, 10)]
    joined = JoinedTokens(arrays)
    for start in range(11):
        for stop in range(start, 12):
            assert joined[start:stop].tolist() == list(range(10))[start:stop]
            assert joined[start:stop].dtype == np.int64
