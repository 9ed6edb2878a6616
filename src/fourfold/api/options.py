"""The options of `plan` and `simulate`, each written once: the field is the API's argument, its text the flag's help.

A command takes a class of fields as flags (`cli/options.py`), a function of the API takes them as keyword arguments
(`inputs.answers`), and what acts reads them from the object. A new option is a field here and a line where it acts.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from fourfold.api.inputs import ClusterInput, Number, Overrides, RunInput, check_word
from fourfold.api.numbers import parse_number
from fourfold.config import UserError
from fourfold.config.kernel_choice import parse_choice
from fourfold.config.schema import GemmDtype
from fourfold.plan.search import BUDGET, Progress
from fourfold.simulate.run_prices import SoftwareOverrides
from fourfold.simulate.summary import MEMORY_SHARE

Objective = Literal["fastest", "safest", "cheapest", "devices", "context", "model"]
Trainer = Literal["fourfold", "megatron", "torchtitan", "deepspeed"]
Dtype = Literal["bf16", "fp32"]


@dataclass(frozen=True, kw_only=True)
class SoftwareOptions:
    """The software that runs a step, and what is different there."""

    software: str | None = None
    """Whose software runs it: fourfold, or a framework and its year. Default: fourfold."""
    gemm_dtype: GemmDtype | None = None
    """The format of matmuls but the head's, as in Transformer Engine. Default: the run file's, as fourfold has them."""
    context_bytes: Number | None = None
    """What a process holds on its device before anything is allocated (driver, NCCL's buffers), for example 1.5G. Default: the
    software's."""
    fragmentation: float | None = None
    """What the allocator reserves beyond what is live, as a share. Default: the software's."""
    kernels: Sequence[str] = ()
    """Kernels that other software runs, as attention=flash-2 or norms=unfused,optimizer=foreach. May be given several times; the
    words are those of [cluster] in a run file. Default: those that the software usually runs."""

    def software_overrides(self) -> SoftwareOverrides:
        """What is stated beside the software's name. Raises `UserError`."""
        check_word("--gemm-dtype", self.gemm_dtype, get_args(GemmDtype))
        held = None
        if self.context_bytes is not None:
            held = int(parse_number(self.context_bytes, "--context-bytes", "1.5G", most=1e12))
        if self.fragmentation is not None and not 0 <= self.fragmentation <= 10:
            raise UserError(
                f"--fragmentation {self.fragmentation}: allowed: 0 to 10, as a share of what is live; a value that works: 0.03"
            )
        return SoftwareOverrides(self.gemm_dtype, held, self.fragmentation, parse_choice(self.kernels))


@dataclass(frozen=True, kw_only=True)
class TrustOption:
    """Whether code of the run may be imported."""

    trust: bool = False
    """Import the Python code that the run names (layout.schedule, model.block = python:...). train imports it in any case."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The devices that a step is simulated on."""

    cluster: ClusterInput | None = None
    """NAME, NAME:DEVICES or a cluster file. Default: the run file's [cluster] preset."""
    ranks: int | None = None
    """How many ranks the layout is for. Default: as many as it states; all devices of the cluster where it leaves
    layout.dp_shard open. A layout that leaves devices idle ends with exit code 1, unless this says so."""


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(SoftwareOptions, Place):
    """The devices and the software that a step is simulated with."""


@dataclass(frozen=True, kw_only=True)
class CampaignOptions:
    """The length of a whole run, and what interrupts it."""

    tokens: Number | None = None
    """How many tokens the run trains on, for example 15.6T. Default: what the run file says."""
    failure_hours: Number | None = None
    """Device hours for each interruption of a job. Default: the cluster's figure, if it has one."""
    checkpoint_seconds: Number | None = None
    """How long a checkpoint stops training. Default: the state over 1 GB/s a node."""
    restart_seconds: Number | None = None
    """From a failure until training goes on, with spares. Default: 600."""
    repair_seconds: Number | None = None
    """Until a failed node is replaced, without spares. Default: 14400."""
    price: Number | None = None
    """Dollars for a device hour. Default: the cluster's, if it has one."""


@dataclass(frozen=True, kw_only=True)
class RunOptions(TrustOption, CampaignOptions):
    """The whole run: its length, and whether its code is imported."""


@dataclass(frozen=True)
class SimulateOptions(RunOptions, PlaceOptions):
    """The arguments of `fourfold.simulate`."""

    run: RunInput
    overrides: Overrides = ()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The model, cluster and batch of a plan, where no run file states them."""

    model: str | os.PathLike[str] | None = None
    """A preset, by its own name or the Hugging Face hub's, or a folder or file of a config.json, of any decoder whose layers are
    attention and feed-forward."""
    cluster: ClusterInput | None = None
    """NAME, NAME:DEVICES or a cluster file. Default: the run file's [cluster] preset."""
    sequence_length: Number | None = None
    """Tokens of a sequence, for example 8192, or 128k (131,072)."""
    batch_tokens: Number | None = None
    """Tokens of a step, for example 16M (16,000,000; 16Mi is 2^24): the nearest number of sequences that layouts can divide is
    taken."""
    batch_sequences: int | None = None
    """Sequences of a step, instead."""
    dtype: Dtype | None = None
    """The number format of computation. Default: bf16, or the run file's."""


@dataclass(frozen=True, kw_only=True)
class PlanQuestion(SoftwareOptions, Problem):
    """The question of a plan: the problem, its software, and the objective."""

    software: str | None = None
    """Whose software runs it: fourfold, or a framework and its year. Default: that of --for, else fourfold."""
    gemm_dtype: GemmDtype | None = None
    """The format of matmuls but the head's, as in Transformer Engine. Default: --dtype's, as fourfold itself has them."""
    objective: Objective = "fastest"
    """fastest: the fastest layout of all devices that fits surely or likely. safest: the fastest that hardly ever runs out of
    memory. cheapest: the number of devices that makes --tokens cheapest. devices: the fewest that train --tokens within
    --deadline-days. context: the longest sequence that fits. model: the largest of the given one's
    proportions that fits."""
    tokens: Number | None = None
    """How many tokens the training run trains on, for example 15T: prints its days, cost and goodput."""
    deadline_days: float | None = None
    """For the objective devices."""
    price: Number | None = None
    """Dollars for a device hour, with --tokens. Default: the cluster's."""
    failure_hours: Number | None = None
    """Device hours for each interruption of a job, with --tokens. Default: the cluster's figure, if it has one."""
    for_: Trainer | None = None
    """Search only what this trainer can run, at its prices."""
    explain: Sequence[str | Mapping[str, int | str]] = ()
    """Fields of a layout, as tp=16 or pp=4,zero=3: the best layout with them, and why it loses. May be given several times."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """The effort of a search, the memory it may fill, and how much is shown."""

    keep: int = 5
    """How many layouts to show."""
    budget: float = BUDGET
    """Work of the search; 1 is about a second of one core. It is counted: a request has the same answer on every machine."""
    memory_share: float = MEMORY_SHARE
    """Of a device's memory that a layout may fill."""


@dataclass(frozen=True, kw_only=True)
class SearchOptions(TrustOption, Search):
    """The search, and whether the run's code is imported."""


@dataclass(frozen=True)
class PlanOptions(SearchOptions, PlanQuestion):
    """The arguments of `fourfold.plan`."""

    run: RunInput | None = None
    overrides: Overrides = ()
    progress: Progress | None = field(default=None, kw_only=True)


def names(group: type) -> tuple[str, ...]:
    """The options of a group."""
    return tuple(each.name for each in fields(group))


def stated(group: type, options: Any) -> dict[str, Any]:
    """The options of a group as `options`, which has them among its own, states them."""
    return {name: getattr(options, name) for name in names(group)}


def repeated(options: SoftwareOptions, software: str | None) -> str:
    """The options on software again, as flags for another command. `software`: where they name none. Raises `UserError`."""
    given = stated(SoftwareOptions, options)
    given["software"] = options.software or software
    given["kernels"] = parse_choice(options.kernels).text or None
    return "".join(f" --{name.replace('_', '-')} {value}" for name, value in given.items() if value is not None)
