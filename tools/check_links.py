"""Checks links: in the repository's Markdown, files and headings exist; the built site does too and loads nothing from elsewhere.

python -m tools.check_links [SITE]
"""

import re
import sys
from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(<?([^)>\s]+)>?\)")
_FENCE = re.compile(r"^(```|~~~|:::).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_INDENTED = re.compile(r"^(?: {4}|\t).*$", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*#*$", re.MULTILINE)
_TARGET = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)
_CSS_URL = re.compile(r"url\(\s*['\"]?(?:https?:)?//|@import\s+['\"](?:https?:)?//")
_GENERATED = "docs/reference/"
_TEMPLATES = "_text.md"
"""The end of the names of files that become pages elsewhere: their links start there."""


def markdown_faults(root: Path) -> list[str]:
    """`FILE: link: what is wrong`, of every Markdown file outside of what is built."""
    faults = []
    for path in sorted(root.rglob("*.md")):
        name = path.relative_to(root).as_posix()
        if name.endswith(_TEMPLATES) or any(
            part.startswith(".") or part in ("_build", "runs", "node_modules") for part in path.relative_to(root).parts
        ):
            continue
        for target in _LINK.findall(_prose(path.read_text(encoding="utf-8"))):
            url = urlsplit(target)
            if url.scheme or target.startswith("//"):
                continue
            start = root / "docs" if url.path.startswith("/") else path.parent
            file = (start / unquote(url.path).lstrip("/")).resolve() if url.path else path
            if file.is_relative_to(root) and file.relative_to(root).as_posix().startswith(_GENERATED):
                continue  # the site's own check knows these
            if not file.exists():
                faults.append(f"{name}: {target}: there is no such file")
            elif url.fragment and file.suffix == ".md" and url.fragment not in _anchors(file):
                faults.append(f"{name}: {target}: the file has no such heading")
    return faults


def _prose(text: str) -> str:
    """Without code."""
    return _CODE.sub("", _INDENTED.sub("", _FENCE.sub("", text)))


@lru_cache(maxsize=512)
def _anchors(path: Path) -> frozenset[str]:
    """The anchors of a Markdown file's headings, as GitHub and MyST make them, and its named targets."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    found: list[str] = _TARGET.findall(text)
    for heading in _HEADING.findall(text):
        slug = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{sum(f == slug for f in found)}")
    return frozenset(found)


class _Page(HTMLParser):
    """A page's anchors, links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = {"", "top"}
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        self.anchors.update(values[key] for key in ("id", "name") if key in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("script", "img", "iframe", "source", "video") and "src" in values:
            self.loaded.append(values["src"])
        elif tag == "link" and "canonical" not in values.get("rel", ""):
            self.loaded.append(values.get("href", ""))


def site_faults(site: Path) -> list[str]:
    """Links without a page or an anchor, and whatever would be loaded from another host."""
    files = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]
    pages = {path.resolve(): _Page(path.read_text(encoding="utf-8")) for path in files}
    faults = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve()).as_posix()
        for target in page.links + page.loaded:
            url = urlsplit(target)
            if url.netloc or url.scheme not in ("", "file"):
                if target in page.loaded and url.scheme != "data":
                    faults.append(f"{name}: loads {target} from elsewhere")
                continue
            file = (path.parent / unquote(url.path)).resolve() if url.path else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists():
                faults.append(f"{name}: {target}: there is no such file")
            elif url.fragment and file in pages and unquote(url.fragment) not in pages[file].anchors:
                faults.append(f"{name}: {target}: the page has no such anchor")
    for path in sorted(site.rglob("*.css")):
        if _CSS_URL.search(path.read_text(encoding="utf-8")):
            faults.append(f"{path.relative_to(site)}: loads a style or font from elsewhere")
    return faults


def main(arguments: list[str]) -> int:
    """Exit code: 0 nothing wrong, 1 faults, which are printed."""
    faults = markdown_faults(ROOT) + [fault for site in arguments for fault in site_faults(Path(site))]
    print("\n".join(faults) if faults else f"links: none broken{' in ' + ', '.join(arguments) if arguments else ''}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
