"""JSON values out of a stream, one after another: the elements of an array, or values that stand behind each other."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

_CHUNK_BYTES = 1 << 20
_MAX_VALUE_CHARS = 1 << 30
_NEAR_THE_END = 32
"""A mistake this many characters before the end of what has been read may be none: the rest may make it right."""
_DECODER = json.JSONDecoder()
_SPACE = " \t\n\r"


class JsonSyntaxError(Exception):
    """The stream is no JSON from a line on. `line` begins at 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line} {what}")
        self.line = line


class JsonValues:
    """A reader of values that holds little more than one of them in memory. `stream`: UTF-8."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._bytes = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at = "", 0
        self._ended = False
        self.line = 1
        """The line on which the next value begins, once `peek` has been called."""

    def values(self) -> Iterator[tuple[int, Any]]:
        """(line, value) of every element where the stream is one array, else of every value. Raises `JsonSyntaxError`."""
        if self.peek() != "[":
            while self.peek():
                yield self.line, self._value()
            return
        self._take()
        if self.peek() == "]":
            self._take()
        else:
            separator = ","
            while separator == ",":
                self.peek()
                yield self.line, self._value()
                separator = self.peek()
                if separator not in (",", "]") or not separator:
                    raise JsonSyntaxError(
                        self.line, "ends inside the array" if not separator else "has no comma or ] here"
                    )
                self._take()
        if self.peek():
            raise JsonSyntaxError(self.line, "holds something behind the array")

    def peek(self) -> str:
        """The next character that is no white space; "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._take()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def holds_key(self, key: str) -> bool:
        """Whether what has been read and not yet given out looks like an object or array that has this key somewhere."""
        text = self._text[self._at :]
        return re.search(rf"{re.escape(json.dumps(key, ensure_ascii=False))}\s*:", text) is not None

    def _take(self) -> None:
        self.line += self._text[self._at] == "\n"
        self._at += 1

    def _more(self) -> bool:
        """Reads on: as much again as is held, so that a long value is tried a few times."""
        if self._ended:
            return False
        kept = self._text[self._at :]
        content = self._stream.read(max(_CHUNK_BYTES, len(kept)))
        try:
            decoded = self._bytes.decode(content, final=not content)
        except UnicodeDecodeError as error:
            raise JsonSyntaxError(self.line, f"or one after it is not UTF-8 ({error.reason})") from None
        self._text, self._at = kept + decoded, 0
        self._ended = not content
        return True

    def _value(self) -> Any:
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise JsonSyntaxError(self.line, "is nested too deeply") from None
            except json.JSONDecodeError as error:
                cut = error.msg.startswith("Unterminated") or error.pos > len(self._text) - _NEAR_THE_END
                if not cut or len(self._text) > _MAX_VALUE_CHARS or not self._more():
                    line = self.line + self._text.count("\n", self._at, error.pos)
                    raise JsonSyntaxError(line, f"is not valid JSON ({error.msg})") from None
                continue
            if end == len(self._text) and self._more():  # a number may go on
                continue
            self.line += self._text.count("\n", self._at, end)
            self._at = end
            return value
