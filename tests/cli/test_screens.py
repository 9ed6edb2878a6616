"""Screens: lines go on below their text, a terminal gets its width and colours, plan and simulate begin with the same lines."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from fourfold.report.screen import fitted
from tests.cli.planning import SMALL


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("short enough", ["short enough"]),
        (
            "label      one two three four five six seven eight nine ten",
            ["label      one two three four five six", "           seven eight nine ten"],
        ),
        (
            "  1   4.2 s  tp 4 x pp 2 x dp 8, ZeRO-2, recompute none",
            ["  1   4.2 s  tp 4 x pp 2 x dp 8, ZeRO-2,", "             recompute none"],
        ),
        (
            "no columns at all, but far more words than fit",
            ["no columns at all, but far more words", "than fit"],
        ),
    ],
)
def test_a_long_line_goes_on_below_its_last_column(line: str, lines: list[str]) -> None:
    assert fitted(line, 40) == lines


def _on_terminal(columns: int, *arguments: str) -> str:
    """Everything that the command writes to a terminal of so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    hidden = ("COLUMNS", "LINES", "NO_COLOR")
    environment = {**{k: v for k, v in os.environ.items() if k not in hidden}, "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [sys.executable, "-m", "fourfold", *arguments],
        stdout=follower,
        stderr=follower,
        stdin=follower,
        env=environment,
    )
    os.close(follower)
    written = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    os.close(leader)
    process.wait()
    return written.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 200])
def test_a_terminal_gets_its_width_and_colours(columns: int) -> None:
    shown = _on_terminal(
        columns, "simulate", "preset:llama3-405b-8k", "layout.recompute=none", "layout.microbatch_sequences=4"
    )
    assert "\x1b[1;31mDOES NOT FIT" in shown or "\x1b[31mDOES NOT FIT" in shown
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert min(0.8 * columns, 120) < max(map(len, plain)) <= columns
    assert [line.split()[0] for line in plain[:4]] == ["memory", "step", "time", "change"]


def test_plan_begins_with_the_lines_of_simulate(fourfold) -> None:
    planned = fourfold("plan", *SMALL, "--out", "planned.toml")
    assert planned.code == 0
    simulated = fourfold("simulate", "planned.toml")
    assert simulated.code == 0
    assert planned.out.splitlines()[:4] == simulated.out.splitlines()[:4]
    assert "\x1b[" not in planned.out + simulated.out
