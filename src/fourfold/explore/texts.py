"""A setup in the forms that a person takes away: a run file, a command line, Python."""

import json
import shlex
from typing import Any

from fourfold.api.inputs import override_texts, readable_config
from fourfold.config import dump_run
from fourfold.explore.setup import Setup


def texts_of(setup: Setup) -> dict[str, Any]:
    """`run_file`: TOML. `command`: for a shell; where the run is no preset it first writes the run file into a temporary one.
    `python`: for `import fourfold`. All three give the document that the page shows."""
    config = readable_config(setup.run_input, setup.stated, trust=False)
    if setup.cluster is not None:
        config = config.on_cluster(setup.cluster)
    run_file = dump_run(config, brief=True)
    return {"run_file": run_file, "command": _command(setup, run_file), "python": _python(setup)}


def _command(setup: Setup, run_file: str) -> str:
    words = ["fourfold", "simulate", shlex.quote(setup.run) if setup.run is not None else '"$run"']
    if setup.run is not None:
        words += [shlex.quote(text) for text in override_texts(setup.stated)]
    options = setup.options
    if setup.run is None:
        options.pop("cluster", None)  # the run file states it
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", shlex.quote(str(value))]
    line = " ".join(words)
    if setup.run is not None:
        return line
    # no line of a run file is END: its strings have no line breaks
    return f"run=$(mktemp --suffix .toml) && cat > \"$run\" <<'END'\n{run_file.rstrip()}\nEND\n{line}\n"


def _python(setup: Setup) -> str:
    sections: dict[str, Any] = {}
    for key, value in setup.stated.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    lines = ["import fourfold as ff", ""]
    if setup.run is None:
        lines += ["run = {", *(f"    {_literal(name)}: {_literal(keys)}," for name, keys in sections.items()), "}"]
        arguments = ["run"]
    else:
        arguments = [_literal(setup.run), *([_literal(setup.stated)] if setup.stated else [])]
    arguments += [f"{name}={_literal(value)}" for name, value in setup.options.items()]
    return "\n".join([*lines, f"result = ff.simulate({', '.join(arguments)})", "print(result)", ""])


def _literal(value: Any) -> str:
    """`repr` of a value, with double quotes."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(each)}' for key, each in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value) if isinstance(value, str) else repr(value)
