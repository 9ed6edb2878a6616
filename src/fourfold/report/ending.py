"""The last lines of a run: how well it learned, a text that it writes, what to try next; and where its ranks stand."""

import os
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fourfold.config.errors import shortened
from fourfold.report.format_campaign import goodput_lines
from fourfold.report.run_state import RunState
from fourfold.report.units import format_count, format_nats
from fourfold.results.diagnosis import Diagnosis


@dataclass(frozen=True)
class Command:
    """The `fourfold train` command that was given, to be given again with changes. `out` None: the default one. `flags`: more."""

    run_file: Path
    overrides: Sequence[str] = ()
    ranks: int | None = None
    out: Path | None = None
    flags: Sequence[str] = ()

    def line(self, *overrides: str, out: Path | None = None) -> str:
        """The command with further overrides, and another folder where `out` is given."""
        stated = {key: text for text in (*self.overrides, *overrides) if (key := text.partition("=")[0])}
        words = ["train", str(self.run_file), *stated.values()]
        words += ["--ranks", str(self.ranks)] if self.ranks is not None else []
        folder = out if out is not None else self.out
        words += ["--out", str(folder)] if folder is not None else []
        return _command(*words, *self.flags)


def program_word() -> str:
    """How this program is called from here: `fourfold` where the shell finds this one by that name, else its path
    (`.venv/bin/fourfold`), or `PYTHON -m fourfold`."""
    called, found = Path(sys.argv[0]), shutil.which("fourfold")
    if called.name == "__main__.py" and found is None:
        return shlex.join([_short(Path(sys.executable)), "-m", "fourfold"])
    if called.name != "fourfold" or (found is not None and os.path.realpath(found) == os.path.realpath(called)):
        return "fourfold"
    return shlex.quote(_short(called))


def _short(path: Path) -> str:
    """The path from here, or from the root where that is shorter; with a slash, so that the shell looks nowhere else."""
    relative = os.path.relpath(path)
    shorter = min(relative, os.path.abspath(path), key=len)
    return shorter if os.sep in shorter else os.path.join(os.curdir, shorter)


def final_lines(state: RunState, command: Command, report: str) -> list[str]:
    """The validation loss beside the loss of a unigram model, the sample, the next commands, the folder, and the file to open.
    `report`: the run's page, or why there is none."""
    info = state.info
    lines = []
    validation = state.validation
    if validation is not None:
        lines.append(f"validation loss  {format_nats(validation[0], info.bytes_per_token)}")
    for name, loss in state.validation_losses.items():
        lines.append(f"  of {name}: {format_nats(loss, None)}")
    if info.unigram_entropy_nats is not None:
        entropy = format_nats(info.unigram_entropy_nats, info.bytes_per_token)
        lines.append(f"unigram loss     {entropy} (knowing only how often each token occurs)")
    tokens = state.number("tokens")
    if tokens is not None:
        lines.append(f"trained on       {format_count(tokens)} tokens in {state.step} steps")
    skipped = int(state.number("skipped_steps") or 0)
    if skipped:
        lines.append(f"skipped          {skipped} steps, whose gradients were not finite")
    if any(event.get("event") == "failure" for event in state.new_events):
        lines += [line.replace("goodput  ", "goodput          ", 1) for line in goodput_lines(state.goodput, None)[:1]]
    sample = state.sample.get("text", state.finish.get("sample"))
    if isinstance(sample, str) and sample.strip():
        lines += ["", "A sample that the model wrote:", *("  " + line for line in sample.strip("\n").splitlines())]
    elif (reason := str(state.sample.get("message") or "")) and state.finish:
        lines += ["", f"No sample: {reason}"]
    opened = "" if report.startswith("none") else "  (open it in a browser)"
    return [
        *lines,
        "",
        "Try next:",
        *_next_commands(state, command),
        "",
        f"run folder       {info.folder}",
        f"report           {report}{opened}",
    ]


def _next_commands(state: RunState, command: Command) -> list[str]:
    folder = state.info.folder
    pairs = [
        ("let the model write", _command("sample", str(folder), "--prompt", "def ")),
        ("where the time of a step goes, and what it should take", _command("report", str(folder))),
        (
            "the same run under another layout: its losses agree",
            command.line("layout.zero=1", out=folder.with_name(folder.name + "-zero1")),
        ),
    ]
    return [f"  {line}\n      {meaning}" for meaning, line in pairs]


def _command(*words: str) -> str:
    """A command of this program, as the shell takes it."""
    return f"{program_word()} {shlex.join(words)}"


_SHOWN_CALLS, _SHOWN_LETTERS = 4, 2_000
_STATES = {"R": "runs", "S": "sleeps", "D": "waits for a device", "T": "is stopped", "t": "is traced", "Z": "has ended"}


def diagnosis_lines(found: Diagnosis) -> list[str]:
    """The lines of `fourfold doctor`."""
    if found.verdict is not None:
        lines = [found.verdict.message]
        if len(found.chain) > 1:
            lines.append("chain: " + ", which waits for ".join(f"rank {rank}" for rank in found.chain))
    elif found.alive:
        lines = ["all ranks get on" if found.moving else "the ranks are at their end"]
    else:
        lines = ["no rank of this run lives on this machine; where each was last seen:"]
    lines.append("")
    for each in found.ranks:
        state = f" ({_STATES.get(each.state, each.state)}, process {each.pid})" if each.state else ""
        lines.append(f"rank {each.rank}{state}: {each.place}, {each.seconds:.1f} s ago")
        if each.waits_for:
            members = ", ".join(f"rank {member} ({group})" for member, group in each.waits_for[:_SHOWN_CALLS])
            lines.append(f"  waits for {members}")
        lines += [f"  {call}" for call in each.calls[:_SHOWN_CALLS]]
        lines += [f"  {line}" for line in each.native.splitlines()[:20]]
    if found.events:
        lines += ["", "events"]
    for event in found.events:
        clock = time.strftime("%H:%M:%S", time.localtime(event.get("time") or 0.0))
        rank = f" rank {shortened(event['rank'])}" if "rank" in event else ""
        message = "\n    ".join(str(event.get("message") or "")[:_SHOWN_LETTERS].splitlines())
        at = f" at step {event['step']}" if event.get("step") is not None else ""
        lines.append(f"  {clock} {event['event']}{rank}{at}{': ' if message else ''}{message}")
    return lines
