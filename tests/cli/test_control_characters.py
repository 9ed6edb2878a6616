"""Control characters of files, and of what a model writes, never reach a terminal: they are shown as escapes."""

import io
import json
import os
import pty
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
from fourfold.cli.app import COMMANDS
from fourfold.plain_text import PlainStream, own_codes, plain, plain_output
from fourfold.report.display import Terminal
from tests.support.left_run import LOOKS, leave_run
from tests.support.spoiled import CONTROL

ALL = "".join(map(chr, (*range(32), *range(127, 160))))
"""C0, DEL and C1."""


def obeyed(text: str) -> set[str]:
    """Characters of a text that a terminal obeys, but line ends and tabs."""
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"} | ({"\u202e"} & set(text))


def test_every_character_that_a_terminal_obeys_is_shown() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    assert obeyed(every) >= set(ALL) - {"\n", "\t"}
    assert not obeyed(plain(every))
    assert plain("a\r\nb\tc é 漢 \N{NO-BREAK SPACE}\n") == "a\nb\tc é 漢 \N{NO-BREAK SPACE}\n"
    assert json.loads(plain(json.dumps(CONTROL, ensure_ascii=False))) == CONTROL


def test_what_is_printed_is_shown_whoever_prints() -> None:
    out, before = io.StringIO(), sys.stdout
    sys.stdout = out
    try:
        with plain_output(), plain_output():  # within one another too
            print(ALL, CONTROL)
            print(CONTROL, file=sys.stderr)
            assert own_codes(sys.stdout) is out
        assert sys.stdout is out
    finally:
        sys.stdout = before
    assert out.getvalue()
    assert not obeyed(out.getvalue())
    assert not isinstance(sys.stderr, PlainStream)


def test_a_terminal_that_is_drawn_on_is_sent_codes_of_the_drawing_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.panel import Panel
    from rich.text import Text

    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with plain_output():
        Terminal(force_terminal=True, color_system="standard", width=200).print(
            Panel(Text(f"a {CONTROL}", style="red"))
        )
        drawn = own_codes(sys.stdout).getvalue()  # type: ignore[attr-defined]
    assert "\x1b[31m" in drawn
    assert not obeyed(drawn.replace("\x1b[31m", "").replace("\x1b[0m", ""))


READS = {
    **LOOKS,
    "data": ["data", "run.toml"],
    "data --json": ["data", "run.toml", "--json"],
    "sample": ["sample", "run", "--tokens", "100", "--temperature", "100"],
    "checkpoint": ["checkpoint", "list", "run"],
    "train": ["train", "run.toml", "batch.steps=12", "--ranks", "2", "--out", "run"],
    "explore": ["explore", "run", "--port", "70000"],
    "cluster": ["cluster", "hostile.toml"],
    "list": ["list", "clusters"],
    "import": ["import", "hostile", "--out", "imported.toml"],
    "calibrate": ["calibrate", "--out", "hostile.toml"],
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a run whose corpus and events hold control characters, and files that cannot be read because of some."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "corpus").mkdir()
    (folder / "corpus" / "a.txt").write_text(
        f"{CONTROL} {ALL}".replace("\0", "") * 50
    )  # with zero bytes it were no text
    leave_run(folder)
    events = [
        {
            "time": 1e9,
            "event": kind,
            "rank": CONTROL,
            "step": 5,
            "ratio": 2.0,
            **dict.fromkeys(("message", "cause", "path"), CONTROL),
        }
        for kind in ("failure", "restart", "straggler", CONTROL, "save_failed")
    ]
    with open(folder / "run" / "events.jsonl", "a") as file:
        file.write("".join(json.dumps(event) + "\n" for event in events))
    (folder / "hostile.toml").write_text(f"[{json.dumps(CONTROL)}]\n")
    (folder / "hostile").mkdir()
    (folder / "hostile" / "config.json").write_text(json.dumps({"model_type": CONTROL}))
    return folder


def test_every_command_is_tried() -> None:
    assert {name.split()[0] for name in READS} == set(COMMANDS)


@pytest.mark.parametrize("name", READS)
def test_no_command_prints_them(name: str, hostile: Path, fourfold: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(hostile)
    result = fourfold(*READS[name])
    assert result.out + result.err
    assert not obeyed(result.out + result.err)
    if name.endswith("--json"):
        json.loads(result.out)


def test_doctor_shows_the_words_of_a_message(hostile: Path, fourfold: Callable) -> None:
    result = fourfold("doctor", hostile / "run")
    assert "\\u001b]0;title\\u0007" in result.out
    assert result.code == 0


@pytest.mark.rest
def test_a_terminal_sees_help_in_colour_and_a_run_without_their_codes(hostile: Path) -> None:
    """On a real terminal, where `train` draws a panel."""
    helped, drawn = on_terminal("train", "--help"), on_terminal(*READS["train"], folder=hostile)
    assert "\x1b[1m" in helped
    assert "\\u001b" not in helped
    assert "\x1b[" in drawn
    assert not {"\x07", "\x9b"} & set(drawn)
    assert "\x1b]" not in drawn


def on_terminal(*words: str, folder: Path | None = None) -> str:
    """Everything that a command sends to a terminal."""
    here, there = pty.openpty()
    command = [sys.executable, "-m", "fourfold", *words]
    process = subprocess.Popen(command, stdout=there, stderr=there, stdin=there, cwd=folder)
    os.close(there)
    told = b""
    try:
        while piece := os.read(here, 1 << 16):
            told += piece
    except OSError:  # the last process that had it open has ended
        pass
    assert process.wait() in (0, 1, 2)
    os.close(here)
    return told.decode(errors="replace")
