"""`fourfold show`: a rank's program, its totals, its proof; or where the ranks of a run in progress are."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fourfold.api.programs import RunProgram, RunProgress, check_pp_rank, compiled_run
from fourfold.api.verification import Verification
from fourfold.cli.options import Flag, Json, Trust, print_answer
from fourfold.cli.timeline import Part, show_timeline
from fourfold.config import UserError
from fourfold.report.screen import print_screen
from fourfold.simulate.paused_garbage_collection import without_collection


@without_collection()
def show(
    run: Path,
    /,
    *overrides: str,
    ranks: int | None = None,
    pp_rank: int = 0,
    cluster: str | None = None,
    verify: Flag = False,
    program: Path | None = None,
    evaluate: Flag = False,
    checks: Flag = False,
    full: Flag = False,
    limit: int = 60,
    progress: Flag = False,
    timeline: Flag = False,
    svg: Path | None = None,
    times: Literal["unit", "flops"] | None = None,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    to: str | None = None,
    pp_ranks: str | None = None,
    trust: Trust = False,
    json: Json = False,
) -> int:
    """Print the program of a rank's step: every instruction, with bytes sent, live memory and arithmetic.

    Needs neither torch nor the corpus. Exit code 1 when --verify finds a fault.

    Parameters
    ----------
    run
        A run file, or the folder of a run.
    overrides
        Keys of the run file, as section.key=value.
    ranks
        How many ranks the layout is for. Default: as many as it states; all devices of --cluster where it leaves
        layout.dp_shard open.
    pp_rank
        Which pipeline rank's program; ranks that differ only in data coordinates run the same one.
    cluster
        Lower for this cluster's transport (NAME or file), as fourfold simulate does: NCCL's own reductions on accelerators,
        exchanges over gloo on CPUs. Default: this machine's.
    verify
        Verify the programs of all ranks, or name the rank, the instruction and the fix.
    program
        Take this program, in the text form that --full prints, for its pipeline rank, and verify it.
    evaluate
        The program of an evaluation instead of a training step.
    checks
        The training step with all checks of silent corruption that the run file asks for, each of which is due every so many steps.
    full
        Print the text form: everything an instruction declares, one line each.
    limit
        Shorten the table in the middle to this many lines; 0 shows all.
    progress
        Of a run in progress: where each rank is.
    timeline
        Draw the schedule of all pipeline ranks instead: who computes what when, the bubble, the activations held.
    svg
        Write that drawing to this file.
    times
        What the drawing takes a stage to need: unit (a forward 1, a backward 2) or its arithmetic in FLOPs.
        Default: unit; flops for the schedule auto, which is made for them.
    from_
        Draw from this time on, as the drawing's axis has it, or from the start of a microbatch: m12.
    to
        Draw up to this time, or to the end of a microbatch.
    pp_ranks
        Draw these pipeline ranks, as 0-3,63. Default: all, or a sample of many.
    """
    if limit < 0:
        raise UserError(f"--limit {limit}: allowed: 0 (all) or more; a value that works: --limit 60")
    resolved = compiled_run(run, overrides, ranks, cluster, trust)
    resolved = resolved.with_checks() if checks else resolved
    where = cluster or "this machine"
    if progress:
        standing = RunProgress.read(run, resolved)
        return print_answer(json, standing.to_json, standing.lines)
    if timeline or svg is not None:
        return show_timeline(resolved, svg, timeline, json, times, Part(from_, to, pp_ranks))
    for option, value in (("--times", times), ("--from", from_), ("--to", to), ("--pp-ranks", pp_ranks)):
        if value is not None:
            raise UserError(f"{option} {value}: is for the drawing; what works: --timeline {option} {value}")
    if verify or program is not None:
        found = Verification.of_run(resolved, program)
        if found.sound and not json:
            print_screen(found.lines(where))
            return 0
        return print_answer(json, found.to_json, lambda: found.lines(where)) or int(not found.sound)
    check_pp_rank(pp_rank, resolved.layout.pp)
    shown = RunProgram.of_resolved(resolved, "evaluate" if evaluate else "train")
    if full and not json:
        print(shown.text(pp_rank), end="")
        return print_answer(False, dict, lambda: shown.comments(pp_rank, where))
    if json:
        return print_answer(True, lambda: shown.to_json(pp_rank), list)
    print_screen(shown.lines(pp_rank, limit, where))
    return 0
