"""Files that would take all memory, all time or the interpreter's stack end in one message that names them."""

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
import zstandard

from fourfold.cli.app import run as run_command
from fourfold.data import formats, source
from tests.cli.conftest import files_below

DEEP = "[" * 5000 + "]" * 5000
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
}
WORDS = {"type": "WordLevel", "vocab": {"<eos>": 0, "a": 1}, "unk_token": "[UNK]"}
TOKENIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "that panics": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "model": WORDS},
        "t.json is not a tokenizer of the tokenizers library",
    ),
    "that lacks its unknown token": ({"model": WORDS}, "cannot encode the texts of the corpus"),
    "with an id beyond all memory": (
        {"model": {**WORDS, "vocab": {"<eos>": 2**32 - 1, "[UNK]": 1}}},
        "a token of the id 4294967295",
    ),
}
FILES = {
    "a deep run file": (["show", "deep.toml"], ["deep.toml: not valid TOML"]),
    "a key of many parts": (["show", "dots.toml"], ["dots.toml: line 1: more than 400 dots"]),
    "a run file without end": (["show", "/dev/zero"], ["/dev/zero: cannot be read, not a file"]),
    "a run file that is a pipe": (["show", "pipe"], ["pipe: cannot be read, not a file"]),
    "a run file of megabytes": (["show", "long.toml"], ["long.toml: larger than 2097152 bytes"]),
    "a deep override": (["show", "run.toml", f"model.num_layers={DEEP}"], ["model.num_layers=[[[", "not a TOML value"]),
    "a number of many digits": (["show", "run.toml", "batch.steps=" + "9" * 5000], ["override batch.steps=999"]),
    "a long override": (["show", "run.toml", "batch.steps=" + "9" * 50_000], ["has 50012 characters; allowed: 20000"]),
    "a deep config.json": (["show", "run.toml", "model.hf=deep"], ["deep/config.json is not readable JSON"]),
    "a config.json without end": (["show", "run.toml", "model.hf=zero"], ["zero/config.json is not readable JSON"]),
    "a deep config.json to plan": (["plan", "--model", "deep", "--cluster", "dgx-h100:8"], ["deep/config.json"]),
    "no ranks to show": (["show", "run.toml", "--ranks", "0"], ["--ranks 0: allowed: 1 or more"]),
    "fewer than no ranks": (["show", "run.toml", "--ranks=-3"], ["--ranks -3: allowed: 1 or more"]),
    "more ranks than there can be": (["show", "run.toml", "--ranks", "9" * 20], ["up to 10000000"]),
    "no ranks to simulate": (["simulate", "run.toml", "--cluster", "dgx-h100", "--ranks", "0"], ["--ranks 0: allowed"]),
}


@pytest.fixture
def traps(here: Path) -> Path:
    (here / "deep.toml").write_text(f"a = {DEEP}")
    (here / "dots.toml").write_text(".".join("a" * 5000) + " = 1")
    (here / "long.toml").write_text("# \n" * 1_000_000)
    os.mkfifo(here / "pipe")
    for name in ("deep", "zero"):
        (here / name).mkdir()
    (here / "deep" / "config.json").write_text("[" * 100_000)
    (here / "zero" / "config.json").symlink_to("/dev/zero")
    return here


@pytest.mark.parametrize("name", FILES)
def test_one_message(name: str, traps: Path, fourfold) -> None:
    arguments, named = FILES[name]
    before = files_below(traps)
    result = fourfold(*arguments)
    assert result.code == 2, result
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert len(result.err) < 1000
    assert all(word in result.err for word in named), result.err
    assert files_below(traps) == before


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer(name: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content, named = TOKENIZERS[name]
    (here / "t.json").write_text(json.dumps({**TOKENIZER, **content}))
    end = content["model"]["vocab"]["<eos>"]
    code = run_command(["data", "run.toml", "data.tokenizer=t.json", f"data.eos={end}"])
    told = capfd.readouterr().err
    assert code == 2
    assert told.startswith("error: data.tokenizer"), "nor does the library's Rust say anything itself"
    assert named in told


def bomb(path: Path, megabytes: int) -> None:
    """A small file that decompresses to so much text."""
    block = b"a" * (1 << 20)
    if path.suffix == ".gz":
        with gzip.open(path, "wb") as file:
            for _ in range(megabytes):
                file.write(block)
        return
    frame = zstandard.ZstdCompressor().compressobj()
    path.write_bytes(b"".join([frame.compress(block) for _ in range(megabytes)]) + frame.flush())


@pytest.mark.parametrize("name", ["x.txt.zst", "x.jsonl.zst", "x.txt.gz", "x.jsonl.gz"])
def test_a_compressed_file_out_of_proportion(name: str, here: Path, fourfold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_FREE_BYTES", 1 << 20)
    monkeypatch.setattr(source, "_MAX_RATIO", 500)
    (here / "bombs").mkdir()
    bomb(here / "bombs" / name, 64)
    result = fourfold("data", "run.toml", "data.corpus=bombs")
    assert result.code == 2, result
    assert f"bombs/{name}: decompresses to more than 500 times its size" in result.err


@pytest.mark.parametrize("name", ["x.txt.zst", "x.jsonl.gz"])
def test_a_compressed_document_that_fills_the_memory(
    name: str, here: Path, fourfold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "MAX_DOCUMENT_BYTES", 1 << 20)
    (here / "bombs").mkdir()
    bomb(here / "bombs" / name, 2)
    result = fourfold("data", "run.toml", "data.corpus=bombs")
    assert result.code == 2, result
    assert f"bombs/{name}" in result.err
    assert "one document of more than 1048576 bytes" in result.err


def test_a_frame_that_grows_in_one_piece_is_given_out_in_small_ones(tmp_path: Path) -> None:
    """zstd may turn 4 bytes into 128 KiB: what comes out at once stays far below the document."""
    bomb(tmp_path / "x.zst", 512)
    with open(tmp_path / "x.zst", "rb") as stored:
        frames = source._frames(stored, lambda: zstandard.ZstdDecompressor().decompressobj(), b"")
        assert max(map(len, frames)) <= 1 << 27


@pytest.mark.parametrize("text", ["", '{"par', "[]", '{"parts": 1}', '{"parts": []}', '{"parts": [[]]}', "[" * 100_000])
def test_a_damaged_manifest_of_prepared_data(here: Path, fourfold, text: str) -> None:
    assert fourfold("data", "run.toml").code == 0
    (manifest,) = here.glob("fourfold-data/*/manifest.json")
    manifest.write_text(text)
    result = fourfold("data", "run.toml")
    assert result.code == 1, result
    assert "manifest.json: is not the manifest of prepared data" in result.err
    assert "prepare the data again" in result.err
