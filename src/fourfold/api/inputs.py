"""The inputs of every API function: a run, its overrides, a cluster, each in the forms that a person has it in."""

import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fourfold.config import RunConfig, UserError, did_you_mean, dump_run, load_run, parse_run
from fourfold.config.beside import spell_alike
from fourfold.config.run_file import apply_overrides, require_trust
from fourfold.hardware import Cluster, has_count, load_cluster, require_count
from fourfold.launch.external import Member, member_of, with_master
from fourfold.launch.run_folder import RUN_FILE

RunInput = str | os.PathLike[str] | Mapping[str, Any] | RunConfig
"""A run file, the folder of a run, `preset:NAME`, the sections as `{"model": {...}, "batch": {...}}`, or a run that was read."""
Overrides = Mapping[str, Any] | Sequence[str]
"""Keys of the run file: `{"layout.tp": 8}`, `{"layout": {"tp": 8}}`, or texts as on the command line, `["layout.tp=8"]`."""
ClusterInput = str | os.PathLike[str] | Cluster
"""`NAME`, `NAME:DEVICES`, a cluster file, or a cluster that `load_cluster` gave."""
Number = str | float
"""A number, or text with a suffix: `"16M"`, `"15.6T"`."""
AS_NEAREST = "model.as_nearest=true"
"""The override that --as-nearest stands for."""
P = ParamSpec("P")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def answers(options: Callable[P, Asked]) -> Callable[[Callable[[Asked], Answer]], Callable[P, Answer]]:
    """Decorates a function of options, which from then on takes the fields of `options` as its arguments."""

    def decorate(answer: Callable[[Asked], Answer]) -> Callable[P, Answer]:
        @wraps(answer)
        def ask(*args: P.args, **kwargs: P.kwargs) -> Answer:
            return answer(options(*args, **kwargs))

        returns = signature(answer).return_annotation
        ask.__signature__ = signature(options).replace(return_annotation=returns)  # type: ignore[attr-defined]
        return ask

    return decorate


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How many ranks are started, where the run lies, and whether it may change."""

    ranks: int | None = None
    """How many processes to start on this machine. Default: its share of those that the layout asks for, or one a CUDA device."""
    out: os.PathLike[str] | str | None = None
    """The run's folder. Default: runs/NAME for a run file NAME.toml."""
    change: bool = False
    """Go on with other values of [optimizer] than the folder's run began with, for example optimizer.lr=1e-4."""
    from_: str | None = None
    """Begin a new run at another's checkpoint, with its optimizer states and counters: RUN@STEP, RUN@NAME of a stage, whose end it
    is, RUN, the newest, or a checkpoint's folder."""
    decay: int | None = None
    """From the newest checkpoint on, let the learning rate fall from where it stands to 0 in so many steps, and end there."""
    allow_other_code: bool = False
    """Go on although the run's newest checkpoint was saved by other code of fourfold than this, or that changes meanwhile."""


@dataclass(frozen=True)
class TrainOptions(LaunchOptions):
    """The arguments of `fourfold.train`."""

    run: RunInput
    overrides: Overrides = ()
    quiet: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """This machine and the others that a run takes; None: the environment says it, or there is one machine."""

    spares: int = 0
    """Devices of this machine (or processes, on a CPU) beside those of --ranks that take the place of lost ones."""
    nodes: int | None = None
    """How many machines the run takes."""
    node_rank: int | None = None
    """The number of this machine, from 0, which leads. Machines from number --nodes on are spare."""
    master: str | None = None
    """HOST:PORT at which the machines reach the one that leads."""

    def member(self) -> Member | None:
        """This process among those that others start; None where it is alone. Raises `UserError`."""
        return member_of(with_master(os.environ, self.master), self.nodes, self.node_rank)

    def flags(self) -> list[str]:
        """The words that say it again."""
        values = {**vars(self), "spares": self.spares or None}
        stated = ((f"--{name.replace('_', '-')}", str(each)) for name, each in values.items() if each is not None)
        return [word for pair in stated for word in pair]


def readable_config(run: RunInput, overrides: Overrides, trust: bool) -> RunConfig:
    """`config_of`, for a command that only looks at a run. Raises `UserError` where the run names code, unless `trust`."""
    return require_trust(config_of(run, overrides), trust)


def config_of(run: RunInput, overrides: Overrides = ()) -> RunConfig:
    """The run with its overrides. Raises `UserError` naming the key and what is allowed."""
    texts = override_texts(overrides)
    if isinstance(run, str | os.PathLike):
        return load_run(_run_file(Path(run)), texts, as_written=Path(run).is_dir())
    if isinstance(run, RunConfig):
        if not texts:
            return run
        table = tomllib.loads(dump_run(run, brief=True))
    else:
        table = deepcopy(dict(run))
    apply_overrides(table, texts)
    spell_alike(table)
    return parse_run(table)


def override_texts(overrides: Overrides) -> tuple[str, ...]:
    """The overrides as on the command line. Raises `UserError` for a value that TOML has no text for."""
    if isinstance(overrides, str):
        return (overrides,)
    if not isinstance(overrides, Mapping):
        return tuple(overrides)
    pairs = [
        (f"{section}.{key}", each) if key else (section, each)
        for section, value in overrides.items()
        for key, each in (value.items() if isinstance(value, Mapping) else [("", value)])
    ]
    return tuple(f"{key}={_toml(each, key)}" for key, each in pairs)


def _toml(value: Any, key: str) -> str:
    if isinstance(value, str | os.PathLike):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{name} = {_toml(each, key)}' for name, each in value.items())} }}"
    if isinstance(value, Sequence):
        return f"[{', '.join(_toml(each, key) for each in value)}]"
    raise UserError(
        f"override {key}={value!r}: allowed: a number, text, true or false, or a list; for example layout.zero=3"
    )


def _run_file(run: Path) -> Path:
    if run.is_dir() and not (run / RUN_FILE).is_file():
        raise UserError(
            f"{run}: the folder holds no {RUN_FILE}; name a run file, preset:NAME, or a folder that fourfold train wrote"
        )
    return run / RUN_FILE if run.is_dir() else run


def cluster_name(cluster: ClusterInput) -> str:
    """The name that `[cluster]` of a run file states."""
    return cluster.key if isinstance(cluster, Cluster) else os.fspath(cluster)


def is_counted(cluster: ClusterInput) -> bool:
    """Whether somebody said how many devices the cluster has: one that was loaded has as many as it has."""
    return isinstance(cluster, Cluster) or has_count(os.fspath(cluster))


def check_counted(cluster: ClusterInput) -> None:
    """Raises `UserError` where nobody did."""
    if not isinstance(cluster, Cluster):
        require_count(os.fspath(cluster))


def loaded_cluster(cluster: ClusterInput) -> Cluster:
    """Raises `UserError` where the name is unknown or the file is wrong."""
    return cluster if isinstance(cluster, Cluster) else load_cluster(os.fspath(cluster))


def on_cluster(config: RunConfig, cluster: ClusterInput) -> RunConfig:
    """The run on that cluster. Raises `UserError` for `layout = "auto"` on a cluster that has no file."""
    if isinstance(cluster, Cluster) and config.layout.auto:
        raise UserError(
            'layout = "auto" takes a cluster by its name or file; what works: cluster="dgx-h100:64", or fourfold.plan and the run '
            "that it gives"
        )
    return config.on_cluster(cluster_name(cluster))


def check_word(option: str, word: str | None, allowed: Sequence[str]) -> None:
    """Raises `UserError` for a word that the command line would not take."""
    if word is not None and word not in allowed:
        raise UserError(
            f"{option} {word}: {did_you_mean(str(word), allowed)}allowed: {', '.join(allowed)}; a value that works: {allowed[0]}"
        )
