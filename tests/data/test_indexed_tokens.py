"""The indexed format: read and written the same by an independent reading of its layout, and refused when it lies."""

import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import RunFailure
from fourfold.data.indexed import open_indexed, write_indexed

CODES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}


def read_by_struct(prefix: Path) -> list[list[int]]:
    """Documents of a pair, by `struct` alone."""
    idx, binary = Path(f"{prefix}.idx").read_bytes(), Path(f"{prefix}.bin").read_bytes()
    assert idx[:9] == b"MMIDIDX\0\0"
    version, code, num_sequences, num_boundaries = struct.unpack_from("<QBQQ", idx, 9)
    assert version == 1
    at = 34
    sizes = struct.unpack_from(f"<{num_sequences}i", idx, at)
    pointers = struct.unpack_from(f"<{num_sequences}q", idx, at + 4 * num_sequences)
    boundaries = struct.unpack_from(f"<{num_boundaries}q", idx, at + 12 * num_sequences)
    assert len(idx) == at + 12 * num_sequences + 8 * num_boundaries
    sequences = [
        struct.unpack_from(f"<{size}{CODES[code]}", binary, p) for size, p in zip(sizes, pointers, strict=True)
    ]
    return [[token for sequence in sequences[start:stop] for token in sequence] for start, stop in pairwise(boundaries)]


def write_by_struct(prefix: Path, documents: list[list[list[int]]], code: int) -> None:
    """Documents, each a list of sequences, by `struct` alone."""
    letter = CODES[code]
    sequences = [sequence for document in documents for sequence in document]
    pointers, boundaries, at = [], [0], 0
    for sequence in sequences:
        pointers.append(at)
        at += len(sequence) * struct.calcsize(f"<{letter}")
    for document in documents:
        boundaries.append(boundaries[-1] + len(document))
    idx = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(sequences), len(boundaries))
    idx += struct.pack(f"<{len(sequences)}i", *map(len, sequences)) + struct.pack(f"<{len(pointers)}q", *pointers)
    Path(f"{prefix}.idx").write_bytes(idx + struct.pack(f"<{len(boundaries)}q", *boundaries))
    Path(f"{prefix}.bin").write_bytes(b"".join(struct.pack(f"<{len(s)}{letter}", *s) for s in sequences))


def write(prefix: Path, documents: list[list[int]], vocab_size: int = 1000) -> None:
    with write_indexed(prefix, vocab_size) as writer:
        for document in documents:
            writer.append(np.array(document, np.int64))


documents_strategy = st.lists(st.lists(st.integers(0, 999), max_size=20), max_size=12)


@settings(max_examples=40, deadline=None)
@given(documents_strategy, st.sampled_from([1000, 65_499, 65_500, 200_000]))
def test_what_is_written_an_independent_reader_reads(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], vocab_size: int
) -> None:
    prefix = tmp_path_factory.mktemp("written") / "tokens"
    write(prefix, documents, vocab_size)
    assert read_by_struct(prefix) == documents
    code = Path(f"{prefix}.idx").read_bytes()[17]
    assert code == (8 if vocab_size < 65_500 else 4)
    indexed = open_indexed(prefix)
    assert [indexed.document(i).tolist() for i in range(indexed.num_documents)] == documents


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.lists(st.integers(0, 127), max_size=8), max_size=3), max_size=8), st.sampled_from(list(CODES))
)
def test_what_an_independent_writer_writes_is_read(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[list[int]]], code: int
) -> None:
    prefix = tmp_path_factory.mktemp("foreign") / "tokens"
    write_by_struct(prefix, documents, code)
    indexed = open_indexed(prefix)
    joined = [[token for sequence in document for token in sequence] for document in documents]
    assert [indexed.document(i).tolist() for i in range(indexed.num_documents)] == joined
    assert indexed.tokens.tolist() == [token for document in joined for token in document]
    assert indexed.sizes.tolist() == [len(sequence) for document in documents for sequence in document]


def test_modes_of_a_multimodal_index_are_passed_over(tmp_path: Path) -> None:
    write_by_struct(tmp_path / "t", [[[1, 2]], [[3]]], 4)
    with open(tmp_path / "t.idx", "ab") as stream:
        stream.write(b"\0\0")
    assert open_indexed(tmp_path / "t").tokens.tolist() == [1, 2, 3]


def test_a_document_longer_than_a_sequence_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fourfold.data.indexed._MAX_SEQUENCE", 4)
    write(tmp_path / "t", [[1] * 9, [], [2] * 4])
    indexed = open_indexed(tmp_path / "t")
    assert indexed.sizes.tolist() == [4, 4, 1, 0, 4]
    assert [len(indexed.document(i)) for i in range(3)] == [9, 0, 4]


def test_ids_outside_the_vocabulary_are_not_written(tmp_path: Path) -> None:
    for bad in ([1000], [-1]):
        with pytest.raises(ValueError, match="vocabulary of 1000"):
            write(tmp_path / "t", [[1], bad])
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_writer_leaves_the_old_pair(tmp_path: Path) -> None:
    write(tmp_path / "t", [[1, 2, 3]])

    def interrupted() -> None:
        with write_indexed(tmp_path / "t", 1000) as writer:
            writer.append(np.array([9]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert read_by_struct(tmp_path / "t") == [[1, 2, 3]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.bin", "t.idx"]


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "t", [[1, 2, 3], [4], [5, 6]])
    for suffix in ("idx", "bin"):
        path = tmp_path / f"t.{suffix}"
        content = path.read_bytes()
        for length in range(len(content)):
            path.write_bytes(content[:length])
            with pytest.raises(RunFailure, match=rf"t\.{suffix}: "):
                open_indexed(tmp_path / "t")
        path.write_bytes(content + b"\0" * 9)
        with pytest.raises(RunFailure, match=rf"t\.{suffix}: "):
            open_indexed(tmp_path / "t")
        path.write_bytes(content)
        assert open_indexed(tmp_path / "t").num_documents == 3


@pytest.mark.parametrize(
    ("offset", "patch", "message"),
    [
        (0, b"NOT", "is not a Megatron index"),
        (9, struct.pack("<Q", 2), "has version 2"),
        (17, b"\x07", "has dtype code 7"),
        (17, b"\x63", "has dtype code 99"),
        (17, b"\x04", "points to byte"),
        (18, struct.pack("<Q", 2**63), "9223372036854775808 sequences"),
        (26, struct.pack("<Q", 2**64 - 1), "18446744073709551615 document boundaries"),
        (18, struct.pack("<QQ", 1, 7), "points to byte"),
        (34, struct.pack("<i", -3), "negative length -3"),
        (34, struct.pack("<i", 2**31 - 1), "points to byte"),
        (46, struct.pack("<q", 2), "sequence 0 points to byte 2"),
        (54, struct.pack("<q", -6), "sequence 1 points to byte -6"),
        (70, struct.pack("<q", 1), "do not rise"),
        (78, struct.pack("<q", 5), "do not rise"),
        (94, struct.pack("<q", 2), "do not rise"),
    ],
)
def test_every_lie_of_an_index_is_named(tmp_path: Path, offset: int, patch: bytes, message: str) -> None:
    write(tmp_path / "t", [[1, 2, 3], [4], [5, 6]])
    path = tmp_path / "t.idx"
    content = bytearray(path.read_bytes())
    content[offset : offset + len(patch)] = patch
    path.write_bytes(content)
    with pytest.raises(RunFailure) as caught:
        open_indexed(tmp_path / "t")
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_half_is_named(tmp_path: Path) -> None:
    write(tmp_path / "t", [[1]])
    (tmp_path / "t.bin").unlink()
    with pytest.raises(RunFailure, match=r"t\.bin: cannot be read: No such file"):
        open_indexed(tmp_path / "t")
