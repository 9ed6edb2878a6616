"""Texts of an export: a shell script (what is to be filled in, the environment, the files, the command), and Python files (calls
with keyword arguments, laid out in lines, and the imports that they need)."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from fourfold.export.job import TrainerJob

Flags = dict[str, object]
"""By flag, without its dashes: True for a switch, a value, or a list of them. A value with `$` is left to the shell."""
WIDTH = 100
STEP = "    "


def script(
    job: TrainerJob,
    where: str,
    command: str,
    flags: Mapping[str, Flags],
    inputs: Mapping[str, str],
    environment: Mapping[str, str | None] | None = None,
    files: Mapping[str, str] | None = None,
    one_node: bool = False,
) -> str:
    """`where`: in which folder it is to be run. `command`: what comes before the flags. `inputs`: variables that a person has
    to set, with what they hold. `environment`: variables to set; None: to unset. `files`: texts by name, in which the shell
    fills in variables. `one_node`: the command starts the others."""
    each = "" if job.nodes == 1 else ", on one node" if one_node else f", on each of the {job.nodes} nodes"
    wanted = {**inputs, **({} if one_node else _rendezvous(job))}
    lines = ["#!/bin/bash", f"# {job.title()}", f"# Run it {where}{each}.", "set -eu"]
    lines += [f': "${{{name}:?{what}}}"' for name, what in wanted.items()]
    for name, value in (environment or {}).items():
        lines.append(f"unset {name}" if value is None else f"export {name}={value}")
    for name, text in (files or {}).items():
        lines += ["", f"cat > {name} <<END", text.rstrip(), "END"]
    groups = {name: group for name, group in flags.items() if group}
    for name, group in groups.items():
        lines += ["", f"{name}=(", *_wrapped(flag_texts(group)), ")"]
    arrays = " ".join(f'"${{{name}[@]}}"' for name in groups)
    return "\n".join([*lines, "", f"{command} \\\n  {arrays}" if arrays else command])


def steps_input(job: TrainerJob) -> dict[str, str]:
    """The length of the run, where it states none."""
    return {} if job.steps is not None else {"STEPS": "optimizer steps of the run"}


def torchrun(job: TrainerJob, program: str) -> str:
    """`torchrun` on every device of every node, up to the program."""
    if job.nodes == 1:
        return f"torchrun --standalone --nproc-per-node {job.node_devices} {program}"
    place = '--node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "${MASTER_PORT:-29500}"'
    return f"torchrun --nnodes {job.nodes} --nproc-per-node {job.node_devices} {place} {program}"


def flag_texts(flags: Flags, prefix: str = "--") -> list[str]:
    """One text a flag, with its values, quoted for the shell."""
    words = []
    for name, value in flags.items():
        values = [] if value is True else value if isinstance(value, list | tuple) else [value]
        words.append(" ".join([prefix + name, *map(_quoted, values)]))
    return words


def number(value: float) -> str:
    """A number as short as ten digits allow: 0.1, 3e-05, 500000."""
    return f"{value:.10g}"


def _quoted(value: object) -> str:
    text = number(value) if isinstance(value, float) else str(value)
    return f'"{text}"' if "$" in text else shlex.quote(text)


def _wrapped(words: list[str]) -> list[str]:
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > WIDTH:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else f"  {word}"
    return lines


def _rendezvous(job: TrainerJob) -> dict[str, str]:
    if job.nodes == 1:
        return {}
    return {"NODE_RANK": f"the number of this node, 0 to {job.nodes - 1}", "MASTER_ADDR": "the address of node 0"}


@dataclass(frozen=True)
class Call:
    """A call. Arguments that are texts are expressions."""

    name: str
    arguments: Mapping[str, object]


def expression(value: object, indent: int = 0, before: int = 0) -> str:
    """A value in Python, over several lines where `before` characters and one line do not hold it. `indent`: of its lines."""
    if isinstance(value, float):
        text = number(value)
        return text if set(text) & set(".e") else f"{text}.0"
    if isinstance(value, Call):
        opened, closed = f"{value.name}(", ")"
        named = [(f"{key}=", each) for key, each in value.arguments.items()]
    elif isinstance(value, list):
        opened, closed = "[", "]"
        named = [("", each) for each in value]
    else:
        return str(value)
    flat = opened + ", ".join(name + expression(each, 0, -10_000) for name, each in named) + closed
    if before + len(flat) + len(STEP) * indent < WIDTH:
        return flat
    inner = STEP * (indent + 1)
    lines = [f"{inner}{name}{expression(each, indent + 1, len(name) + 1)},\n" for name, each in named]
    return f"{opened}\n{''.join(lines)}{STEP * indent}{closed}"


def assigned(name: str, value: object) -> list[str]:
    """`NAME = value`."""
    return [f"{name} = {expression(value, 0, len(name) + 3)}"]


def function(head: str, value: object) -> list[str]:
    """`def head: return value`, with empty lines around it."""
    return ["", "", f"def {head}:", f"{STEP}return {expression(value, 1, len('return '))}"]


def with_imports(lines: list[str], modules: Mapping[str, str]) -> str:
    """The file, after imports of the names that it uses. `modules`: where each is; "": `import NAME`."""
    text = "\n".join(lines)
    used = [name for name in modules if re.search(rf"(?<![\w.]){name}\b", text)]
    plain = [f"import {name}" for name in used if not modules[name]]
    by_module: dict[str, list[str]] = {}
    for name in used:
        if modules[name]:
            by_module.setdefault(modules[name], []).append(name)
    stated = [f"from {module} import {', '.join(names)}" for module, names in by_module.items()]
    return "\n".join([*plain, *stated, "", text])
