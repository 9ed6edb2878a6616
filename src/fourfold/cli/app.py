"""`fourfold`: finds the subcommand, and turns every error that a person can cause into one message and an exit code."""

import gc
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from fourfold import __version__
from fourfold.plain_text import PlainStream, own_codes, plain_output
from fourfold.simulate.paused_garbage_collection import without_collection

if TYPE_CHECKING:
    from cyclopts import App
    from rich.console import Console

USAGE, FAILURE, INTERRUPTED = 2, 1, 130
COMMANDS = {
    "train": ("train", "train"),
    "report": ("runs", "report"),
    "doctor": ("runs", "doctor"),
    "plan": ("plan", "plan"),
    "simulate": ("simulate", "simulate"),
    "explore": ("explore", "explore"),
    "compare": ("comparisons", "compare"),
    "show": ("show", "show"),
    "list": ("list", "list_"),
    "cluster": ("machines", "cluster"),
    "calibrate": ("machines", "calibrate"),
    "validate": ("comparisons", "validate"),
    "fit": ("comparisons", "fit"),
    "job": ("job", "job"),
    "data": ("data", "data"),
    "sample": ("runs", "sample"),
    "checkpoint": ("checkpoint", "checkpoint"),
    "export": ("checkpoint", "export"),
    "import": ("checkpoint", "import_"),
}
"""Module and function of each."""
MOST_AT_ONCE = 16
"""Files that a command has open at once while it imports and reads: what it opens beside these it asks for itself."""


def build_app(asked: str) -> "App":
    """The command line. Only the command that is asked for is imported; `--help` reads what the others say of themselves."""
    from cyclopts import App

    app = App(
        name="fourfold",
        version=__version__,
        version_flags=["--version"],
        help=(
            "Plans, runs and shows the pretraining of large language models.\n\n"
            "A run is a TOML file. Every key of it can be overridden on the command line as section.key=value, "
            "for example layout.zero=3 or batch.steps=500. `fourfold COMMAND --help` explains a command.\n\n"
            "First steps: `fourfold show RUN.toml`, then `fourfold train RUN.toml --ranks 4`."
        ),
        end_of_options_delimiter="",
        help_format="plaintext" if asked in ("--help", "-h") else "markdown",  # Markdown takes another half
    )
    for order, (name, (module, function)) in enumerate(COMMANDS.items()):
        path = f"fourfold.cli.{module}"
        if name == asked:
            from fourfold.cli.options import as_command

            app.command(as_command(getattr(import_module(path), function)), name=name, sort_key=order)
        else:
            app.command(f"{path}:{function}", name=name, sort_key=order, help=summary(name))
    return app


def summary(command: str) -> str:
    """The first sentence of a command's docstring, from its source: importing all commands takes most of a second."""
    module, function = COMMANDS[command]
    source = Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    found = re.search(rf'^def {function}\(.*?"""(.+?)(?:\n\n|""")', source, re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and leaves with its exit code: 0 done, 1 failed, 2 usage, 130 interrupted."""
    code = FAILURE
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")  # a locale without our characters is no reason to fail
    sys.stderr = PlainStream(sys.stderr)  # a defect's traceback too
    try:
        code = run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # `fourfold show ... | head`: the reader has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILURE
    except (
        OSError
    ):  # the terminal is gone, or the disk that the text went to is full: the exit code still says how it went
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    gc.freeze()  # the process ends: nothing is gained by a last look at every object for garbage
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of a command line; messages go to stderr. No control characters of what is printed reach a terminal."""
    with plain_output():
        return _run(arguments)


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(__version__)
        return 0
    os.environ.setdefault(
        "PYDANTIC_DISABLE_PLUGINS", "1"
    )  # to look for them reads the metadata of every installed package
    try:
        words = arguments or ["--help"]
        for word in words:
            if not word.isascii() and word.encode(errors="replace") != word.encode(errors="surrogatepass"):
                return _say(f"{word!a} is no UTF-8; what works: names in UTF-8, or PYTHONUTF8=1", USAGE)
        with without_collection():
            app = build_app(words[0])
        if words[0] in COMMANDS:
            from fourfold.config.errors import require_files

            require_files(f"fourfold {words[0]}", MOST_AT_ONCE)
        result = app(
            words, console=_help_console(words), exit_on_error=False, print_error=False, result_action="return_value"
        )
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except Exception as error:
        message, code = _explained(error)
        return _say(message, code)
    return result if isinstance(result, int) else 0


def _help_console(words: list[str]) -> "Console | None":
    """Where help is drawn: it has no text from files, so that its colours are sent."""
    if not {"--help", "-h"} & set(words):
        return None
    from rich.console import Console

    return Console(file=own_codes(sys.stdout))


def _explained(error: Exception) -> tuple[str, int]:
    """The message and the exit code of an error that a person can cause; any other is raised again."""
    from cyclopts import CycloptsError

    from fourfold.cli.usage import usage_message
    from fourfold.config.errors import UserError, is_out_of_memory, open_files_advice

    match error:
        case CycloptsError():
            command = " ".join(("fourfold", *(error.command_chain or ())))
            return f"{usage_message(error, list(COMMANDS))}\nsee {command} --help", USAGE
        case UserError():
            return str(error), error.exit_code
        case ModuleNotFoundError() if (error.name or "").partition(".")[0] != "fourfold":
            works = "pip install 'fourfold[train]'"
            return f"this command needs the package {error.name}, which is not installed; what works: {works}", USAGE
        case ImportError() if cure := open_files_advice(error):
            return f"{error}; {cure}", FAILURE
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            works = open_files_advice(error) or "free the disk or name another place"
            return f"{where}{error.strerror or error}; {works}", FAILURE
        case _ if is_out_of_memory(error):
            told = str(error).rpartition("] ")[2]  # behind the place in torch's own code
            return (
                f"there is too little memory{f' ({told})' if told else ''}; use fewer ranks, or smaller data",
                FAILURE,
            )
    raise error


def _say(message: str, code: int) -> int:
    with suppress(OSError):  # nobody is there to read it
        print(f"error: {message}", file=sys.stderr)
    return code
