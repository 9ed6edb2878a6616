"""The end of `fourfold train`: what is printed and which exit code, however the run ended."""

from fourfold.api.training import how_it_stopped, write_plain, write_report
from fourfold.config import RunConfig
from fourfold.launch.run_folder import RunFolder
from fourfold.report.ending import Command, final_lines
from fourfold.report.run_state import RunState
from fourfold.supervise.signals import LaunchOutcome


def say_finished(state: RunState, folder: RunFolder, command: Command) -> None:
    """Lines of a repeated command about a run that has nothing left to do."""
    state.refresh()
    write_plain(
        f"{folder.path}: this run finished at step {state.step}; to go on, ask for more steps: "
        f"{command.line(f'batch.steps={2 * state.info.num_steps}')}"
    )
    write_plain("\n".join(["", *final_lines(state, command, write_report(folder))]))


def conclude(outcome: LaunchOutcome, state: RunState, folder: RunFolder, config: RunConfig, command: Command) -> int:
    """Prints how the run ended; the exit code. Raises `UserError` or `RunFailure` with the message of a rank that failed."""
    if outcome.exit_code == 0:
        state.refresh()
        write_plain("\n".join(["", *final_lines(state, command, write_report(folder))]))
    else:
        write_plain(how_it_stopped(outcome, state, folder, config, command))
    return outcome.exit_code
