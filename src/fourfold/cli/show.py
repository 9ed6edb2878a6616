"""`fourfold show`: a rank's program, its totals, its proof; or where the ranks of a run in progress are."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fourfold.api.programs import check_pp_rank, compiled_run, run_heading
from fourfold.api.verification import Verification
from fourfold.cli.options import Flag, print_json
from fourfold.cli.timeline import Part, show_timeline
from fourfold.config import UserError
from fourfold.launch.resolve import ResolvedRun
from fourfold.program import Program, from_text, to_text
from fourfold.report.format_run import layout_line, model_line, transport_lines
from fourfold.report.legend import legend_lines
from fourfold.report.program_table import program_rows, program_totals, proof_lines, table_lines, totals_lines
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
    trust: Flag = False,
    json: Flag = False,
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
    trust
        Import the Python code that the run names (layout.schedule, model.block = python:...). train imports it in any case.
    json
        Print one JSON document and nothing else.
    """
    if limit < 0:
        raise UserError(f"--limit {limit}: allowed: 0 (all) or more; a value that works: --limit 60")
    resolved = compiled_run(run, overrides, ranks, cluster, trust)
    resolved = resolved.with_checks() if checks else resolved
    where = cluster or "this machine"
    if progress:
        return _progress(run, resolved, json)
    if timeline or svg is not None:
        return show_timeline(resolved, svg, timeline, json, times, Part(from_, to, pp_ranks))
    for option, value in (("--times", times), ("--from", from_), ("--to", to), ("--pp-ranks", pp_ranks)):
        if value is not None:
            raise UserError(f"{option} {value}: is for the drawing; what works: --timeline {option} {value}")
    if program is not None:
        return _verify(
            Verification.of(resolved, [resolved.with_program(_read_program(program, resolved))]), json, where
        )
    if verify:
        return _verify(Verification.of(resolved, [resolved.train_programs, resolved.evaluate_programs]), json, where)
    return _show(resolved, pp_rank, evaluate, full, limit, json, where)


def _show(
    resolved: ResolvedRun, pp_rank: int, evaluate: bool, full: bool, limit: int, as_json: bool, where: str
) -> int:
    check_pp_rank(pp_rank, resolved.layout.pp)
    program = resolved.program("evaluate" if evaluate else "train", pp_rank)
    if as_json:
        document = {**run_heading(resolved), "kind": program.kind, "pp_rank": pp_rank}
        print_json({**document, "program": program_rows(program), "totals": program_totals(program)})
    elif full:
        print(to_text(program), end="")
        print("\n".join(f"# {line}" for line in [*transport_lines(resolved, where), *legend_lines(program)]))
    else:
        what = "evaluation" if evaluate else "training step"
        lines = [
            model_line(resolved),
            layout_line(resolved),
            *transport_lines(resolved, where),
            "",
            f"one {what} of a rank:",
        ]
        print_screen([*lines, *table_lines(program, limit), "", *legend_lines(program), "", *totals_lines(program)])
    return 0


def _verify(found: Verification, as_json: bool, where: str) -> int:
    faults = found.faults
    if as_json:
        print_json(found.to_json())
    elif faults:
        print("\n".join([f"NOT sound: {len(faults)} fault{'s' if len(faults) > 1 else ''}", *map(str, faults)]))
    else:
        resolved, proofs = found.resolved, [line for each in found.proofs() for line in proof_lines(each)]
        print_screen([model_line(resolved), layout_line(resolved), *transport_lines(resolved, where), *proofs])
    return 1 if faults else 0


def _read_program(path: Path, resolved: ResolvedRun) -> Program:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--program {path}: cannot be read: {error}; what works: a file that --full printed") from None
    program = from_text(text, str(path))
    if not program.instructions:
        raise UserError(f"{path}: holds no instruction; what works: a file that --full printed")
    if program.kind not in ("train", "evaluate"):
        raise UserError(f"{path}: kind {program.kind!r} is unknown; allowed: train, evaluate")
    if not 0 <= program.pp_rank < resolved.layout.pp:
        raise UserError(f"{path}: pp_rank {program.pp_rank} is not below the layout's pp = {resolved.layout.pp}")
    return program


def _progress(folder: Path, resolved: ResolvedRun, as_json: bool) -> int:
    from fourfold.runtime.progress import describe_positions, read_positions

    positions = read_positions(folder, ranks=resolved.layout.world_size) if folder.is_dir() else []
    if not positions:
        raise UserError(f"{folder}: no rank has reported yet; what works: the folder of a run that is training or was")
    lines = describe_positions(resolved.programs_at, resolved.layout, positions)
    if as_json:
        ranks = [{"rank": rank, "step": p.step, "index": p.at, "time": p.time} for rank, p in enumerate(positions)]
        print_json({"ranks": [{**row, "text": line} for row, line in zip(ranks, lines, strict=True)]})
    else:
        print("\n".join(lines))
    return 0
