"""Small corpora and a one-line `prepare` for the tests of `fourfold.data`."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fourfold.config.schema import DataSection
from fourfold.data.prepare import prepare
from fourfold.data.prepared import PreparedData

WORDS = (
    "the",
    "of",
    "rank",
    "step",
    "stream",
    "gather",
    "reduce",
    "window",
    "epoch",
    "stage",
    "link",
    "café",
    "東京",
    "naïve",
)


def make_text(seed: int, num_words: int = 120) -> str:
    """Some lines of words, the same for the same seed."""
    draw = random.Random(seed)
    return "".join(draw.choice(WORDS) + draw.choice((" ", " ", "\n")) for _ in range(num_words))


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    """Forty text files in two folders."""
    folder = tmp_path / "texts"
    for number in range(40):
        path = folder / ("odd" if number % 2 else "even") / f"{number:02d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make_text(number), encoding="utf-8")
    return folder


@pytest.fixture
def prepared_with(tmp_path: Path) -> Callable[..., PreparedData]:
    """`prepared_with(corpus=..., ...)`: prepares into a cache of this test, tokenizer "bytes" unless said otherwise."""

    def call(**settings: Any) -> PreparedData:
        section = DataSection.model_validate(
            {"tokenizer": "bytes", "validation_every": 5, "directory": str(tmp_path / "cache"), **settings}
        )
        return prepare(section, lambda line: None)

    return call
