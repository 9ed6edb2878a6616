"""A tokenizer from what `data.tokenizer` says: loaded, or a byte-level BPE trained on texts."""

from collections.abc import Iterable, Iterator

from fourfold.data.cuts import cut, cut_places
from fourfold.data.tokenizer import (
    END_OF_TEXT,
    ByteTokenizer,
    LibraryTokenizer,
    Tokenizer,
    load_tokenizer,
    tokenizers_library,
)
from fourfold.data.tokenizer_spec import TokenizerSpec

TRAINING_CHARS = 1 << 30
"""A BPE is trained on at most this many characters of each part of the corpus."""


def make_tokenizer(spec: TokenizerSpec, training_texts: Iterable[str]) -> Tokenizer:
    """Loads or trains the tokenizer; the texts are read for a BPE alone."""
    if spec.kind == "bytes":
        return ByteTokenizer()
    return load_tokenizer(spec.path, spec.eos) if spec.kind == "file" else train_bpe(training_texts, spec.vocab_size)


def train_bpe(texts: Iterable[str], vocab_size: int) -> LibraryTokenizer:
    """A byte-level BPE (Sennrich et al. 2016; bytes as in GPT-2) with end-of-text as id 0.

    The same texts in any order give the same tokenizer. A small corpus may hold too few pairs to reach `vocab_size`.
    """
    library = tokenizers_library()
    inner = library.Tokenizer(library.models.BPE())
    inner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    places = cut_places(inner)
    inner.train_from_iterator((piece for text in texts for piece in cut(text, places)), trainer)
    return LibraryTokenizer(inner, inner.token_to_id(END_OF_TEXT))


def first_chars(texts: Iterable[str], limit: int) -> Iterator[str]:
    """Whole texts from the front until `limit` characters have been given out."""
    given = 0
    for text in texts:
        yield text
        given += len(text)
        if given >= limit:
            return
