"""Documents out of one file: plain text, JSON Lines or Parquet, as it is or compressed."""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal

from fourfold.config import UserError
from fourfold.data.source import MAX_DOCUMENT_BYTES, Source, open_decompressed, open_stored

Kind = Literal["text", "jsonl", "parquet"]


class NotTextError(Exception):
    """The file is no text: it holds a NUL byte or is not UTF-8. Such a file is skipped and counted."""


def read_documents(source: Source, text_key: str) -> Iterator[str]:
    """The documents of one file in order; empty ones are left out.

    `.jsonl`, `.ndjson`, and `.json.gz` / `.json.zst` hold one object a line; so does a bare `.json` whose first line is
    an object that holds `text_key` or is followed by another line. `.parquet` has a string column `text_key`. Anything
    else is text, with the file as one document. `.gz` and `.zst` may follow any name but Parquet's.

    Raises `NotTextError` for a binary text file, `UserError` naming file and line for everything else.
    """
    kind, compression = _kind_of(source, text_key)
    if kind == "parquet":
        documents = _parquet(source, text_key)
    elif kind == "jsonl":
        documents = _json_lines(source, compression, text_key)
    else:
        documents = _text(source, compression)
    return (document for document in documents if document)


def _kind_of(source: Source, text_key: str) -> tuple[Kind, str]:
    name = source.path.lower()
    compression = next((suffix for suffix in (".gz", ".zst") if name.endswith(suffix)), "")
    name = name.removesuffix(compression)
    if name.endswith(".parquet"):
        return "parquet", compression
    if name.endswith((".jsonl", ".ndjson")) or (
        name.endswith(".json") and (compression or _is_json_lines(source, text_key))
    ):
        return "jsonl", compression
    return "text", compression


def _is_json_lines(source: Source, text_key: str) -> bool:
    """Tells a file of JSON objects, one a line, from one JSON value, which is kept as text."""
    with open_stored(source) as stream:
        first, second = stream.readline(), stream.readline(1 << 20)
    try:
        record = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and (text_key in record or bool(second.strip()))


def _text(source: Source, compression: str) -> Iterator[str]:
    with open_decompressed(source, compression) as stream:
        content = stream.read(MAX_DOCUMENT_BYTES + 1) if compression else stream.read()
    _check_length(content, source.location, compression)
    if b"\0" in content:
        raise NotTextError(source.location)
    try:
        yield content.decode("utf-8")
    except UnicodeDecodeError:
        raise NotTextError(source.location) from None


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


def _json_lines(source: Source, compression: str, text_key: str) -> Iterator[str]:
    with open_decompressed(source, compression) as stream:
        for number, line in enumerate(_lines(stream, compression), start=1):
            if not line.strip():
                continue
            where = f"{source.location}: line {number}"
            _check_length(line, where, compression)
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where} is not valid JSON ({error}); each line must be one object") from None
            yield _text_of(record, text_key, where)


def _text_of(record: Any, text_key: str, where: str) -> str:
    example = f'a line that works: {{"{text_key}": "some text"}}'
    if not isinstance(record, dict):
        raise UserError(f"{where} holds {type(record).__name__}, not an object; {example}")
    if text_key not in record:
        keys = ", ".join(sorted(map(str, record))) or "none"
        raise UserError(f"{where} has no key {text_key!r} (data.text_key); its keys: {keys}; {example}")
    text = record[text_key]
    if not isinstance(text, str):
        raise UserError(f"{where}: key {text_key!r} holds {type(text).__name__}, not a string; {example}")
    return _without_lone_surrogates(text)


def _without_lone_surrogates(text: str) -> str:
    """JSON can spell half of a surrogate pair, which UTF-8 cannot hold: each becomes U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _parquet(source: Source, text_key: str) -> Iterator[str]:
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
            for batch in table.iter_batches(batch_size=1024, columns=[text_key]):
                yield from (text for text in batch.column(0).to_pylist() if text)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"{source.location} is not a readable Parquet file: {_first_line(error)}") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
