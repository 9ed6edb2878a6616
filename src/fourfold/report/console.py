"""Progress of what takes a while in the launcher itself: a spinner on a terminal, plain lines elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def preparing(what: str) -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a line of text."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        yield lambda text: print(text, flush=True)
        return
    with console.status(what):
        yield console.print
