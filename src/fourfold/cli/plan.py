"""`fourfold plan`: the layout to run, how fast it will be, and why the others lose."""

import json as json_text
import os
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fourfold.cli.numbers import parse_number
from fourfold.cli.plan_progress import showing
from fourfold.cli.plan_request import Options, model_notes, planned_run, read_request
from fourfold.cli.software import repeated, software_overrides_of
from fourfold.config import RunConfig, RunFailure, UserError, dump_run
from fourfold.config.schema import GemmDtype
from fourfold.config.whole_file import write_whole
from fourfold.export import EXPORTS, Job
from fourfold.plan.explain import parse_fixed
from fourfold.plan.goals import cheapest, fewest, largest, longest
from fourfold.plan.planner import make_plan
from fourfold.plan.request import MEMORY_SHARE, Request
from fourfold.plan.result import Plan
from fourfold.plan.search import BUDGET, Progress
from fourfold.report.format_plan import format_best_layout, plan_document, plan_lines

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def plan(
    run: Path | None = None,
    /,
    *overrides: str,
    model: str | None = None,
    cluster: str | None = None,
    sequence_length: str | None = None,
    batch_tokens: str | None = None,
    batch_sequences: int | None = None,
    dtype: Literal["bf16", "fp32"] | None = None,
    software: str | None = None,
    gemm_dtype: GemmDtype | None = None,
    context_bytes: str | None = None,
    fragmentation: float | None = None,
    objective: Literal["throughput", "cost", "devices", "context", "model"] = "throughput",
    tokens: str | None = None,
    deadline_days: float | None = None,
    price: str | None = None,
    explain: Annotated[list[str] | None, Parameter(negative=())] = None,
    as_: Annotated[Literal["megatron", "bridge", "torchtitan", "deepspeed"] | None, Parameter(name="--as")] = None,
    out: Path | None = None,
    keep: int = 5,
    budget: float = BUDGET,
    memory_share: float = MEMORY_SHARE,
    json: Flag = False,
) -> int:
    """Find the fastest layout of a model on a cluster, by simulating the programs that would run; without torch or the cluster.

    State a run file, or --model, --cluster, --sequence-length and a batch.

    Parameters
    ----------
    run
        A run file or preset:NAME: its model, batch and number format; of its [layout], prefetch alone is looked at.
    overrides
        Keys of the run file, as section.key=value.
    model
        A preset, or a folder or file of a Hugging Face config.json, of any decoder whose layers are attention and feed-forward.
    cluster
        NAME, NAME:DEVICES or a cluster file. Default: the run file's [cluster] preset.
    sequence_length
        Tokens of a sequence, for example 8192 or 8k (8,000).
    batch_tokens
        Tokens of a step, for example 16M: the nearest number of sequences that layouts can divide is taken.
    batch_sequences
        Sequences of a step, instead.
    dtype
        The number format of computation. Default: bf16, or the run file's.
    software
        Whose software runs it: fourfold, or a framework and its year. Default: fourfold.
    gemm_dtype
        The format of matmuls but the head's, as in Transformer Engine. Default: --dtype's, as fourfold itself has them.
    context_bytes
        What a process holds on its device before anything is allocated (driver, NCCL's buffers), for example 1.5G. Default: the
        software's.
    fragmentation
        What the allocator reserves beyond what is live, as a share. Default: the software's.
    objective
        throughput: all devices. cost: the number of devices that makes --tokens cheapest. devices: the fewest that train --tokens
        within --deadline-days. context: the longest sequence that fits. model: the largest of the given one's
        proportions that fits.
    tokens
        How many tokens the whole run trains on, for example 15T.
    deadline_days
        For the objective devices.
    price
        Dollars for a device hour. Default: the cluster's.
    explain
        Fields of a layout, as tp=16 or pp=4,zero=3: the best layout with them, and why it loses. May be given several times.
    as_
        Print a script too that starts that trainer with the best layout, and what it cannot express. bridge: Megatron-Bridge.
    out
        Write the best layout to this new file, as a run that fourfold simulate and show take, and train once it says how long.
    keep
        How many layouts to show.
    budget
        Work of the search; 1 is about a second of one core. It is counted: a request has the same answer on every machine.
    memory_share
        Of a device's memory that a layout may fill.
    json
        Print one JSON document and nothing else.
    """
    fixed = [parse_fixed(text) for text in explain or ()]
    _check(memory_share, keep, budget, objective, tokens, price, deadline_days, out)
    batch = (sequence_length, batch_tokens, batch_sequences)
    software_overrides = software_overrides_of(gemm_dtype, context_bytes, fragmentation)
    asked = read_request(
        Options(run, overrides, model, cluster, *batch, dtype, software, memory_share, software_overrides)
    )
    with showing(json) as progress:
        request, lines = _aimed(asked.request, objective, tokens, deadline_days, price, budget, progress)
        result = make_plan(request, fixed, budget, keep, progress)
    notes = model_notes(asked, request)
    best = result.best
    written = out if best is not None else None
    exported = None
    if best is not None and (as_ is not None or written is not None):
        length = _needed(tokens, objective) if tokens is not None else None
        planned = planned_run(asked, request, best.candidate, length)
        exported = EXPORTS[as_](Job(request, best.candidate, planned)) if as_ is not None else None
        if written is not None:
            _write(written, result, planned, notes)
    if json:
        document = plan_document(result)
        document["objective"] = {"name": objective, "said": lines}
        document["notes"] = notes
        if exported is not None:
            document["export"] = {"trainer": as_, "text": exported.text, "cannot_express": exported.left_out}
        if written is not None:
            document["run_file"] = str(written)
        print(json_text.dumps(document, indent=1))
        return 0 if best is not None else 1
    lines = [*notes, *lines]
    print("\n".join([*lines, *([""] if lines else []), *plan_lines(result)]))
    if exported is not None:
        print(f"\nas {as_}:\n\n{exported.text}\n")
        missing = [f"  - {each}" for each in exported.left_out]
        print("\n".join(["what it cannot express:", *missing] if missing else []))
    if written is not None:
        options = repeated(software, gemm_dtype, context_bytes, fragmentation)
        print(f"\nwritten to {written}; use it as: fourfold simulate {written}{options}")
    return 0 if best is not None else 1


def _check(
    memory_share: float,
    keep: int,
    budget: float,
    objective: str,
    tokens: str | None,
    price: str | None,
    deadline_days: float | None,
    out: Path | None,
) -> None:
    """Raises `UserError` for an option that cannot be, or that says nothing here."""
    if not 0 < memory_share <= 1:
        raise UserError(f"--memory-share {memory_share}: allowed: more than 0, at most 1; a value that works: 0.94")
    if keep < 1 or keep > 1000:
        raise UserError(f"--keep {keep}: allowed: 1 to 1000; a value that works: 5")
    if not 0 < budget <= 86_400:
        raise UserError(f"--budget {budget}: allowed: more than 0, at most 86400; a value that works: 60")
    for option, value, wanting in (
        ("--tokens", tokens, ("cost", "devices")),
        ("--price", price, ("cost",)),
        ("--deadline-days", deadline_days, ("devices",)),
    ):
        if value is not None and objective not in wanting:
            raise UserError(
                f"{option} {value}: says something only with --objective {' or '.join(wanting)}; allowed there alone"
            )
    if out is None:
        return
    if out.suffix != ".toml" or not out.absolute().parent.is_dir():
        raise UserError(
            f"--out {out}: should name a .toml file in a folder that is there; a value that works: --out run.toml"
        )
    if os.path.lexists(out):
        raise UserError(
            f"--out {out}: is there already; name a new file, for example --out {out.with_stem(out.stem + '-planned')}"
        )


def _aimed(
    request: Request,
    objective: str,
    tokens: str | None,
    deadline_days: float | None,
    price: str | None,
    budget: float,
    progress: Progress,
) -> tuple[Request, list[str]]:
    """The request to plan for an objective, and lines about the way there."""
    if objective == "cost":
        number, dollars = _needed(tokens, objective), _price(price, request)
        return cheapest(request, number, dollars, budget, progress)
    if objective == "devices":
        number, seconds = _needed(tokens, objective), _deadline(deadline_days)
        return fewest(request, number, seconds, budget, progress)
    if objective == "context":
        return longest(request, budget, progress)
    if objective == "model":
        return largest(request, budget, progress)
    return request, []


def _write(out: Path, result: Plan, run: RunConfig, notes: list[str]) -> None:
    lines = [format_best_layout(result), *notes]
    if run.batch.steps is None and run.batch.tokens is None:
        lines.append("To train with it, state [data], and batch.steps or batch.tokens.")
    try:
        write_whole(out, "".join(f"# {line}\n" for line in lines) + dump_run(run, brief=True))
    except OSError as error:
        raise RunFailure(f"--out {out}: cannot be written: {error.strerror}; name another place with --out") from None


def _needed(tokens: str | None, objective: str) -> float:
    if tokens is None:
        raise UserError(f"--objective {objective} needs --tokens; a value that works: --tokens 15T")
    return parse_number(tokens, "--tokens", "15T", least=1)


def _deadline(days: float | None) -> float:
    if days is None or not 0 < days < 1e6:
        raise UserError(f"--deadline-days {days}: allowed: more than 0; a value that works: --deadline-days 60")
    return days * 86_400


def _price(price: str | None, request: Request) -> float:
    if price is not None:
        return parse_number(price, "--price", "2.5", least=1e-6, most=1e6)
    stated = request.cluster.dollars_per_device_hour
    if stated is None:
        raise UserError(f"--objective cost: the cluster {request.cluster.key} states no price; what works: --price 2.5")
    return stated
