"""A command imports what it needs and nothing else: counts of modules, never seconds."""

import inspect
import re
import subprocess
import sys
from importlib import import_module

import pytest

from fourfold.cli.app import COMMANDS, summary

HEAVY = {"cyclopts", "rich", "pydantic", "numpy", "torch", "transformers", "fsspec", "tokenizers"}
HEAVY |= {
    f"fourfold.{name}" for name in ("config", "model", "program", "cost", "simulate.step", "plan", "runtime", "train")
}

SIMULATES = {
    "cyclopts",
    "pydantic",
    *(f"fourfold.{name}" for name in ("config", "model", "program", "cost", "simulate.step", "plan")),
    "numpy",  # neighbours are bounded in columns
}


def _loaded(*arguments: str) -> set[str]:
    """Modules of a process that ran the command."""
    script = (
        "import sys; from fourfold.cli.app import run; "
        "assert run(sys.argv[1:]) == 0; print('\\nLOADED', *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return set(done.stderr.rpartition("LOADED")[2].split())


def test_the_version_needs_nothing_but_the_standard_library() -> None:
    loaded = _loaded("--version")
    assert not loaded & HEAVY
    assert len([name for name in loaded if name.startswith("fourfold")]) <= 7


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        (("--help",), {"cyclopts", "rich"}),
        (("list", "presets"), {"cyclopts", "pydantic", "fourfold.config"}),
        (("list", "clusters"), {"cyclopts", "pydantic", "fourfold.config"}),
        (("simulate", "preset:llama3-70b"), SIMULATES),
        (("simulate", "preset:llama3-70b", "--json"), SIMULATES),
    ],
    ids=lambda words: " ".join(sorted(words) if isinstance(words, set) else words),
)
def test_a_command_imports_no_more_than_it_needs(arguments: tuple[str, ...], allowed: set[str]) -> None:
    assert _loaded(*arguments) & HEAVY <= allowed


def test_the_help_has_a_summary_of_every_command() -> None:
    script = "from fourfold.cli.app import run; run(['--help'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    for name in COMMANDS:
        assert re.search(rf" {name}  +{re.escape(summary(name)[:30])}", done.stdout), name


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_the_first_sentence_of_the_docstring(name: str) -> None:
    module, function = COMMANDS[name]
    doc = inspect.getdoc(getattr(import_module(f"fourfold.cli.{module}"), function))
    assert doc is not None
    assert summary(name) == " ".join(doc.split("\n\n")[0].split())
