"""`fourfold`: finds the subcommand, and turns every error that a person can cause into one message and an exit code."""

import os
import sys
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError

from fourfold import __version__
from fourfold.cli.calibrate import calibrate
from fourfold.cli.data import data
from fourfold.cli.huggingface import export, import_
from fourfold.cli.plan import plan
from fourfold.cli.report import report
from fourfold.cli.sample import sample
from fourfold.cli.show import show
from fourfold.cli.simulate import simulate
from fourfold.cli.train import train
from fourfold.cli.validate import validate
from fourfold.config import UserError

USAGE, FAILURE, INTERRUPTED = 2, 1, 130


def build_app() -> App:
    """The command line. What a subcommand needs beyond the planner's half, torch above all, it imports when it runs."""
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
    commands: tuple[Callable[..., int], ...] = (
        train,
        report,
        plan,
        simulate,
        show,
        calibrate,
        validate,
        data,
        sample,
        export,
    )
    for order, command in enumerate(commands):
        app.command(command, sort_key=order)
    app.command(import_, name="import")
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command and leaves with its exit code: 0 done, 1 failed, 2 usage, 130 interrupted."""
    try:
        code = run(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # `fourfold show ... | head`: the reader has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = FAILURE
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of a command line; messages go to stderr."""
    try:
        result = build_app()(
            arguments or ["--help"], exit_on_error=False, print_error=False, result_action="return_value"
        )
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
