"""Validation sets by name: all of a corpus of their own, or a source's documents for validation, in the run's tokens."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fourfold.config import RunConfig, UserError, dump_run, load_run, parse_run
from fourfold.data.prepare import prepare, prepare_validation
from fourfold.data.prepared import PreparedData, open_prepared
from fourfold.data.validation import NamedSet, named_sets
from fourfold.launch.ready import prepare_run
from fourfold.launch.run_folder import RunFolder

S = 16


def config_of(place: Path, corpus: Any, run: dict[str, Any], **data: Any) -> RunConfig:
    section = {"corpus": corpus, "tokenizer": "bytes", "directory": str(place / "cache"), "validation_every": 5, **data}
    model = {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "ffn_size": 48}
    batch = {"global_sequences": 4, "sequence_length": S, "steps": 3}
    return parse_run(
        {"model": model, "data": section, "batch": batch, "run": {"evaluate_sequences": 6, "device": "cpu", **run}}
    )


def prepared_sets(config: RunConfig) -> tuple[PreparedData, list[NamedSet]]:
    prepared = prepare(config.data, lambda line: None)
    return prepared, named_sets(config, prepared, prepare_validation(config, prepared, lambda line: None))


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    for number in range(12):
        (tmp_path / "code" / f"{number:02}.txt").write_text(f"line {number} of code, " * (number + 1))
    return tmp_path / "code"


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe:300"])
def test_all_of_a_set_is_for_validation_in_the_tokens_of_the_run(
    tmp_path: Path, text_folder: Path, code: Path, tokenizer: str
) -> None:
    run = {"validation": [{"name": "code", "corpus": str(code)}]}
    config = config_of(tmp_path, str(text_folder), run, tokenizer=tokenizer)
    prepared, [found] = prepared_sets(config)
    without = prepare(config_of(tmp_path, str(text_folder), {}, tokenizer=tokenizer).data, lambda line: None)
    assert prepared == without, "a set changes nothing of what is trained on"
    texts = [path.read_text() for path in sorted(code.iterdir())]
    ids = [[*each.tolist(), prepared.eos] for each in prepared.load_tokenizer().encode_batch(texts)]
    assert found.stream.read(0, len(found.stream)).tolist() == [token for each in ids for token in each]
    assert (found.name, found.sequences) == ("code", 6)


def test_batches_of_a_set_are_its_first_sequences_whatever_their_rows(
    tmp_path: Path, text_folder: Path, code: Path
) -> None:
    for sequences in (1, 5, 24, 500):
        run = {"validation": [{"name": "code", "corpus": str(code), "sequences": sequences}]}
        _, [found] = prepared_sets(config_of(tmp_path, str(text_folder), run, document_mask=True))
        [full] = found.batches(S, sequences)
        for rows in (1, 4, 7):
            parts = found.batches(S, rows)
            assert all(len(part.tokens) == rows and part.valid_tokens for part in parts)
            targets = np.concatenate([part.targets.ravel() for part in parts])
            assert targets[targets >= 0].tolist() == full.targets[full.targets >= 0].tolist()
        assert full.valid_tokens <= sequences * S


@pytest.mark.parametrize("kind", ["npy", "pair"])
def test_token_ids_are_a_set_as_well(tmp_path: Path, text_folder: Path, kind: str) -> None:
    ids = [number % 250 for number in range(200)]
    np.save(tmp_path / "ids.npy", np.array(ids, "u2"))
    name = str(tmp_path / "ids.npy")
    if kind == "pair":
        from fourfold.data.indexed import write_indexed

        name = str(tmp_path / "pair")
        with write_indexed(name, 257) as writer:
            writer.append(np.array(ids))
    _, [found] = prepared_sets(
        config_of(tmp_path, str(text_folder), {"validation": [{"name": "ids", "corpus": name}]}, bos=False)
    )
    assert found.stream.read(0, 999).tolist() == ids


def test_each_source_is_a_set_of_its_own_documents(tmp_path: Path, text_folder: Path, code: Path) -> None:
    corpus = [{"path": str(text_folder)}, {"path": str(code), "weight": 0.25}]
    prepared, found = prepared_sets(config_of(tmp_path, corpus, {"evaluate_sources": True}))
    assert [each.name for each in found] == [str(text_folder), str(code)]
    for each, part in zip(found, prepared.parts, strict=True):
        stream = prepared.streams(part)[1]
        assert each.stream.read(0, 999).tolist() == stream.read(0, 999).tolist()
        assert each.sequences == 6
    assert prepared_sets(config_of(tmp_path, corpus, {}))[1] == []


def test_a_run_prepares_its_sets_and_says_where_they_are(tmp_path: Path, text_folder: Path, code: Path) -> None:
    config = config_of(tmp_path, str(text_folder), {"validation": [{"name": "code", "corpus": str(code)}]})
    table = prepare_run(config, 1, RunFolder(tmp_path / "run"), lambda line: None).data_table()
    assert open_prepared(json.loads(json.dumps(table))["validation"]["code"]).parts[0].validation_documents == 12


def test_a_set_lies_beside_the_run_file_and_reads_back(
    tmp_path: Path, text_folder: Path, code: Path, monkeypatch: Any
) -> None:
    config = config_of(
        tmp_path, "texts", {"validation": [{"name": "code", "corpus": "code"}, {"name": "b", "corpus": "gone"}]}
    )
    (tmp_path / "run.toml").write_text(dump_run(config))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_run(tmp_path / "run.toml", as_written=True) == config
    assert [each.corpus for each in load_run(tmp_path / "run.toml").run.validation] == [str(code), "gone"]


MISTAKES: list[tuple[Callable[[Path], Any], str]] = [
    (lambda place: [{"name": "a", "corpus": "nowhere"}], r"run\.validation 'a': data\.corpus = 'nowhere': there is no such"),
    (lambda place: [{"name": "a", "corpus": str(place / "empty.npy")}], r"run\.validation 'a': .*at least 2 are needed"),
    (lambda place: [{"name": "a", "corpus": str(place / "big.npy")}], r"validation 'a': .*big\.npy: token 1 holds .* 999"),
    (lambda place: [{"name": "a", "corpus": str(place / "code")}] * 2, r"two sets are named 'a'; what works: another name"),
    (lambda place: [{"name": "a b", "corpus": "x"}], r"run\.validation 1: name = 'a b'"),
    (lambda place: [{"corpus": "x"}], r"'run\.validation 1: name' is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("validation", "message"), MISTAKES)
def test_a_set_that_cannot_be_is_refused_by_its_name(
    tmp_path: Path, text_folder: Path, code: Path, validation: Callable[[Path], Any], message: str
) -> None:
    np.save(tmp_path / "big.npy", np.array([1, 999, 1]))
    np.save(tmp_path / "empty.npy", np.array([1]))
    with pytest.raises(UserError, match=message):
        prepared_sets(config_of(tmp_path, str(text_folder), {"validation": validation(tmp_path)}))
