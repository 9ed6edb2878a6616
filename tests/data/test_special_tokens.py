"""Documents end with the token that the tokenizer's own files say, and a run asks where they say two things."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers import processors

from fourfold.config import UserError, parse_run
from fourfold.config.schema import DataSection
from fourfold.data.prepare import prepare
from fourfold.data.prepared import open_prepared
from fourfold.data.tokenizer import load_tokenizer
from fourfold.data.tokenizer_file import end_of_text, frame, parse_tokenizer, read_tokenizer_file
from fourfold.launch.resolve import stated_vocab_size
from fourfold.report.corpus import corpus_lines, corpus_summary

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]
TAGS = ["<s>", "</s>"]


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """`folder(special, plain, **files)`: a tokenizer of letters with special tokens from id 0 and plain entries after them."""

    def make(special: list[str], plain: list[str], processor: Any = None, **files: dict[str, Any]) -> Path:
        pieces = [*special, *plain, *"abc<>/s "]
        inner = tokenizers.Tokenizer(tokenizers.models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
        inner.add_special_tokens(special)
        inner.add_tokens([tokenizers.AddedToken(piece, normalized=False) for piece in plain])
        if processor is not None:
            inner.post_processor = processor
        inner.save(str(tmp_path / "tokenizer.json"))
        for name, table in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(table))
        return tmp_path

    return make


def found(path: Path) -> int | None:
    return parse_tokenizer(str(path)).eos


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer_config": {"eos_token": "<eos>"}},
        {"tokenizer_config": {"eos_token": {"content": "<eos>", "lstrip": False}}},
        {"special_tokens_map": {"eos_token": "<eos>"}},
        {"config": {"eos_token_id": 1}},
        {"config": {"text_config": {"eos_token_id": [1]}}},
        {"tokenizer_config": {"eos_token": "<eos>"}, "config": {"eos_token_id": [2, 1]}},
    ],
)
def test_a_tag_in_the_vocabulary_ends_no_document(folder: Callable[..., Path], files: dict[str, Any]) -> None:
    assert found(folder(SPECIAL, TAGS, **files)) == 1


def test_what_the_folder_states_is_what_transformers_reads(folder: Callable[..., Path]) -> None:
    """A stated token may be a plain entry: then it is special from there on, as transformers makes it."""
    path = folder(SPECIAL, TAGS, tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"})
    assert found(path) == transformers.AutoTokenizer.from_pretrained(path).eos_token_id == 5
    tokenizer = load_tokenizer(path)
    (ids,) = tokenizer.encode_batch(["a</s>b"])
    assert tokenizer.eos not in ids.tolist()
    assert tokenizer.decode([*ids, 5]).replace(" ", "") == "a</s>b"


def test_a_special_token_behind_every_text_ends_it(folder: Callable[..., Path]) -> None:
    template = processors.TemplateProcessing(single="<cls> $A <sep>", special_tokens=[("<cls>", 0), ("<sep>", 1)])
    assert found(folder(["<cls>", "<sep>", "<eos>", "<|im_end|>"], [], template)) == 1


@pytest.mark.parametrize(
    ("special", "files", "named"),
    [
        (
            ["<|end_of_text|>", "<|eot_id|>"],
            {},
            r"'<\|end_of_text\|>' \(id 0\), '<\|eot_id\|>' \(id 1\); state one.*data\.eos = 0",
        ),
        (SPECIAL, {"config": {"eos_token_id": [1, 3]}}, r"config\.json beside .*'<eos>' \(id 1\), '<unk>' \(id 3\)"),
        (SPECIAL, {"tokenizer_config": {"eos_token": "<eos>"}, "config": {"eos_token_id": 2}}, r"'<eos>'.*'<bos>'"),
        (["<pad>"], {}, r"not special.*'</s>' \(id 2\).*data\.eos = 2"),
        (
            SPECIAL,
            {"tokenizer_config": {"eos_token": "<gone>"}},
            r"tokenizer_config\.json: eos_token = '<gone>' is no token",
        ),
    ],
)
def test_two_candidates_or_none_ask_for_the_key(
    folder: Callable[..., Path], special: list[str], files: dict[str, Any], named: str
) -> None:
    path = folder(special, TAGS, **files)
    with pytest.raises(UserError, match=named) as caught:
        found(path)
    assert "data.eos" in str(caught.value)
    assert parse_tokenizer(str(path), 0).eos == 0


def test_files_beside_a_tokenizer_of_another_name_are_not_its_own(folder: Callable[..., Path]) -> None:
    path = folder(SPECIAL, TAGS, tokenizer_config={"eos_token": "<pad>"})
    other = (path / "tokenizer.json").rename(path / "other.json")
    assert found(other) == 1


def test_another_end_of_text_is_another_identity(folder: Callable[..., Path]) -> None:
    first = parse_tokenizer(str(folder(SPECIAL, TAGS)))
    second = parse_tokenizer(str(folder(SPECIAL, TAGS, tokenizer_config={"eos_token": "<pad>"})))
    assert first.identity != second.identity


def test_a_unigram_vocabulary_is_read_by_its_order(tmp_path: Path) -> None:
    inner = tokenizers.Tokenizer(tokenizers.models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("a", -1.0)], 0, False))
    inner.add_special_tokens(["</s>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    assert found(tmp_path) == 1


def test_ends_that_a_text_itself_yields_are_counted(tmp_path: Path) -> None:
    """A Unigram takes `</s>` for the piece that it is, special or not."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((letter, -1.0) for letter in "abc</s>")]
    inner = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, False))
    inner.add_special_tokens(["</s>"])
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": f"a{end}b"}) + "\n" for end in ("", "c", "</s>", "c</s>"))
    )
    section = DataSection(
        corpus=str(tmp_path / "a.jsonl"), tokenizer=str(tmp_path), directory=str(tmp_path / "cache"), validation_every=2
    )
    (line,) = prepare(section, lambda line: None).notices()
    assert line.endswith(": 2 end-of-text tokens inside documents: the tokenizer makes them of plain text")


TEMPLATE = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])


@pytest.mark.parametrize(
    "processor",
    [
        None,
        processors.ByteLevel(),
        TEMPLATE,
        processors.Sequence([processors.ByteLevel(), TEMPLATE]),
        processors.BertProcessing(("</s>", 1), ("<s>", 0)),
        processors.RobertaProcessing(("</s>", 1), ("<s>", 0)),
    ],
)
def test_the_frame_of_a_text_is_what_the_library_puts_there(folder: Callable[..., Path], processor: Any) -> None:
    path = folder(["<s>", "</s>"], [], processor) / "tokenizer.json"
    before, behind = frame(read_tokenizer_file(path))
    inner = tokenizers.Tokenizer.from_file(str(path))
    text = inner.encode("abc", add_special_tokens=False).ids
    assert [*before, *text, *behind] == inner.encode("abc").ids


@pytest.mark.parametrize("content", [b"{}", b'{"model": {"vocab": [[[]], 3]}, "added_tokens": [3, {"content": []}]}'])
def test_a_table_of_another_shape_holds_no_such_token(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        end_of_text(read_tokenizer_file(tmp_path / "tokenizer.json"))


def test_an_id_that_the_library_does_not_keep_is_refused(folder: Callable[..., Path]) -> None:
    """The library numbers an added token anew where its id is taken."""
    path = folder(SPECIAL, TAGS) / "tokenizer.json"
    table = json.loads(path.read_text())
    table["added_tokens"].append({**table["added_tokens"][0], "id": 999, "content": "<|end_of_text|>"})
    path.write_text(json.dumps(table))
    with pytest.raises(UserError, match="has the id 999 in the file and another in the tokenizers library"):
        load_tokenizer(path, 999)


def test_a_damaged_file_beside_the_tokenizer_is_named(folder: Callable[..., Path]) -> None:
    path = folder(SPECIAL, TAGS)
    (path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer_config\.json, beside the tokenizer, cannot be read"):
        found(path)


BOS = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
TWICE = processors.TemplateProcessing(
    single="<bos> <pad> $A <eos>", special_tokens=[("<bos>", 2), ("<pad>", 0), ("<eos>", 1)]
)


def begin(path: Path, choice: bool | str) -> tuple[int, ...]:
    return parse_tokenizer(str(path), None, choice).bos  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("processor", "files", "auto", "asked"),
    [
        (BOS, {}, (2,), (2,)),
        (TWICE, {}, (2, 0), (2, 0)),
        (None, {}, (), (2,)),
        (None, {"tokenizer_config": {"add_bos_token": False, "bos_token": "<pad>"}}, (), (0,)),
        (None, {"config": {"bos_token_id": 3}}, (), (3,)),
        (BOS, {"tokenizer_config": {"add_bos_token": True, "bos_token": "<pad>"}}, (2,), (2,)),
    ],
)
def test_begin_of_text_is_what_the_post_processor_puts_or_what_was_asked_for(
    folder: Callable[..., Path], processor: Any, files: dict[str, Any], auto: tuple[int, ...], asked: tuple[int, ...]
) -> None:
    path = folder(SPECIAL, TAGS, processor, **files)
    assert (begin(path, "auto"), begin(path, True), begin(path, False)) == (auto, asked, ())
    assert (parse_tokenizer(str(path)).identity == parse_tokenizer(str(path), None, True).identity) is (auto == asked)


@pytest.mark.parametrize(("processor", "says"), [(BOS, False), (None, True)])
def test_two_files_that_disagree_on_begin_of_text_ask_for_the_key(
    folder: Callable[..., Path], processor: Any, says: bool
) -> None:
    path = folder(SPECIAL, TAGS, processor, tokenizer_config={"add_bos_token": says})
    with pytest.raises(
        UserError, match=rf"add_bos_token = {str(says).lower()}; state .* data\.bos = true, or data\.bos = false"
    ):
        begin(path, "auto")
    assert begin(path, True) == (2,)


def test_begin_of_text_that_is_not_there_is_not_made_up(folder: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match=r"data\.bos = true: which token begins a text\? .* has none that is known"):
        begin(folder(["<eos>"], TAGS), True)
    with pytest.raises(UserError, match=r"the names in .*'<bos>' \(id 1\), '<s>' \(id 2\)"):
        begin(folder(["<eos>", "<bos>", "<s>"], []), True)
    for value in ("bytes", "bpe:400"):
        with pytest.raises(UserError, match=rf"data\.bos = true: data\.tokenizer = '{value}' has no begin-of-text"):
            parse_tokenizer(value, None, True)


def test_prepared_documents_are_framed_as_the_library_frames_them(folder: Callable[..., Path], tmp_path: Path) -> None:
    path = folder(SPECIAL, TAGS, TWICE)
    texts = ["abc", "cab", "bca ab", "c b a"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = {}
    for choice in ("auto", False):
        section = DataSection(
            corpus=str(tmp_path / "a.jsonl"), tokenizer=str(path), bos=choice, directory=str(tmp_path / "cache")
        )
        prepared = prepare(section, lambda line: None)
        assert open_prepared(prepared.path) == prepared
        streams = prepared.streams(prepared.parts[0])
        found[choice] = sorted(token for stream in streams for token in stream.read(0, len(stream)).tolist())
    inner = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    assert found["auto"] == sorted(number for text in texts for number in inner.encode(text).ids)
    assert len(found["auto"]) == len(found[False]) + 2 * len(texts)
    lines = corpus_lines(corpus_summary(prepare(section.model_copy(update={"bos": "auto"}), lambda line: None)))
    assert "documents         <bos> (id 2) <pad> (id 0) before each, <eos> (id 1) behind it" in lines


def test_what_is_stated_counts_where_the_vocabulary_is_asked_for_too(folder: Callable[..., Path]) -> None:
    path = folder(SPECIAL, TAGS, BOS, tokenizer_config={"add_bos_token": False})
    model = parse_run({"model": {"preset": "tiny"}, "batch": {"global_sequences": 1, "sequence_length": 8}}).model
    with pytest.raises(UserError, match=r"data\.bos"):
        stated_vocab_size(model, DataSection(tokenizer=str(path)))
    assert stated_vocab_size(model, DataSection(tokenizer=str(path), bos=False)) == load_tokenizer(path).vocab_size
