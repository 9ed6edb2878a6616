"""Documents out of one file: plain text, JSON or Parquet, as it is or compressed."""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO, Literal

from fourfold.config import UserError
from fourfold.data.compression import COMPRESSIONS, MAX_DOCUMENT_BYTES, open_content
from fourfold.data.json_values import JsonSyntaxError, JsonValues
from fourfold.data.records import BadRecord, record_of_line, text_of
from fourfold.data.source import Source, UnreadError, open_stored

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
    (0, b"ARROW1", "Arrow"),
    (0, b"%PDF", "PDF"),
    (0, b"SQLite format 3", "an SQLite database"),
)
"""(offset, bytes there, what such a file is)."""


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
