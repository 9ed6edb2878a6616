"""The last lines of a run: how well it learned, a text that it writes, and what to try next."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fourfold.report.format_goodput import goodput_lines
from fourfold.report.run_state import RunState
from fourfold.report.units import format_count, format_nats


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
        words = [program_word(), "train", str(self.run_file), *stated.values()]
        words += ["--ranks", str(self.ranks)] if self.ranks is not None else []
        folder = out if out is not None else self.out
        words += ["--out", str(folder)] if folder is not None else []
        return shlex.join([*words, *self.flags])


def program_word() -> str:
    """How this program is called from here: its name where the shell finds it, else its path (`.venv/bin/fourfold`)."""
    called = Path(sys.argv[0])
    if called.name != "fourfold" or shutil.which("fourfold") is not None:
        return "fourfold"
    return os.path.relpath(called)


def final_lines(state: RunState, command: Command, report: str) -> list[str]:
    """The validation loss beside the corpus's unigram entropy, the sample, the folder, and the next commands. `report`: the run's
    page."""
    info = state.info
    lines = []
    validation = state.validation
    if validation is not None:
        lines.append(f"validation loss  {format_nats(validation[0], info.bytes_per_token)}")
    if info.unigram_entropy_nats is not None:
        entropy = format_nats(info.unigram_entropy_nats, info.bytes_per_token)
        lines.append(f"unigram entropy  {entropy} (knowing only how often each token occurs)")
    tokens = state.number("tokens")
    if tokens is not None:
        lines.append(f"trained on       {format_count(tokens)} tokens in {state.step} steps")
    skipped = int(state.number("skipped_steps") or 0)
    if skipped:
        lines.append(f"skipped          {skipped} steps, whose gradients were not finite")
    if any(event.get("event") == "failure" for event in state.new_events):
        lines += [line.replace("goodput  ", "goodput          ", 1) for line in goodput_lines(state.goodput, None)[:1]]
    sample = state.finish.get("sample")
    if isinstance(sample, str) and sample.strip():
        lines += ["", "A sample that the model wrote:", *("  " + line for line in sample.strip("\n").splitlines())]
    lines += [
        "",
        f"run folder       {info.folder}",
        f"report           {report}",
        "",
        "Try next:",
        *_next_commands(state, command),
    ]
    return lines


def _next_commands(state: RunState, command: Command) -> list[str]:
    folder, total, fourfold = state.info.folder, state.info.num_steps, program_word()
    pairs = [
        ("where the time of a step goes, and what it should take", shlex.join([fourfold, "report", str(folder)])),
        ("let the model write", shlex.join([fourfold, "sample", str(folder), "--prompt", "def "])),
        ("see the step's program and its proof", shlex.join([fourfold, "show", str(folder), "--verify"])),
        (
            "the same run under another layout: its losses agree",
            command.line("layout.zero=1", out=folder.with_name(folder.name + "-zero1")),
        ),
        ("go on from here", command.line(f"batch.steps={2 * total}")),
        ("load it in transformers", shlex.join([fourfold, "export", str(folder), "--out", f"{folder}-hf"])),
    ]
    return [f"  {line}\n      {meaning}" for meaning, line in pairs]
