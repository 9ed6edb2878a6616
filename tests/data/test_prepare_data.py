"""`prepare`: a cache that follows its corpus, survives races and interruptions, and leaves foreign files alone."""

import errno
import fcntl
import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fourfold.config import FinalFailure, RunFailure, UserError
from fourfold.config.schema import CorpusPart, DataSection
from fourfold.data import build, corpus
from fourfold.data.batches import GlobalBatches
from fourfold.data.build import train_bpe
from fourfold.data.indexed import open_indexed, write_indexed
from fourfold.data.prepare import _lock, prepare
from fourfold.data.prepared import PreparedData, open_prepared
from fourfold.data.tokenizer import ByteTokenizer

Prepare = Callable[..., PreparedData]


def write_pair(prefix: Path, num_documents: int = 60, vocab_size: int = 257, end: bool = True) -> list[list[int]]:
    """A Megatron pair whose document i is the id i % 250 repeated, with end-of-text behind it if asked for."""
    documents = [[i % 250] * (3 + i % 7) + [256] * end for i in range(num_documents)]
    with write_indexed(prefix, vocab_size) as writer:
        for document in documents:
            writer.append(np.array(document))
    return documents


def sides(prepared: PreparedData, part: int = 0) -> tuple[list[int], list[int]]:
    train, validation = prepared.streams(prepared.parts[part])
    return train.read(0, len(train)).tolist(), validation.read(0, len(validation)).tolist()


def test_a_worker_reopens_what_was_prepared(text_folder: Path, prepared_with: Prepare) -> None:
    prepared = prepared_with(corpus=str(text_folder), tokenizer="bpe:400")
    assert open_prepared(prepared.path) == prepared
    assert open_prepared(prepared.folder) == prepared
    assert prepared.load_tokenizer().vocab_size == prepared.vocab_size
    assert prepared.train_tokens == len(sides(prepared)[0]) == sum(part.train_tokens for part in prepared.parts)
    assert prepared.validation_tokens == len(sides(prepared)[1])


def test_the_second_time_nothing_is_written(text_folder: Path, prepared_with: Prepare) -> None:
    first = prepared_with(corpus=str(text_folder))
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    assert prepared_with(corpus=str(text_folder)) == first
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == before


def test_a_changed_corpus_is_noticed(text_folder: Path, prepared_with: Prepare) -> None:
    first = prepared_with(corpus=str(text_folder))
    path = next(text_folder.rglob("*.txt"))
    original = path.read_bytes()
    path.write_bytes(b"#" + original[1:])
    second = prepared_with(corpus=str(text_folder))
    path.write_bytes(original)
    (text_folder / "new.txt").write_text("a new file")
    third = prepared_with(corpus=str(text_folder))
    assert len({first.corpus_id, second.corpus_id, third.corpus_id}) == 3
    (text_folder / "new.txt").unlink()
    assert prepared_with(corpus=str(text_folder)) == first


def test_settings_that_shape_tokens_have_their_own_cache(text_folder: Path, prepared_with: Prepare) -> None:
    base = {"corpus": str(text_folder)}
    changes = [{}, {"validation_every": 3}, {"tokenizer": "bpe:300"}, {"tokenizer": "bpe:310"}]
    assert len({prepared_with(**base, **change).folder for change in changes}) == 4
    assert prepared_with(**base, document_mask=True).folder == prepared_with(**base).folder


def test_a_cache_inside_the_corpus_is_not_read_as_corpus(text_folder: Path, prepared_with: Prepare) -> None:
    settings = {"corpus": str(text_folder), "directory": str(text_folder / "cache")}
    assert prepared_with(**settings) == prepared_with(**settings)


def test_only_training_documents_train_the_tokenizer(tmp_path: Path, prepared_with: Prepare) -> None:
    documents = [f"common words number {i} " * 5 for i in range(40)]
    is_validation = [int(sha256(text.encode()).hexdigest(), 16) % 5 == 0 for text in documents]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    prepared = prepared_with(corpus=str(path), tokenizer="bpe:320")
    expected = train_bpe([text for text, out in zip(documents, is_validation, strict=True) if not out], 320)
    expected.save(tmp_path / "expected.json")
    assert prepared.tokenizer_path.read_bytes() == (tmp_path / "expected.json").read_bytes()


def test_unigram_entropies_are_those_of_the_definition(text_folder: Path, prepared_with: Prepare) -> None:
    prepared = prepared_with(corpus=str(text_folder))
    train, validation = sides(prepared)
    counts = Counter(train)
    q = {token: (counts[token] + 1) / (len(train) + 257) for token in range(257)}
    cross_entropy = -sum(math.log(q[token]) for token in validation) / len(validation)
    entropy = -sum(n / len(train) * math.log(n / len(train)) for n in counts.values())
    assert prepared.unigram_entropy_nats == pytest.approx(cross_entropy, rel=1e-12)
    assert prepared.unigram_train_entropy_nats == pytest.approx(entropy, rel=1e-12)


def test_two_processes_build_once(text_folder: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from fourfold.config.schema import DataSection; from fourfold.data.prepare import prepare\n"
        "assert 'torch' not in sys.modules\n"
        "print(prepare(DataSection(corpus=sys.argv[1], tokenizer='bpe:400', directory=sys.argv[2]), print).path)"
    )
    command = [sys.executable, "-c", program, str(text_folder), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum("trained a BPE" in output for output in outputs) == 1
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")] == [
        Path(outputs[0].splitlines()[-1]).parent.name
    ]


def test_an_interrupted_build_leaves_nothing_behind(text_folder: Path, tmp_path: Path) -> None:
    section = DataSection(corpus=str(text_folder), tokenizer="bytes", directory=str(tmp_path / "cache"))

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(section, interrupt)
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
    prepared = prepare(section, lambda line: None)
    # What a killed process leaves is cleared by the next build of the same tokens.
    leftover = prepared.folder.parent / f".{prepared.folder.name}.building-killed"
    prepared.folder.rename(leftover)
    assert prepare(section, lambda line: None) == prepared
    assert not leftover.exists()


def test_a_damaged_cache_is_named(text_folder: Path, prepared_with: Prepare) -> None:
    prepared = prepared_with(corpus=str(text_folder))
    binary = prepared.folder / "part-0" / "train.bin"
    binary.write_bytes(binary.read_bytes()[:-1])
    with pytest.raises(RunFailure, match=r"part-0/train\.bin"):
        prepared_with(corpus=str(text_folder))
    prepared.path.write_text('{"format": 1}')
    with pytest.raises(RunFailure, match=r"prepared\.json"):
        open_prepared(prepared.folder)
    with pytest.raises(RunFailure, match="cannot be read"):
        open_prepared(prepared.folder / "nothing.json")


def test_a_place_that_cannot_be_written_is_named(text_folder: Path, prepared_with: Prepare, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunFailure, match=r"data\.directory = .*cannot be written"):
        prepared_with(corpus=str(text_folder), directory=str(tmp_path / "file" / "cache"))


@pytest.mark.parametrize("suffix", ["", ".bin", ".idx"])
def test_a_megatron_pair_is_read_in_place(tmp_path: Path, prepared_with: Prepare, suffix: str) -> None:
    documents = write_pair(tmp_path / "pair")
    before = {
        name: ((tmp_path / name).read_bytes(), (tmp_path / name).stat().st_mtime_ns)
        for name in ("pair.bin", "pair.idx")
    }
    prepared = prepared_with(corpus=str(tmp_path / "pair") + suffix)
    GlobalBatches(prepared, 16, 4, 0, True).batch(0, range(4))
    after = {name: ((tmp_path / name).read_bytes(), (tmp_path / name).stat().st_mtime_ns) for name in before}
    assert after == before
    assert not list(prepared.folder.rglob("*.bin"))
    contents = [np.array(document[:-1], "<i4").tobytes() for document in documents]
    is_validation = [int(sha256(content).hexdigest(), 16) % 5 == 0 for content in contents]
    assert any(is_validation)
    train, validation = sides(prepared)
    assert train == [t for document, out in zip(documents, is_validation, strict=True) if not out for t in document]
    assert validation == [t for document, out in zip(documents, is_validation, strict=True) if out for t in document]
    (part,) = prepared.parts
    assert (part.train_documents, part.validation_documents) == (60 - sum(is_validation), sum(is_validation))


def test_small_megatron_pairs_have_both_sets(tmp_path: Path, prepared_with: Prepare) -> None:
    for num_documents in (1, 2):
        write_pair(tmp_path / "pair", num_documents)
        train, validation = sides(prepared_with(corpus=str(tmp_path / "pair"), validation_every=10**6))
        assert train
        assert validation
        assert sorted(train + validation) == sorted(open_indexed(tmp_path / "pair").tokens.tolist())


def test_a_megatron_pair_needs_the_tokenizer_it_was_made_with(tmp_path: Path, prepared_with: Prepare) -> None:
    write_pair(tmp_path / "pair")
    with pytest.raises(
        UserError, match=r"data\.tokenizer = 'bpe:400': .*Megatron pair.* what works: .*tokenizer\.json"
    ):
        prepared_with(corpus=str(tmp_path / "pair"), tokenizer="bpe:400")
    ByteTokenizer().save(tmp_path / "tokenizer.json")
    assert prepared_with(corpus=str(tmp_path / "pair"), tokenizer=str(tmp_path / "tokenizer.json")).eos == 256
    with write_indexed(tmp_path / "large", 5000) as writer:
        for _ in range(9):
            writer.append(np.array([1, 2, 4321]))
    with pytest.raises(
        UserError, match=r"large\.bin: token 2 holds the token id 4321, but data\.tokenizer = 'bytes' has 257 ids"
    ):
        prepared_with(corpus=str(tmp_path / "large"))


def test_a_mask_without_ends_of_documents_is_refused(tmp_path: Path, prepared_with: Prepare) -> None:
    write_pair(tmp_path / "pair", end=False)
    prepared_with(corpus=str(tmp_path / "pair"))
    with pytest.raises(UserError, match=r"data\.document_mask = true: .* no end-of-text \(id 256"):
        prepared_with(corpus=str(tmp_path / "pair"), document_mask=True)


def test_half_a_pair_and_a_damaged_pair_are_named(tmp_path: Path, prepared_with: Prepare) -> None:
    write_pair(tmp_path / "pair")
    (tmp_path / "pair.bin").write_bytes(b"\0" * 11)
    with pytest.raises(RunFailure, match=r"pair\.bin: holds 11 bytes"):
        prepared_with(corpus=str(tmp_path / "pair"))
    (tmp_path / "pair.bin").unlink()
    with pytest.raises(UserError, match=r"other half of the Megatron pair is missing: .*pair\.bin"):
        prepared_with(corpus=str(tmp_path / "pair.idx"))


def test_a_pair_that_changed_since_is_noticed(tmp_path: Path, prepared_with: Prepare) -> None:
    write_pair(tmp_path / "pair")
    first = prepared_with(corpus=str(tmp_path / "pair"))
    write_pair(tmp_path / "pair", 61)
    assert prepared_with(corpus=str(tmp_path / "pair")).corpus_id != first.corpus_id
    with pytest.raises(RunFailure, match="it has changed since"):
        first.streams(first.parts[0])


def test_a_blend_shares_one_tokenizer_and_reweighs_without_encoding(
    text_folder: Path, tmp_path: Path, prepared_with: Prepare
) -> None:
    parts = [CorpusPart(path=str(text_folder / "odd"), weight=3), CorpusPart(path=str(text_folder / "even"), weight=1)]
    first = prepared_with(corpus=parts, tokenizer="bpe:320")
    assert [part.weight for part in first.parts] == [0.75, 0.25]
    both = [*sorted((text_folder / "odd").iterdir()), *sorted((text_folder / "even").iterdir())]
    assert first.train_tokens + first.validation_tokens == sum(
        len(ids) + 1 for ids in first.load_tokenizer().encode_batch([path.read_text() for path in both])
    )
    lines: list[str] = []
    section = DataSection(
        corpus=[parts[0], parts[1].model_copy(update={"weight": 3.0})],
        tokenizer="bpe:320",
        validation_every=5,
        directory=str(tmp_path / "cache"),
    )
    second = prepare(section, lines.append)
    assert second.folder == first.folder
    assert "tokens found" in "".join(lines)
    assert [part.weight for part in second.parts] == [0.5, 0.5]
    assert (open_prepared(first.path), open_prepared(second.path)) == (first, second)
    assert first.unigram_entropy_nats != second.unigram_entropy_nats


def test_tokens_found_by_content_are_described_by_the_names_of_this_run(
    text_folder: Path, tmp_path: Path, prepared_with: Prepare
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(text_folder, copy)
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        ByteTokenizer().save(tmp_path / place / "tokenizer.json")
    names = [(str(path), str(tmp_path / place)) for path, place in ((text_folder, "one"), (copy, "two"), (copy, "one"))]
    asked = [prepared_with(corpus=corpus, tokenizer=tokenizer) for corpus, tokenizer in names]
    assert len({prepared.folder for prepared in asked}) == 1
    assert len({prepared.path for prepared in asked}) == 3
    assert [(prepared.parts[0].name, prepared.tokenizer) for prepared in asked] == names
    assert [open_prepared(prepared.path) for prepared in asked] == asked
    assert [prepared_with(corpus=corpus, tokenizer=tokenizer) for corpus, tokenizer in names] == asked
    assert len({prepared.fingerprint() for prepared in asked}) == 1


def test_a_blend_of_nothing_is_refused(prepared_with: Prepare) -> None:
    with pytest.raises(UserError, match=r"data\.corpus = \[\]"):
        prepared_with(corpus=[])


@pytest.mark.parametrize("below", ["asyncio", pytest.param("", marks=pytest.mark.rest)], ids=["a package", "all of it"])
def test_stdlib_from_sources_to_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, below: str) -> None:
    root = corpus.stdlib_root()
    monkeypatch.setattr(corpus, "stdlib_root", lambda: root / below)
    section = DataSection(tokenizer="bpe:512", directory=str(tmp_path))
    prepared = prepare(section, lambda line: None)
    assert prepared.vocab_size == 512
    assert prepared.train_tokens > (100_000 if below else 1_000_000)
    assert 0.005 < prepared.validation_tokens / prepared.train_tokens < 0.2
    assert 3 < prepared.unigram_entropy_nats < math.log(512)
    batch = GlobalBatches(prepared, 128, 4, 0, False).batch(10, range(4))
    assert batch.tokens.shape == (4, 128)


def test_more_of_the_same_token_has_another_fingerprint(tmp_path: Path, prepared_with: Prepare) -> None:
    found = set()
    for number in (5000, 5001):
        corpus = tmp_path / str(number)
        corpus.mkdir()
        for document in range(10):
            (corpus / f"{document}.txt").write_text("a" * number)
        prepared = prepared_with(corpus=str(corpus))
        for file in prepared.folder.rglob("*.bin"):
            file.write_bytes(bytes(file.stat().st_size))  # without ends of documents: all samples are alike
        found.add(prepared.fingerprint())
    assert len(found) == 2


def test_documents_are_encoded_in_groups_of_so_many_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents for training count as those for validation do."""
    monkeypatch.setattr(build, "_BATCH_CHARS", 10)
    documents = [("x" * 5, ""), ("", "y" * 5), ("x" * 9, ""), ("", "y"), ("x", "")]
    corpus: Any = SimpleNamespace(documents=lambda: iter(documents))
    assert list(build._batched(corpus)) == [documents[:2], documents[2:4], documents[4:]]


def test_where_a_file_cannot_be_locked_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    with open(tmp_path / "lock", "w") as stream:
        assert _lock(stream)
        monkeypatch.setattr(fcntl, "flock", refuse)
        assert not _lock(stream)


def test_other_tokens_of_the_same_number_have_another_fingerprint(text_folder: Path, prepared_with: Prepare) -> None:
    prepared = prepared_with(corpus=str(text_folder))
    begun = prepared.fingerprint()
    prepared.require(begun)
    file = next(prepared.folder.rglob("train.bin"))
    content = file.read_bytes()
    file.write_bytes(content[2:] + content[:2])
    with pytest.raises(FinalFailure, match=r"not those with which this run began.*; delete .* the same command"):
        prepared.require(begun)
