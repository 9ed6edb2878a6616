"""Lines on a screen: as wide as it is, long ones continued under their text, the verdict in colour where there is a terminal."""

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

NARROW, PIPED = 110, 160
"""Columns below which tables are shortened; columns where there is no terminal and COLUMNS says nothing."""
_LEAST_TEXT = 24
_KEPT = "\N{NO-BREAK SPACE}"
"""Between a number and its per cent, where no line ends."""
_STYLES = (
    (r"^(memory|step|time|change)  +", "bold"),
    (r"\b(surely|likely) fits\b", "bold green"),
    (r"\b(may fit|unlikely fits)\b", "bold yellow"),
    (r"DOES NOT FIT|^idle:|^pp \d+ +\S+ \S+ +[1-9]\d{2,}\.\d %", "bold red"),
    (r"^(where the \w+ go|communication of a device|device|the step is limited|best layout).*", "bold"),
)


def columns() -> int:
    """Columns of the terminal, or of COLUMNS."""
    return max(40, shutil.get_terminal_size((PIPED, 24)).columns)


def fitted(line: str, width: int) -> list[str]:
    """The line, its last column of text continued below itself where it is too long."""
    if len(line) <= width:
        return [line]
    spaces = [match.end() for match in re.finditer(r"(^| ) +", line)]
    start = max((end for end in spaces if width - end >= _LEAST_TEXT), default=0)
    text = line[start:].replace(" %", f"{_KEPT}%")
    parts = textwrap.wrap(text, width - start, break_long_words=False, break_on_hyphens=False)
    first, *others = [part.replace(_KEPT, " ") for part in parts]
    return [line[:start] + first, *(" " * start + part for part in others)]


def print_screen(lines: Sequence[str]) -> None:
    """Prints the lines, fitted to the screen."""
    width = columns()
    shown = [part for line in lines for part in fitted(line, width)]
    if not sys.stdout.isatty():
        print("\n".join(shown))
        return
    from rich.text import Text

    from fourfold.report.display import Terminal

    console = Terminal(markup=False)
    for line in shown:
        text = Text(line)
        for pattern, style in _STYLES:
            text.highlight_regex(pattern, style)
        console.print(text, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)
