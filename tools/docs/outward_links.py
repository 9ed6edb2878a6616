"""Links from a page to a file outside of `docs/`, which has no page on the site unless it is listed here."""

import os.path
import re

PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
"""Files of the repository's root, and the page that shows them."""
_LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(#[^)\s]+)?\)")


def without_outward_links(page: str, text: str) -> str:
    """`page`: its name without suffix, relative to `docs/`. A link that leads out of `docs/` becomes its text with the path beside
    it, or a link to the page that shows the file; the others stay."""

    def replaced(match: re.Match[str]) -> str:
        words, target, anchor = match[1], match[2], match[3] or ""
        path = os.path.normpath(os.path.join("docs", os.path.dirname(page), target))
        if path.split("/")[0] == "docs":
            return match[0]
        if path in PAGES:
            return f"[{words}](/{PAGES[path]}{anchor})"
        return words if path in words else f"{words} (`{path}`)"

    return _LINK.sub(replaced, text)
