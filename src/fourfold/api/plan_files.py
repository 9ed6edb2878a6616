"""The files of a plan: the run file of its best layout, and the script of a trainer or a scheduler's job beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fourfold.api.jobs import CodeOptions, job_file
from fourfold.api.new_file import check_new_file, write_new_file
from fourfold.api.options import PlanQuestion, repeated
from fourfold.api.planning import PlanResult
from fourfold.config import RunConfig, UserError, dump_run
from fourfold.export import EXPORTS, Export, TrainerJob
from fourfold.jobs import TARGETS
from fourfold.launch.undecided import require_decided, require_itself, undecided
from fourfold.plan.trainers import TRAINERS
from fourfold.report.format_plan import format_best_layout


@dataclass(frozen=True)
class PlanFiles:
    """The files of a plan. `run_file`: where it was written. `export`: a script for `target`. `open_keys`: a line on what a
    large run leaves to defaults, which `fourfold job` and `train` do not take. `again`: the command that simulates the file.
    `other_trainer`: why the trainer cannot run the layout."""

    run_file: Path | None = None
    target: str | None = None
    export: Export | None = None
    open_keys: Sequence[str] = ()
    again: str = ""
    other_trainer: str | None = None

    def to_json(self) -> dict[str, object]:
        """The keys that they add to the plan's document."""
        found: dict[str, object] = {}
        if self.export is not None:
            left_out = self.export.left_out
            found["export"] = {"trainer": self.target, "text": self.export.text, "cannot_express": left_out}
        return found | ({"run_file": str(self.run_file)} if self.run_file is not None else {})

    def export_lines(self) -> list[str]:
        """The script, what it cannot express or needs, and whether its trainer can run the layout."""
        if self.export is None:
            return []
        head = "what it cannot express:" if self.target in EXPORTS else "what it needs:"
        missing = [f"  - {each}" for each in self.export.left_out]
        lines = [f"\nas {self.target}:\n\n{self.export.text}\n", "\n".join([head, *missing] if missing else [])]
        return lines + ([self.other_trainer] if self.other_trainer is not None else [])


def check_plan_files(out: Path | None, target: str | None) -> None:
    """Raises `UserError` where the files cannot be written, before anything is searched."""
    if out is not None:
        check_new_file(out, "run.toml", out.with_stem(f"{out.stem}-planned"), ".toml")
    if target in TARGETS and out is None:
        raise UserError(f"--as {target}: the job runs the file that --out names; a value that works: --out run.toml")


def write_plan_files(
    planned: PlanResult, question: PlanQuestion, out: Path | None, target: str | None, trust: bool
) -> PlanFiles:
    """Writes the best layout to `out`, and makes the script of `target`; nothing of both where nothing fits. Raises `UserError`."""
    best, request = planned.best, planned.request
    if best is None:
        return PlanFiles()
    run, export = planned.run(), None
    found = undecided(run, request.model)
    open_keys = [f"before it trains, state {', '.join(each.key for each in found)}"] if found else []
    if target in EXPORTS:
        require_decided(run, request.model, ("optimizer",))
        export = EXPORTS[target](TrainerJob(request, best.candidate, run))
        lost = [f"{run.model.nearest_to}: {each}" for each in run.model.lost]
        export = export._replace(left_out=[*lost, *export.left_out])
    elif target is not None:
        require_itself(run)
        require_decided(run, request.model)
    again = ""
    if out is not None:
        _write(out, planned, run, open_keys)
        again = (
            f"fourfold simulate {out}{repeated(question, TRAINERS[question.for_].software if question.for_ else None)}"
        )
        if target is not None and target in TARGETS:
            job = job_file(out, (), target, code=CodeOptions(trust=trust))
            export = Export(job.text, list(job.notes))
    trainer, unfit = TRAINERS.get(target or ""), None
    if trainer is not None and question.for_ != target and not trainer.permits(request, best.candidate):
        unfit = (
            f"{trainer.title} cannot run this layout; what works: --for {target}, which searches only those that it can"
        )
    return PlanFiles(out, target, export, open_keys, again, unfit)


def _write(out: Path, planned: PlanResult, run: RunConfig, open_keys: Sequence[str]) -> None:
    lines = [format_best_layout(planned.found), *planned.notes, *open_keys]
    if run.batch.steps is None and run.batch.tokens is None:
        lines.append("To train with it, state batch.steps or batch.tokens.")
    write_new_file(out, "".join(f"# {line}\n" for line in lines) + dump_run(run, brief=True))
