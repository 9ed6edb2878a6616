"""A setup in the forms that a person takes away: a run file, a command line, Python."""

import shlex
from typing import Any

from fourfold.api.inputs import config_of, override_texts
from fourfold.config import dump_run
from fourfold.explore.setup import Setup


def texts_of(setup: Setup) -> dict[str, Any]:
    """`run_file`: TOML. `command`: a line for a shell; a run that is no preset is named run.toml in it, as the file is to be
    saved. `python`: for `import fourfold`. All three give the document that the page shows."""
    config = config_of(setup.run_input, setup.stated)
    if setup.cluster is not None:
        config = config.on_cluster(setup.cluster)
    return {"run_file": dump_run(config, brief=True), "command": _command(setup), "python": _python(setup)}


def _command(setup: Setup) -> str:
    words = ["fourfold", "simulate", setup.run if setup.run is not None else "run.toml"]
    if setup.run is not None:
        words += [shlex.quote(text) for text in override_texts(setup.stated)]
    options = setup.options
    if setup.run is None:
        options.pop("cluster", None)  # the run file states it
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", shlex.quote(str(value))]
    return " ".join(words)


def _python(setup: Setup) -> str:
    sections: dict[str, Any] = {}
    for key, value in setup.stated.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    lines = ["import fourfold as ff", ""]
    if setup.run is None:
        lines += ["run = {", *(f"    {name!r}: {keys!r}," for name, keys in sections.items()), "}"]
        arguments = ["run"]
    else:
        arguments = [repr(setup.run), *([repr(setup.stated)] if setup.stated else [])]
    arguments += [f"{name}={value!r}" for name, value in setup.options.items()]
    lines.append(f"result = ff.simulate({', '.join(arguments)})")
    lines.append("print(result)")
    return "\n".join(lines).replace("'", '"') + "\n"
