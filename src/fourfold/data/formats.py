"""Documents out of one file: plain text, JSON or Parquet, as it is or compressed.

A record is its text, or what is wrong with it in the words of its format. JSON values are read out of a stream: the elements of an
array, or values that stand behind each other.
"""

import codecs
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, Literal

from fourfold.config import UserError
from fourfold.data.source import COMPRESSIONS, MAX_DOCUMENT_BYTES, Source, UnreadError, open_content, open_stored

_SHOWN_KEYS, _SHOWN_CHARS = 10, 60
_CHUNK_BYTES = 1 << 20
_MAX_VALUE_CHARS = 1 << 30
_NEAR_THE_END = 32
"""A mistake this many characters before the end of what has been read may be none: the rest may make it right."""
_DECODER = json.JSONDecoder()
_SPACE = " \t\n\r"
Kind = Literal["text", "jsonl", "json", "parquet"]


_MAGIC = (
    (0, b"PK\3\4", "a zip archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!", "a rar archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"\x1f\x8b", "compressed by gzip, but not named .gz"),
    (0, b"\x28\xb5\x2f\xfd", "compressed by Zstandard, but not named .zst"),
    (0, b"BZh", "compressed by bzip2, but not named .bz2"),
    (0, b"\xfd7zXZ\0", "compressed by xz, but not named .xz"),
    (0, b"\x04\x22\x4d\x18", "compressed by LZ4"),
    (0, b"\x1f\x9d", "compressed by compress"),
    (0, b"PAR1", "Parquet, but not named .parquet"),
    (0, b"\x93NUMPY", "an array of NumPy; files of token ids are a corpus of their own"),
    (0, b"ARROW1", "Arrow"),
    (0, b"%PDF", "PDF"),
    (0, b"SQLite format 3", "an SQLite database"),
)
"""(offset, bytes there, what such a file is)."""


@dataclass(frozen=True)
class BadRecord:
    """A record that holds no document. `where`: the file and the line, record or row; `what`: what is wrong with it there."""

    where: str
    what: str
    text_key: str

    def __str__(self) -> str:
        return f"{self.where} {self.what}"

    def error(self) -> UserError:
        """The refusal, with what works."""
        return UserError(
            f'{self}; a line that works: {{"{self.text_key}": "some text"}}; data.bad_records = "skip" leaves such records out and '
            "counts them"
        )


def record_of_line(line: bytes, text_key: str, where: str) -> str | BadRecord:
    """The text of a line of JSON Lines."""
    if b"\0" in line:
        alone = " alone" if not line.strip(b"\0\r\n") else ""
        return BadRecord(where, f"holds zero bytes{alone}, as a file system leaves them after a crash", text_key)
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
        return BadRecord(where, f"is not UTF-8 ({byte}); convert the file, for example with iconv", text_key)
    try:
        record = json.loads(text)
    except RecursionError:
        return BadRecord(where, "is not valid JSON that can be read: it is nested too deeply", text_key)
    except ValueError as error:
        return BadRecord(where, f"is not valid JSON ({error}); each line must be one object", text_key)
    return text_of(record, text_key, where)


def text_of(record: Any, text_key: str, where: str) -> str | BadRecord:
    """The text of a JSON value."""
    if not isinstance(record, dict):
        return BadRecord(where, f"holds {json_type(record)}, not an object", text_key)
    if text_key not in record:
        names = [key if key.isprintable() else repr(key) for key in sorted(record)]
        keys = (
            ", ".join([name[:_SHOWN_CHARS] for name in names[:_SHOWN_KEYS]] + ["..."] * (len(names) > _SHOWN_KEYS))
            or "none"
        )
        return BadRecord(where, f"has no key {text_key!r} (data.text_key); its keys: {keys}", text_key)
    text = record[text_key]
    if not isinstance(text, str):
        return BadRecord(where, f"holds {json_type(text)} under the key {text_key!r}, not a string", text_key)
    return _without_lone_surrogates(text)


def json_type(value: Any) -> str:
    """A value's type as JSON calls it."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    names: dict[type, str] = {dict: "an object", list: "an array", str: "a string"}
    return names.get(type(value), "a number")


def _without_lone_surrogates(text: str) -> str:
    """JSON can spell half of a surrogate pair, which UTF-8 cannot hold: each becomes U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


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


def read_documents(source: Source, text_key: str, bad_records: Literal["error", "skip"] = "error") -> Iterator[str]:
    """The documents of one file in order; empty ones are left out. A record that holds none is a `UserError`, or left out too."""
    for record in read_records(source, text_key):
        if not isinstance(record, BadRecord):
            yield record
        elif bad_records == "error":
            raise record.error()


def read_records(source: Source, text_key: str) -> Iterator[str | BadRecord]:
    """The documents of one file in order, and its records that hold none; empty documents are left out.

    `.jsonl` and `.ndjson` hold one object a line. `.json` holds the same, or one array of objects, or objects behind each other
    on any number of lines; where it holds something else (settings, a list of numbers), it is text. `.parquet` has a string column
    `text_key`. Anything else is text, with the file as one document. A compression's suffix may follow any name but Parquet's.

    Raises `UnreadError` for a file that is not text, `UserError` naming file and line for what stops it from being read further.
    """
    kind, compression = _kind_of(source, text_key)
    if kind == "parquet":
        documents = _parquet(source, text_key)
    elif kind == "jsonl":
        documents = _json_lines(source, compression, text_key)
    elif kind == "json":
        documents = _json_values(source, compression, text_key)
    else:
        documents = _text(source, compression)
    return (document for document in documents if document)


def is_json_text(source: Source, text_key: str) -> bool:
    """Whether a `.json` file is read as text: it holds no records."""
    named = (
        source.path.lower().removesuffix(next(filter(source.path.lower().endswith, COMPRESSIONS), "")).endswith(".json")
    )
    return named and _kind_of(source, text_key)[0] == "text"


def _kind_of(source: Source, text_key: str) -> tuple[Kind, str]:
    name = source.path.lower()
    compression = next((suffix for suffix in COMPRESSIONS if name.endswith(suffix)), "")
    name = name.removesuffix(compression)
    if name.endswith(".parquet"):
        return "parquet", compression
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl", compression
    return (_kind_of_json(source, compression, text_key) if name.endswith(".json") else "text"), compression


def _kind_of_json(source: Source, compression: str, text_key: str) -> Kind:
    """Tells objects, one a line, from records in an array or on several lines, and both from other JSON, which is kept as text."""
    with open_content(source, compression) as stream:
        first, second = stream.readline(MAX_DOCUMENT_BYTES), stream.readline(1 << 20)
    try:
        record = json.loads(first)
    except (ValueError, RecursionError):
        record = None
    if isinstance(record, dict) and (text_key in record or second.strip()):
        return "jsonl"
    with open_content(source, compression) as stream:
        reader, found = JsonValues(stream), list[Any]()
        try:
            is_array = reader.peek() == "["
            found.extend(value for _, value in islice(reader.values(), 2))
        except JsonSyntaxError:
            if not found and reader.holds_key(text_key):
                return "json"  # to be refused with the line of the mistake
    if not found or not isinstance(found[0], dict):
        return "text"
    if is_array or text_key in found[0] or len(found) > 1:
        return "json"
    _refuse_inner_records(source, found[0], text_key)
    return "text"


def _refuse_inner_records(source: Source, table: dict[str, Any], text_key: str) -> None:
    """Raises `UserError` for records that stand under a key of one large object, which would be trained on as JSON's syntax."""
    for key, value in table.items():
        first = value[0] if isinstance(value, list) and value else None
        if isinstance(first, dict) and text_key in first:
            raise UserError(
                f"{source.location}: holds its records under the key {key!r} of one object; what works: the array alone, or JSON "
                f"Lines, one record a line"
            )


def _text(source: Source, compression: str) -> Iterator[str]:
    with open_content(source, compression) as stream:
        content = stream.read(MAX_DOCUMENT_BYTES + 1) if compression else stream.read()
    _check_length(content, source.location, compression)
    if b"\0" in content:
        raise UnreadError(source, _known(content) or "binary: it holds zero bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"not UTF-8 (byte 0x{content[error.start]:02x} at position {error.start + 1})"
        raise UnreadError(source, _known(content) or byte) from None
    yield text


def _known(content: bytes) -> str | None:
    return next((what for offset, magic, what in _MAGIC if content.startswith(magic, offset)), None)


def _lines(stream: BinaryIO, compression: str) -> Iterator[bytes]:
    """The lines; in a compressed file none is read further than `_check_length` needs."""
    return iter(lambda: stream.readline(MAX_DOCUMENT_BYTES + 1), b"") if compression else iter(stream)


def _check_length(document: bytes, where: str, compression: str) -> None:
    """Raises `UserError` for a document in a compressed file that would fill the memory."""
    if compression and len(document) > MAX_DOCUMENT_BYTES:
        raise UserError(
            f"{where}: one document of more than {MAX_DOCUMENT_BYTES} bytes once decompressed; what works: decompress the file, "
            f"or put the documents in JSON Lines, one a line"
        )


def _json_lines(source: Source, compression: str, text_key: str) -> Iterator[str | BadRecord]:
    with open_content(source, compression) as stream:
        for number, line in enumerate(_lines(stream, compression), start=1):
            if not line.strip():
                continue
            where = f"{source.location}: line {number}"
            _check_length(line, where, compression)
            yield record_of_line(line, text_key, where)


def _json_values(source: Source, compression: str, text_key: str) -> Iterator[str | BadRecord]:
    with open_content(source, compression) as stream:
        try:
            for number, (line, value) in enumerate(JsonValues(stream).values(), start=1):
                yield text_of(value, text_key, f"{source.location}: record {number} (line {line})")
        except JsonSyntaxError as error:
            raise UserError(
                f"{source.location}: {error}, so that what follows cannot be told apart; what works: correct it there, or put the "
                f"records in JSON Lines, one a line"
            ) from None


def _parquet(source: Source, text_key: str) -> Iterator[str | BadRecord]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            f"{source.location}: reading Parquet needs pyarrow, which is not installed: pip install 'fourfold[parquet]'"
        ) from None
    with open_stored(source) as stream:
        try:
            table = pyarrow.parquet.ParquetFile(stream)
            names = table.schema_arrow.names
            if text_key not in names:
                raise UserError(
                    f"{source.location} has no column {text_key!r} (data.text_key); its columns: {', '.join(names)}"
                )
            column = table.schema_arrow.field(text_key).type
            if not (pyarrow.types.is_string(column) or pyarrow.types.is_large_string(column)):
                raise UserError(
                    f"{source.location}: column {text_key!r} (data.text_key) holds {column}, not strings; "
                    f"its columns: {', '.join(names)}"
                )
            row = 0
            for batch in table.iter_batches(batch_size=1024, columns=[text_key]):
                for cell in batch.column(0):
                    row += 1
                    yield _cell(cell, text_key, f"{source.location}: row {row}")
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"{source.location} is not a readable Parquet file: {_first_line(error)}") from None


def _cell(cell: Any, text_key: str, where: str) -> str | BadRecord:
    try:
        text: str | None = cell.as_py()
    except UnicodeDecodeError:
        return BadRecord(where, f"is not UTF-8 in the column {text_key!r}", text_key)
    return BadRecord(where, f"is null in the column {text_key!r}", text_key) if text is None else text


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
