"""The reference of the commands: what each prints for `--help`, as it prints it."""

import contextlib
import io
from pathlib import Path

from rich.console import Console

from fourfold.cli.app import COMMANDS, build_app

_WIDTH = 100
_INTRODUCTION = """\
# Commands

Each command as its `--help` describes it. Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted. With `--json` a command
prints one JSON document on standard output and nothing else. This page is written by the commands themselves whenever the site
is built.
"""


def write(path: Path) -> None:
    """The page, into `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(), encoding="utf-8")


def page() -> str:
    """The page's text."""
    parts = [_INTRODUCTION, "```text", help_of("--help"), "```", ""]
    for name in COMMANDS:
        parts += [f"## fourfold {name}", "", "```text", help_of(name, "--help"), "```", ""]
    return "\n".join(parts)


def help_of(*words: str) -> str:
    """Standard output of `fourfold WORDS`, without colours, on a terminal of a fixed width."""
    console = Console(file=io.StringIO(), width=_WIDTH, no_color=True, force_terminal=False)
    with contextlib.redirect_stdout(io.StringIO()):
        build_app(words[0])(list(words), console=console, exit_on_error=False, result_action="return_value")
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().strip("\n").splitlines())
