"""The end of `fourfold train`: what is printed and which exit code, however the run ended."""

from pathlib import Path

from fourfold.config import RunConfig, RunFailure, UserError
from fourfold.launch.processes import LaunchOutcome
from fourfold.launch.ready import ReadyRun
from fourfold.launch.run_folder import RunFolder
from fourfold.report.comparison import compare
from fourfold.report.corpus import bytes_per_token
from fourfold.report.ending import Command, final_lines
from fourfold.report.format_run import layout_line, model_line
from fourfold.report.run_page import PAGE, write_page
from fourfold.report.run_state import RunInfo, RunState
from fourfold.report.run_trace import TRACE, write_run_trace


def write_plain(text: str) -> None:
    """A line at once, also into a pipe or a file."""
    print(text, flush=True)


def run_info(ready: ReadyRun, folder: RunFolder) -> RunInfo:
    """Figures that displays show of a run beside its metrics."""
    return RunInfo(
        name=folder.path.name,
        folder=_short(folder.path),
        model=model_line(ready.resolved),
        layout=layout_line(ready.resolved),
        num_steps=ready.num_steps,
        unigram_entropy_nats=ready.prepared.unigram_entropy_nats,
        bytes_per_token=bytes_per_token(ready.prepared),
        predicted_peak_bytes=ready.peak_bytes,
    )


def _short(path: Path) -> Path:
    """Relative where it lies below the current folder, as a person would type it."""
    return path.relative_to(Path.cwd()) if path.is_absolute() and path.is_relative_to(Path.cwd()) else path


def say_finished(ready: ReadyRun, folder: RunFolder, command: Command) -> None:
    """Lines of a repeated command about a run that has nothing left to do."""
    state = RunState(run_info(ready, folder), begun=0.0)
    state.refresh()
    write_plain(
        f"{folder.path}: this run finished at step {state.step}; to go on, ask for more steps: "
        f"{command.line(f'batch.steps={2 * ready.num_steps}')}"
    )
    write_plain("\n".join(["", *final_lines(state, command, write_report(folder))]))


def write_report(folder: RunFolder) -> str:
    """Writes the run's page and its trace; where they are, or why there are none."""
    page = folder.path / PAGE
    try:
        found = compare(folder)
        write_page(found, folder, page)
        write_run_trace(found, folder.path / TRACE)
    except (UserError, RunFailure) as error:
        return f"none: {error}"
    return str(_short(page))


def conclude(outcome: LaunchOutcome, state: RunState, folder: RunFolder, config: RunConfig, command: Command) -> int:
    """Prints how the run ended; the exit code. Raises `UserError` or `RunFailure` with the message of a rank that failed."""
    state.refresh()
    if outcome.exit_code == 0:
        write_plain("\n".join(["", *final_lines(state, command, write_report(folder))]))
        return 0
    saved = folder.saved_steps(config)
    resume = (
        f"the same command goes on from step {saved[-1]}"
        if saved
        else "nothing was saved: the same command begins again"
    )
    if outcome.stopped:
        how = "ended at once" if outcome.killed else "stopped"
        write_plain(f"{how} at step {state.step} of {state.info.num_steps}; {resume}:\n  {command.line()}")
        return outcome.exit_code
    kind = UserError if outcome.exit_code == 2 else RunFailure
    raise kind(f"{outcome.message}\n{resume}: {command.line()}\nlogs of the ranks: {folder.log(0).parent}")
