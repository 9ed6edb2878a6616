"""Tokenizers lose nothing, are trained the same way every time, and say what they may be."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.config import UserError
from fourfold.data.build import train_bpe
from fourfold.data.tokenizer import (
    END_OF_TEXT,
    ByteTokenizer,
    Tokenizer,
    byte_characters,
    load_tokenizer,
)
from fourfold.data.tokenizer_file import parse_tokenizer

TEXTS = Path(argparse.__file__).read_text(encoding="utf-8").split("\n\n")[:200]
BPE = train_bpe(TEXTS, 500)
ODD_TEXTS = ["", "\0\x7f", "a\r\n\tb  c", "<|endoftext|>", f"a{END_OF_TEXT}b", "\U0001f600é東", "\ufeffx", "</s><eos>"]


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE], ids=["bytes", "bpe"])
@settings(deadline=None)
@given(st.text(alphabet=st.characters(codec="utf-8")))
def test_decode_undoes_encode(tokenizer: Tokenizer, text: str) -> None:
    (ids,) = tokenizer.encode_batch([text])
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos not in ids.tolist()


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE], ids=["bytes", "bpe"])
def test_text_never_becomes_a_special_token(tokenizer: Tokenizer) -> None:
    for text, ids in zip(ODD_TEXTS, tokenizer.encode_batch(ODD_TEXTS), strict=True):
        assert tokenizer.decode(ids) == text
        assert tokenizer.eos not in ids.tolist()
        assert ids.dtype == np.int32


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE], ids=["bytes", "bpe"])
def test_a_saved_tokenizer_reads_back_here_and_in_the_library(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert type(again) is type(tokenizer)
    assert (again.vocab_size, again.eos) == (tokenizer.vocab_size, tokenizer.eos)
    assert library.token_to_id(END_OF_TEXT) == tokenizer.eos
    assert library.get_vocab_size() == tokenizer.vocab_size
    for text in [*TEXTS[:3], "\0\x7f\U0001f600"]:
        ids = tokenizer.encode_batch([text])[0].tolist()
        assert again.encode_batch([text])[0].tolist() == ids
        assert library.encode(text).ids == ids
        assert library.decode(ids) == text


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE], ids=["bytes", "bpe"])
def test_decode_leaves_out_what_is_no_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_batch(["abc"])[0].tolist()
    assert tokenizer.decode([tokenizer.eos, *ids, tokenizer.vocab_size + 5, tokenizer.eos]) == "abc"


def test_byte_characters_are_those_of_the_library() -> None:
    assert sorted(byte_characters()) == sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def test_training_is_the_same_in_another_process_and_order(tmp_path: Path) -> None:
    BPE.save(tmp_path / "here.json")
    program = (
        "import json, sys; from pathlib import Path; from fourfold.data.build import train_bpe\n"
        "train_bpe(json.load(sys.stdin), 500).save(Path(sys.argv[1]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "3"}
    command = [sys.executable, "-c", program, str(tmp_path / "there.json")]
    subprocess.run(command, input=json.dumps(TEXTS[::-1]), text=True, check=True, env=environment)
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()


def test_a_bpe_compresses_and_its_first_ids_are_bytes() -> None:
    assert BPE.vocab_size == 500
    assert BPE.eos == 0
    assert sum(map(len, BPE.encode_batch(TEXTS))) < 0.5 * sum(len(text.encode()) for text in TEXTS)


@pytest.mark.parametrize(
    "name", ["<|endoftext|>", "</s>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "<eos>", "[EOS]"]
)
def test_the_usual_names_of_end_of_text_are_found(name: str, tmp_path: Path) -> None:
    path = foreign_tokenizer(tmp_path, ["<pad>", name])
    tokenizer = load_tokenizer(path)
    assert tokenizer.eos == 257
    assert tokenizer.vocab_size == 258
    assert tokenizer.decode(tokenizer.encode_batch([name])[0]) == name


def test_a_stated_end_of_text_is_taken(tmp_path: Path) -> None:
    path = foreign_tokenizer(tmp_path, ["<pad>", "</s>", "<stop>"])
    assert load_tokenizer(path, eos=258).eos == 258
    spec = parse_tokenizer(str(path), 258)
    assert spec.eos == 258
    assert spec.identity != parse_tokenizer(str(path), 257).identity
    with pytest.raises(UserError, match=r"data\.eos = 999: no token of .*one of its 259 tokens"):
        load_tokenizer(path, eos=999)
    with pytest.raises(UserError, match=r"data\.eos = 5: data\.tokenizer = 'bytes' makes its own"):
        parse_tokenizer("bytes", 5)


def test_a_foreign_tokenizers_own_padding_and_frame_are_not_used(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(foreign_tokenizer(tmp_path, ["<pad>", "</s>"])))
    library.enable_truncation(3)
    library.enable_padding(pad_token="<pad>")
    library.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 257)])
    library.save(str(tmp_path / "framed.json"))
    first, second = load_tokenizer(tmp_path / "framed.json").encode_batch(["a", "abcdef"])
    assert (len(first), len(second)) == (1, 6)


def test_a_tokenizer_that_is_not_there_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read: No such file or directory; allowed: "):
        load_tokenizer(tmp_path / "none.json")


def test_a_tokenizer_without_end_of_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no special token that is known to end a document; state .* data\.eos = 0"):
        load_tokenizer(foreign_tokenizer(tmp_path, ["<pad>"]))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"model": 3}', b"\xff\xfe"])
def test_a_damaged_tokenizer_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "gpt2",
        "bpe",
        "bpe:",
        "bpe:299",
        "bpe:x",
        "bpe:-400",
        "bpe:4e3",
        "bpe:1000001",
        "bpe:" + "9" * 30,
        "no/file.json",
    ],
)
def test_an_unknown_tokenizer_says_what_is_allowed(value: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_tokenizer(value)
    assert f"data.tokenizer = {value!r}" in str(caught.value)
    assert '"bytes", "bpe:N"' in str(caught.value)


def test_the_identity_of_a_file_is_its_content(tmp_path: Path) -> None:
    path = foreign_tokenizer(tmp_path, ["</s>"])
    first = parse_tokenizer(str(path)).identity
    assert parse_tokenizer(str(tmp_path)).identity == first
    foreign_tokenizer(tmp_path, ["<eos>"])
    assert parse_tokenizer(str(path)).identity != first


def foreign_tokenizer(folder: Path, special: list[str]) -> Path:
    """A byte-level tokenizer.json whose special tokens follow the bytes."""
    ByteTokenizer().save(folder / "bytes.json")
    table = json.loads((folder / "bytes.json").read_text())
    table["added_tokens"] = [
        {**table["added_tokens"][0], "id": 256 + i, "content": name} for i, name in enumerate(special)
    ]
    (folder / "tokenizer.json").write_text(json.dumps(table))
    return folder / "tokenizer.json"
