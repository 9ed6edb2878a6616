"""Tokenizers of all kinds that are published, small ones trained here, and text that is hard to cut."""

import argparse
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

_SOURCE = Path(argparse.__file__).read_text(encoding="utf-8")
_LETTERS = "aZséßЖδ東京ひカ한ไำกാൎﹰﬁⅧ٣7½1"
_MARKS = "\u0301\u0e33\u093e\u200d\u1161\uff9e"
_SIGNS = "'/._-!?()«。、🙂\x01\x1f\ufeff\u200b"
_SPACES = (" ", " ", " ", " ", "\n", "\n", "\n\n", "\r\n", "  ", "\t", "\u00a0", "\u3000", " \n", "\n ", "▁")
_WORDS = (
    "the",
    "end",
    "import",
    "x",
    "I'll",
    "we're",
    "12345",
    "6.5",
    "café",
    "</s>",
    "Ünï",
    "naïve",
    "self",
    "ab\u0301",
)

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def hard_text(seed: int, num_chars: int) -> str:
    """Words, marks, signs and white space of many scripts in any order; the same for the same seed."""
    draw = random.Random(seed)
    pieces: list[str] = []
    length = 0
    while length < num_chars:
        kind = draw.random()
        if kind < 0.35:
            piece = draw.choice(_WORDS)
        elif kind < 0.5:
            piece = "".join(draw.choices(_LETTERS, k=draw.randint(1, 3)))
        elif kind < 0.58:
            piece = draw.choice(_SIGNS)
        elif kind < 0.62:
            piece = draw.choice(_MARKS)
        else:
            piece = draw.choice(_SPACES)
        pieces.append(piece)
        length += len(piece)
    return "".join(pieces)


def _trained(
    model: Any, trainer: Any, pre_tokenizer: Any, normalizer: Any = None, added: tuple[Any, ...] = ()
) -> Tokenizer:
    inner = Tokenizer(model)
    if normalizer is not None:
        inner.normalizer = normalizer
    if pre_tokenizer is not None:
        inner.pre_tokenizer = pre_tokenizer
    inner.train_from_iterator([_SOURCE[start : start + 1000] for start in range(0, 60_000, 1000)], trainer)
    inner.add_special_tokens(["<eos>"])
    if added:
        inner.add_tokens(list(added))
    return inner


def _bpe(pre_tokenizer: Any, normalizer: Any = None, added: tuple[Any, ...] = (), fallback: bool = False) -> Tokenizer:
    model = models.BPE(unk_token="<unk>" if fallback else None, byte_fallback=fallback, fuse_unk=fallback)
    special = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))] if fallback else []
    alphabet = [] if fallback else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    return _trained(model, trainer, pre_tokenizer, normalizer, added)


def _unigram(pre_tokenizer: Any, normalizer: Any = None) -> Tokenizer:
    trainer = trainers.UnigramTrainer(vocab_size=500, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    return _trained(models.Unigram(), trainer, pre_tokenizer, normalizer)


def _wordpiece(pre_tokenizer: Any, normalizer: Any) -> Tokenizer:
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=["[UNK]"], show_progress=False)
    return _trained(models.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizer, normalizer)


def _split(pattern: str) -> Any:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _bytes(regex: bool = True, prefix: bool = False) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def _then_bytes(*steps: Any) -> Any:
    return pre_tokenizers.Sequence([*steps, _bytes(regex=False)])


_LLAMA2 = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
_T5 = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])

KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": lambda: _bpe(_bytes()),
    "gpt2, space before": lambda: _bpe(_bytes(prefix=True)),
    "llama3": lambda: _bpe(_then_bytes(_split(LLAMA3))),
    "qwen, NFC": lambda: _bpe(_then_bytes(_split(QWEN)), normalizers.NFC()),
    "gpt4o": lambda: _bpe(_then_bytes(_split(GPT4O))),
    "deepseek": lambda: _bpe(_then_bytes(_split(r"\p{N}{1,3}"), _split("[一-龥぀-ゟ゠-ヿ]+"), _split(DEEPSEEK))),
    "falcon": lambda: _bpe(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Punctuation(), _bytes(), pre_tokenizers.Digits(), _split("[0-9][0-9][0-9]")]
        )
    ),
    "starcoder": lambda: _bpe(pre_tokenizers.Sequence([pre_tokenizers.Digits(True), _bytes()])),
    "metaspace, byte fallback": lambda: _bpe(pre_tokenizers.Metaspace(), fallback=True),
    "metaspace, first": lambda: _unigram(pre_tokenizers.Metaspace(prepend_scheme="first")),
    "t5": lambda: _unigram(
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]), _T5
    ),
    "unigram, right stripped": lambda: _unigram(
        pre_tokenizers.Metaspace(), normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(left=False)])
    ),
    "bert": lambda: _wordpiece(pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer(lowercase=True)),
    "wordpiece, whitespace": lambda: _wordpiece(
        pre_tokenizers.Whitespace(), normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    ),
    "added runs of spaces": lambda: _bpe(_bytes(), added=("  ", "    ", "\n\n", "self")),
    "added, normalized": lambda: _bpe(_bytes(), normalizers.Lowercase(), added=("Self", "IMPORT")),
    "llama2": lambda: _bpe(None, _LLAMA2, fallback=True),
    "gemma": lambda: _bpe(
        pre_tokenizers.Split(" ", "merged_with_previous"), normalizers.Replace(" ", "▁"), fallback=True
    ),
    "metaspace, one word": lambda: _bpe(pre_tokenizers.Metaspace(split=False), fallback=True),
    "gemma, added tokens": lambda: _bpe(
        None, normalizers.Replace(" ", "▁"), added=("self", "</s>", "  "), fallback=True
    ),
    "metaspace, one word, first": lambda: _bpe(
        pre_tokenizers.Metaspace(split=False, prepend_scheme="first"), added=("self",), fallback=True
    ),
}
"""Tokenizers for which a place to cut is proved."""

UNCUT: dict[str, Callable[[], Tokenizer]] = {
    "look back": lambda: _bpe(_then_bytes(_split(r"(?<=\s)\S+|\s+"))),
    "over spaces": lambda: _bpe(_then_bytes(_split(r"\w+ \w+|\s+"))),
    "unknown pattern": lambda: _bpe(_then_bytes(_split(r"\p{L}+\n?\p{L}*|\s|."))),
    "left stripped": lambda: _bpe(_bytes(), normalizers.Strip(right=False)),
    "prepended": lambda: _bpe(_bytes(), normalizers.Prepend("x")),
    "spaces replaced": lambda: _bpe(_bytes(), normalizers.Replace(" ", "▁")),
    "added over cuts": lambda: _bpe(_bytes(), added=("x\nimport", "the end", "e e")),
    "added, stripping": lambda: _bpe(_bytes(), added=(AddedToken("import", lstrip=True), AddedToken("x", rstrip=True))),
    "added, single words": lambda: _bpe(_bytes(), added=(AddedToken("end", single_word=True),)),
    "llama2, added tokens": lambda: _bpe(None, _LLAMA2, added=("self", "</s>"), fallback=True),
    "llama2, another prefix": lambda: _bpe(
        None, normalizers.Sequence([normalizers.Prepend("x"), normalizers.Replace(" ", "▁")]), fallback=True
    ),
    "llama2, NFKC": lambda: _bpe(None, normalizers.Sequence([normalizers.NFKC(), _LLAMA2]), fallback=True),
    "one word, bytes": lambda: _bpe(_bytes(regex=False)),
    "no words": lambda: _unigram(None),
}
"""Tokenizers for which none is: their texts stay whole."""
