"""Transcripts in the documentation: runs the commands of a page's marked blocks and holds the page to what they print.

    python -m tools.transcripts docs/first-hour.md            # what differs; exit 1 if anything does
    python -m tools.transcripts docs/first-hour.md --write    # writes the page as it should be

A marked block is an indented block after a line `<!-- run LINES -->`. It begins with `$ COMMAND`; a command goes on over lines that
begin with `> `. LINES says which lines of the output are shown, as `1-4 9 12-`; all, where it says nothing. Between parts that are
shown stands `...`. `exit N` in LINES states the exit code, where it is not 0. The commands of a page run in order, in bash, in one
empty folder; `$ROOT` is the repository's. A line of output that tells how long something took must not be shown: it differs from
run to run.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

MARK = re.compile(r"<!-- run(?P<shown>[0-9 \-]*)(?:exit (?P<code>\d+))? *-->")
ROOT = Path(__file__).resolve().parent.parent
INDENT, COLUMNS, LIMIT_SECONDS = "    ", 110, 300


@dataclass(frozen=True)
class Block:
    """A marked block of a page. `first`, `end`: its lines; `shown`: spans of output lines, from 1 on, the last one open with 0."""

    first: int
    end: int
    command: str
    typed: tuple[str, ...]
    shown: tuple[tuple[int, int], ...]
    code: int


def blocks_of(lines: list[str]) -> list[Block]:
    """The marked blocks, in order. Raises `ValueError` for a mark without a block."""
    found = []
    for index, line in enumerate(lines):
        mark = MARK.fullmatch(line.strip())
        if mark is None:
            continue
        first = index + 1
        while first < len(lines) and not lines[first].strip():
            first += 1
        end = first
        while end < len(lines) and (lines[end].startswith(INDENT) or not lines[end].strip()):
            end += 1
        while end > first and not lines[end - 1].strip():
            end -= 1
        inside = [each[len(INDENT) :] for each in lines[first:end]]
        if not inside or not inside[0].startswith("$ "):
            raise ValueError(f"line {index + 1}: no block that begins with '$ ' follows the mark")
        typed = [inside[0]]
        for each in inside[1:]:
            if not each.startswith("> "):
                break
            typed.append(each)
        command = "\n".join(each[2:] for each in typed)
        found.append(Block(first, end, command, tuple(typed), _spans(mark["shown"]), int(mark["code"] or 0)))
    return found


def _spans(text: str) -> tuple[tuple[int, int], ...]:
    spans = []
    for word in text.split():
        first, dash, last = word.partition("-")
        spans.append((int(first), int(last) if last else 0 if dash else int(first)))
    return tuple(spans) or ((1, 0),)


def run(block: Block, folder: Path) -> list[str]:
    """The output of the block's command, with its messages where it is to fail. Raises `ValueError` where it ends with another code
    than stated."""
    programs = folder / ".bin"
    programs.mkdir(exist_ok=True)
    for name, words in (("fourfold", "-m fourfold "), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        (programs / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "COLUMNS": str(COLUMNS), "TERM": "dumb"}
    environment["ROOT"] = str(ROOT)
    command = ["bash", "-c", block.command]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    if done.returncode != block.code:
        raise ValueError(
            f"$ {block.command}\nexit code {done.returncode}, stated {block.code}:\n{done.stdout}{done.stderr}"
        )
    text = done.stdout + (done.stderr if block.code else "")
    return text.rstrip("\n").split("\n") if text.strip() else []


def shown(output: list[str], spans: tuple[tuple[int, int], ...]) -> list[str]:
    """The lines that a page shows, with `...` for what it leaves out."""
    found, at = [], 0
    for first, last in spans:
        if first - 1 > at:
            found.append("...")
        at = last or len(output)
        found += output[first - 1 : at]
    return [*found, "..."] if at < len(output) else found


def true_page(page: Path) -> str:
    """The page with the output that its commands print today."""
    lines = page.read_text(encoding="utf-8").split("\n")
    with tempfile.TemporaryDirectory() as folder:
        texts = [(block, shown(run(block, Path(folder)), block.shown)) for block in blocks_of(lines)]
    for block, text in reversed(texts):
        lines[block.first : block.end] = [(INDENT + each).rstrip() for each in (*block.typed, *text)]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    different = 0
    for page in options.pages:
        before, after = page.read_text(encoding="utf-8"), true_page(page)
        if before == after:
            continue
        different += 1
        if options.write:
            page.write_text(after, encoding="utf-8")
        pairs = zip(before.split("\n"), after.split("\n"), strict=False)
        changed = [f"- {old}\n+ {new}" for old, new in pairs if old != new]
        print(
            f"{page}: {'written' if options.write else 'differs from what its commands print'}\n"
            + "\n".join(changed[:20])
        )
    return 1 if different and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
