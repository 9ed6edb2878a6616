"""`fourfold`: finds the subcommand, and turns every error that a person can cause into one message and an exit code."""

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from cyclopts import App, CycloptsError

from fourfold import __version__
from fourfold.config import UserError
from fourfold.simulate.collection import without_collection

USAGE, FAILURE, INTERRUPTED = 2, 1, 130
COMMANDS = {
    "train": ("train", "train"),
    "report": ("report", "report"),
    "plan": ("plan", "plan"),
    "simulate": ("simulate", "simulate"),
    "show": ("show", "show"),
    "calibrate": ("calibrate", "calibrate"),
    "validate": ("validate", "validate"),
    "fit": ("fit", "fit"),
    "job": ("job", "job"),
    "data": ("data", "data"),
    "sample": ("sample", "sample"),
    "export": ("huggingface", "export"),
    "import": ("huggingface", "import_"),
}
"""Module and function of each."""


def build_app(asked: str) -> App:
    """The command line. The command that is asked for is imported, or all are where each is to be described."""
    described = asked in ("--help", "-h")
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
    )
    for order, (name, (module, function)) in enumerate(COMMANDS.items()):
        path = f"fourfold.cli.{module}"
        command = getattr(import_module(path), function) if described or name == asked else f"{path}:{function}"
        app.command(command, name=name, sort_key=order)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and leaves with its exit code: 0 done, 1 failed, 2 usage, 130 interrupted."""
    try:
        code = run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # `fourfold show ... | head`: the reader has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILURE
    gc.freeze()  # the process ends: nothing is gained by a last look at every object for garbage
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of a command line; messages go to stderr."""
    try:
        words = arguments or ["--help"]
        with without_collection():
            app = build_app(words[0])
        result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        return _say(f"{_first_lower(str(error))}\nsee fourfold --help", USAGE)
    except UserError as error:
        return _say(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "fourfold":
            raise
        return _say(
            f"this command needs the package {error.name}, which is not installed; what works: pip install 'fourfold[train]'",
            USAGE,
        )
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"{where}{error.strerror or error}; free the disk or name another place", FAILURE)
    except MemoryError:
        return _say("there is too little memory; use fewer ranks, or smaller data", FAILURE)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    return result if isinstance(result, int) else 0


def _say(message: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return code


def _first_lower(text: str) -> str:
    return text[:1].lower() + text[1:]
