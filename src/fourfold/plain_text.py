"""Text from files on its way to a terminal: control characters in it are shown, never sent.

A terminal obeys them: they clear the screen, set its title, write over other lines, or answer as if a person typed. Run files,
corpora, run folders, checkpoints, and what a model writes may hold any of them.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 but tab and newline, DEL, C1; what breaks or turns a line in Unicode; and halves of a pair, which no encoding takes."""


def plain(text: str) -> str:
    """The text with each control character as its escape, `\\u001b`, which JSON reads too. Carriage returns before newlines go."""
    if _CONTROL.search(text) is None:
        return text
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n"))


class PlainStream:
    """An output stream that is sent no control characters. `sink`: where its text goes."""

    def __init__(self, sink: TextIO) -> None:
        self.sink = sink

    def write(self, text: str) -> int:
        self.sink.write(plain(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sink, name)


def own_codes(stream: TextIO) -> TextIO:
    """The stream as this program draws on it, with codes of its own: text from elsewhere must be made `plain` before."""
    return stream.sink if isinstance(stream, PlainStream) else stream


@contextmanager
def plain_output() -> Iterator[None]:
    """Sends no control characters to stdout and stderr, whatever is printed."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (PlainStream(own_codes(each)) for each in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
