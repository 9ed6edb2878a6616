"""One record of a file: its text, or what is wrong with it in the words of its format."""

import json
from dataclasses import dataclass
from typing import Any

from fourfold.config import UserError

_SHOWN_KEYS, _SHOWN_CHARS = 10, 60


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
