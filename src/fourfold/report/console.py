"""A terminal that is drawn on, and progress of what takes a while in the launcher itself: a spinner, or plain lines."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from fourfold.plain_text import own_codes, plain


class Terminal(Console):
    """A console whose codes are its own: control characters of the text that it shows are escaped. `errors`: on stderr."""

    def __init__(self, errors: bool = False, **options: Any) -> None:
        super().__init__(file=own_codes(sys.stderr if errors else sys.stdout), highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(plain(segment.text), segment.style)


@contextmanager
def preparing(what: str) -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a line of text."""
    console = Terminal(markup=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda text: print(text, flush=True)
        return
    with console.status(what):
        yield console.print
