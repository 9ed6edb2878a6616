"""`fourfold plan`: the layout to run, how fast it will be, and why the others lose."""

import json as json_text
import os
from dataclasses import replace
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
from fourfold.plan.explain import parse_fixed
from fourfold.plan.exports import EXPORTS
from fourfold.plan.goals import Aim, TrainingRun, cheapest, fewest, largest, longest
from fourfold.plan.planner import make_plan
from fourfold.plan.pricing import candidate_spec
from fourfold.plan.request import MEMORY_SHARE, Request
from fourfold.plan.result import Plan
from fourfold.plan.search import BUDGET, Progress
from fourfold.plan.trainers import TRAINERS
from fourfold.report.format_campaign import campaign_lines
from fourfold.report.format_plan import format_best_layout, plan_document, plan_lines
from fourfold.report.simulation_document import campaign_document

Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def plan(
    run: str | None = None,
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
    failure_hours: str | None = None,
    for_: Annotated[Literal["fourfold", "megatron", "torchtitan", "deepspeed"] | None, Parameter(name="--for")] = None,
    explain: Annotated[list[str] | None, Parameter(negative=())] = None,
    as_: Annotated[Literal["megatron", "torchtitan", "deepspeed"] | None, Parameter(name="--as")] = None,
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
        Keys of the run file, as section.key=value. Those of [layout] hold the search to a value or several: layout.tp=8,
        layout.pp=2,4.
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
        Whose software runs it: fourfold, or a framework and its year. Default: that of --for, else fourfold.
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
        How many tokens the training run trains on, for example 15T: prints its days, cost and goodput.
    deadline_days
        For the objective devices.
    price
        Dollars for a device hour, with --tokens. Default: the cluster's.
    failure_hours
        Device hours for each interruption of a job, with --tokens. Default: the cluster's figure, if it has one.
    for_
        Search only what this trainer can run, at its prices.
    explain
        Fields of a layout, as tp=16 or pp=4,zero=3: the best layout with them, and why it loses. May be given several times.
    as_
        Print the best layout as flags or file of that trainer too, and what it cannot express.
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
    if run is not None and "=" in run and not Path(run).exists():
        overrides, run = (run, *overrides), None
    _check(memory_share, keep, budget, objective, deadline_days, out)
    length = _training_run(objective, tokens, price, failure_hours)
    batch = (sequence_length, batch_tokens, batch_sequences)
    software_overrides = software_overrides_of(gemm_dtype, context_bytes, fragmentation)
    file = Path(run) if run is not None else None
    options = Options(file, overrides, model, cluster, *batch, dtype, software, for_, memory_share, software_overrides)
    asked = read_request(options)
    with showing(json) as progress:
        aim = _aimed(asked.request, objective, length, deadline_days, budget, progress)
        plans, settled = dict[int, Plan](), False
        while not settled:
            request = aim.request
            if request.devices not in plans:
                plans[request.devices] = make_plan(request, fixed, budget, keep, progress)
            result = plans[request.devices]
            training = length.campaign(request, result.best) if length is not None and result.best is not None else None
            settled = aim.settled_by(training)
    notes = model_notes(asked, request)
    best = result.best
    exported = EXPORTS[as_](request, best.candidate) if as_ and best is not None else None
    written = out if best is not None else None
    if written is not None and best is not None:
        number = length.tokens if length is not None else None
        _write(written, result, planned_run(asked, request, best.candidate, number), notes)
    lines = aim.lines
    if json:
        document = plan_document(result)
        document["trainer"] = for_
        document["objective"] = {"name": objective, "said": lines}
        document["notes"] = notes
        document["run"] = campaign_document(training) if training is not None else None
        if exported is not None:
            document["export"] = {"trainer": as_, "text": exported[0], "cannot_express": exported[1]}
        if written is not None:
            document["run_file"] = str(written)
        print(json_text.dumps(document, indent=1))
        return 0 if best is not None else 1
    lines = [*notes, *lines]
    print("\n".join([*lines, *([""] if lines else []), *plan_lines(result)]))
    if training is not None and best is not None:
        stated = candidate_spec(request, best.candidate).checkpoint_bytes
        print("\n".join(["", *campaign_lines(training, stated)]))
    if exported is not None and as_ is not None and best is not None:
        text, missing = exported
        print(f"\nas {as_}:\n\n{text}\n")
        print("\n".join(["what it cannot express:", *(f"  - {each}" for each in missing)] if missing else []))
        trainer = TRAINERS.get(as_)
        if (
            trainer is not None
            and for_ != as_
            and not replace(request, constraints=trainer.constraints).permits(best.candidate)
        ):
            print(
                f"{trainer.title} cannot run this layout; what works: --for {as_}, which searches only those that it can"
            )
    if written is not None:
        chosen = software or (TRAINERS[for_].software if for_ else None)
        again = repeated(chosen, gemm_dtype, context_bytes, fragmentation)
        print(f"\nwritten to {written}; use it as: fourfold simulate {written}{again}")
    return 0 if best is not None else 1


def _check(
    memory_share: float,
    keep: int,
    budget: float,
    objective: str,
    deadline_days: float | None,
    out: Path | None,
) -> None:
    """Raises `UserError` for an option that cannot be, or that says nothing here."""
    if not 0 < memory_share <= 1:
        raise UserError(f"--memory-share {memory_share}: allowed: more than 0, at most 1; a value that works: 0.94")
    if keep < 1 or keep > 1000:
        raise UserError(f"--keep {keep}: allowed: 1 to 1000; a value that works: 5")
    if not 0 < budget <= 86_400:
        raise UserError(f"--budget {budget}: allowed: more than 0, at most 86400; a value that works: 40")
    if deadline_days is not None and objective != "devices":
        raise UserError(
            f"--deadline-days {deadline_days}: says something only with --objective devices; allowed there alone"
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
    length: TrainingRun | None,
    deadline_days: float | None,
    budget: float,
    progress: Progress,
) -> Aim:
    """The request to plan for an objective, and what was found on the way there."""
    if objective == "context":
        return longest(request, budget, progress)
    if objective == "model":
        return largest(request, budget, progress)
    if length is None or objective == "throughput":
        return Aim(request)
    if objective == "devices":
        return fewest(request, length, _deadline(deadline_days), budget, progress)
    if length.dollars_per_device_hour is None and request.cluster.dollars_per_device_hour is None:
        raise UserError(f"--objective cost: the cluster {request.cluster.key} states no price; what works: --price 2.5")
    return cheapest(request, length, budget, progress)


def _write(out: Path, result: Plan, run: RunConfig, notes: list[str]) -> None:
    lines = [format_best_layout(result), *notes]
    if run.batch.steps is None and run.batch.tokens is None:
        lines.append("To train with it, state [data], and batch.steps or batch.tokens.")
    try:
        write_whole(out, "".join(f"# {line}\n" for line in lines) + dump_run(run, brief=True))
    except OSError as error:
        raise RunFailure(f"--out {out}: cannot be written: {error.strerror}; name another place with --out") from None


def _training_run(
    objective: str, tokens: str | None, price: str | None, failure_hours: str | None
) -> TrainingRun | None:
    """The run whose length and cost are asked for. Raises `UserError` where its tokens are missing."""
    if tokens is None:
        if objective in ("cost", "devices"):
            raise UserError(f"--objective {objective} needs --tokens; a value that works: --tokens 15T")
        for option, value in (("--price", price), ("--failure-hours", failure_hours)):
            if value is not None:
                raise UserError(
                    f"{option} {value}: says something only with --tokens; a value that works: --tokens 15T"
                )
        return None
    return TrainingRun(
        parse_number(tokens, "--tokens", "15T", least=1),
        parse_number(price, "--price", "2.5", least=1e-6, most=1e6) if price is not None else None,
        parse_number(failure_hours, "--failure-hours", "50k", 1e-3, 1e12) if failure_hours is not None else None,
    )


def _deadline(days: float | None) -> float:
    if days is None or not 0 < days < 1e6:
        raise UserError(f"--deadline-days {days}: allowed: more than 0; a value that works: --deadline-days 60")
    return days * 86_400
