"""`fourfold plan`: the layout to run, how fast it will be, and why the others lose."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fourfold.api.planning import plan as make_plan
from fourfold.api.software import repeated
from fourfold.cli.job import job_text
from fourfold.cli.options import Flag, Repeated, check_new_file, print_json, write_new_file
from fourfold.cli.plan_progress import showing
from fourfold.config import RunConfig, UserError, dump_run
from fourfold.config.schema import GemmDtype
from fourfold.export import EXPORTS, Export, TrainerJob
from fourfold.jobs import TARGETS
from fourfold.launch.undecided import require_decided, require_itself, undecided
from fourfold.plan.budget import BUDGET
from fourfold.plan.planner import Plan
from fourfold.plan.pricing import candidate_spec
from fourfold.plan.request import Request
from fourfold.plan.trainers import TRAINERS
from fourfold.report.format_campaign import campaign_lines
from fourfold.report.format_plan import format_best_layout, plan_lines
from fourfold.report.plan_screen import screen_lines
from fourfold.report.screen import print_screen
from fourfold.simulate.paused_garbage_collection import without_collection
from fourfold.simulate.summary import MEMORY_SHARE

NEXT = "next     --out run.toml: row 1 as a run file for fourfold job; --verbose: all figures"


@without_collection()
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
    objective: Literal["fastest", "safest", "cheapest", "devices", "context", "model"] = "fastest",
    tokens: str | None = None,
    deadline_days: float | None = None,
    price: str | None = None,
    failure_hours: str | None = None,
    for_: Annotated[Literal["fourfold", "megatron", "torchtitan", "deepspeed"] | None, Parameter(name="--for")] = None,
    explain: Repeated = None,
    as_: Annotated[
        Literal["megatron", "bridge", "torchtitan", "deepspeed", "slurm", "k8s", "skypilot"] | None,
        Parameter(name="--as"),
    ] = None,
    out: Path | None = None,
    keep: int = 5,
    budget: float = BUDGET,
    memory_share: float = MEMORY_SHARE,
    trust: Flag = False,
    verbose: Flag = False,
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
        layout.pp=2,4; layout.overlap_experts, layout.offload_optimizer (true or false) and layout.offload=none to one.
    model
        A preset, by its own name or the Hugging Face hub's, or a folder or file of a config.json, of any decoder whose layers are
        attention and feed-forward.
    cluster
        NAME, NAME:DEVICES or a cluster file. Default: the run file's [cluster] preset.
    sequence_length
        Tokens of a sequence, for example 8192, or 128k (131,072).
    batch_tokens
        Tokens of a step, for example 16M (16,000,000; 16Mi is 2^24): the nearest number of sequences that layouts can divide is
        taken.
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
        fastest: the fastest layout of all devices that fits surely or likely. safest: the fastest that hardly ever runs out of
        memory. cheapest: the number of devices that makes --tokens cheapest. devices: the fewest that train --tokens within
        --deadline-days. context: the longest sequence that fits. model: the largest of the given one's
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
        Print a script too that starts that trainer with the best layout, and what it cannot express. bridge: Megatron-Bridge. Or
        the job of a scheduler that runs fourfold train on the file that --out names, as fourfold job does.
    out
        Write the best layout to this new file, as a run that fourfold simulate and show take, and train once it says how long.
    keep
        How many layouts to show.
    budget
        Work of the search; 1 is about a second of one core. It is counted: a request has the same answer on every machine.
    memory_share
        Of a device's memory that a layout may fill.
    trust
        Import the Python code that the run names (layout.schedule, model.block = python:...). train imports it in any case.
    verbose
        Print all figures: what the first layout spends its time, network and memory on, every layout, what was left out.
    json
        Print one JSON document and nothing else.
    """
    if run is not None and "=" in run and not Path(run).exists():
        overrides, run = (run, *overrides), None
    if out is not None:
        check_new_file(out, "run.toml", out.with_stem(f"{out.stem}-planned"), ".toml")
    if as_ in TARGETS and out is None:
        raise UserError(f"--as {as_}: the job runs the file that --out names; a value that works: --out run.toml")
    with showing(json) as progress:
        planned = make_plan(
            run,
            overrides,
            model=model,
            cluster=cluster,
            sequence_length=sequence_length,
            batch_tokens=batch_tokens,
            batch_sequences=batch_sequences,
            dtype=dtype,
            software=software,
            gemm_dtype=gemm_dtype,
            context_bytes=context_bytes,
            fragmentation=fragmentation,
            objective=objective,
            tokens=tokens,
            deadline_days=deadline_days,
            price=price,
            failure_hours=failure_hours,
            for_=for_,
            explain=explain or (),
            keep=keep,
            budget=budget,
            memory_share=memory_share,
            trust=trust,
            progress=progress,
        )
    request, training = planned.request, planned.training
    result, notes, best = planned.found, planned.notes, planned.best
    written, left, exported = out if best is not None else None, list[str](), None
    if best is not None:
        first = planned.run()
        left = _left_open(first, request)
        if as_ in EXPORTS:
            require_decided(first, request.model, ("optimizer",))
            exported = EXPORTS[as_](TrainerJob(request, best.candidate, first))
            lost = [f"{first.model.nearest_to}: {each}" for each in first.model.lost]
            exported = exported._replace(left_out=[*lost, *exported.left_out])
        elif as_ is not None:
            require_itself(first)
            require_decided(first, request.model)
        if written is not None:
            _write(written, result, first, [*notes, *left])
    if written is not None and as_ in TARGETS:
        exported = Export(*job_text(written, as_, trust))
    if json:
        document = planned.to_json()
        if exported is not None:
            document["export"] = {"trainer": as_, "text": exported.text, "cannot_express": exported.left_out}
        if written is not None:
            document["run_file"] = str(written)
        print_json(document)
        return 0 if best is not None else 1
    lines = [*notes, *planned.searched]
    lines += [""] if lines else []
    if verbose or best is None:
        print_screen([*lines, *plan_lines(result)])
        if training is not None and best is not None:
            stated = candidate_spec(request, best.candidate).checkpoint_bytes
            print_screen(["", *campaign_lines(training, stated)])
    else:
        print_screen([*lines, *screen_lines(result, training, planned.elsewhere())])
        if written is None and exported is None:
            print_screen(["", NEXT])
    if exported is not None and as_ is not None and best is not None:
        print(f"\nas {as_}:\n\n{exported.text}\n")
        missing = [f"  - {each}" for each in exported.left_out]
        head = "what it cannot express:" if as_ in EXPORTS else "what it needs:"
        print("\n".join([head, *missing] if missing else []))
        trainer = TRAINERS.get(as_)
        if trainer is not None and for_ != as_ and not trainer.permits(request, best.candidate):
            print(
                f"{trainer.title} cannot run this layout; what works: --for {as_}, which searches only those that it can"
            )
    if written is not None:
        chosen = software or (TRAINERS[for_].software if for_ else None)
        again = repeated(chosen, gemm_dtype, context_bytes, fragmentation)
        print(f"\nwritten to {written}; use it as: fourfold simulate {written}{again}")
        print_screen(left)
    return 0 if best is not None else 1


def _left_open(run: RunConfig, request: Request) -> list[str]:
    """A line on what a large run leaves to defaults, which `fourfold job` and `train` do not take."""
    found = undecided(run, request.model)
    return [f"before it trains, state {', '.join(each.key for each in found)}"] if found else []


def _write(out: Path, result: Plan, run: RunConfig, notes: list[str]) -> None:
    lines = [format_best_layout(result), *notes]
    if run.batch.steps is None and run.batch.tokens is None:
        lines.append("To train with it, state batch.steps or batch.tokens.")
    write_new_file(out, "".join(f"# {line}\n" for line in lines) + dump_run(run, brief=True))
