"""`fourfold train` under torchrun or Slurm: this process is one of the ranks, and rank 0 prepares the run for all."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from fourfold.api.training import check_request, run_info, say_what_is_imported, write_plain
from fourfold.cli.outcome import conclude, say_finished
from fourfold.config import RunConfig, UserError
from fourfold.launch.changes import begin_changes
from fourfold.launch.external import ExternalRank, start_token, wait_for_start
from fourfold.launch.machine import threads_per_rank
from fourfold.launch.ready import ReadyRun, finished_at, prepare_run
from fourfold.launch.rendezvous_file import find_store, serving
from fourfold.launch.run_folder import RunFolder
from fourfold.report.ending import Command
from fourfold.report.plain import PlainDisplay
from fourfold.report.run_state import RunState
from fourfold.supervise.supervisor import LaunchOutcome

_TICK_SECONDS = 0.5
_SIGTERM_CODE = 143


def train_as_rank(config: RunConfig, folder: RunFolder, command: Command, external: ExternalRank, change: bool) -> int:
    """Trains as one rank of those that another launcher started; the exit code."""
    check_request(config, command.ranks)
    if command.ranks is not None and command.ranks != external.world_size:
        raise UserError(
            f"--ranks {command.ranks}: the environment says that {external.world_size} ranks were started; leave --ranks out"
        )
    os.environ.update(external.environment())  # as the worker reads it, whoever told us
    threads = external.cpus or threads_per_rank(config, external.local_ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # before torch is imported, which reads it then
    token = start_token(config, external)
    if external.rank != 0:
        if finished_at(folder, config) is not None:
            return 0
        wait_for_start(folder, token, external.rank, config.run.timeout_seconds)
        os.environ.update(find_store(folder, external, token, config.run.timeout_seconds))
        return _run_worker(folder)
    say_what_is_imported(config)
    with ExitStack() as locks:
        if stands := folder.config() is not None:
            locks.enter_context(folder.locked())
        ready = prepare_run(config, external.world_size, folder, write_plain, external.local_ranks, change)
        if stands and finished_at(folder, config) is not None:
            say_finished(RunState(run_info(ready, folder), begun=0.0), folder, command)
            return 0
        folder.write(ready.resolved.config, ready.data_table(token))
        if not stands:
            locks.enter_context(folder.locked())
        with serving(folder, external, token) as place:
            os.environ.update(place)
            return _train_first(ready, folder, command)


def _train_first(ready: ReadyRun, folder: RunFolder, command: Command) -> int:
    """Rank 0: trains, prints plain lines meanwhile, and says how it ended."""
    for warning in ready.warnings:
        write_plain(warning)
    state = RunState(run_info(ready, folder))
    begin_changes(folder, ready.changes, ready.step)
    with _plain_lines(state):
        code = _run_worker(folder)
    if code in (0, _SIGTERM_CODE):
        return conclude(LaunchOutcome(code), state, folder, ready.resolved.config, command)
    return code


@contextmanager
def _plain_lines(state: RunState) -> Iterator[None]:
    display = PlainDisplay(state, write_plain)
    display.begin()
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(_TICK_SECONDS):
            display.update()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        display.update()


def _run_worker(folder: RunFolder) -> int:
    """The rank's exit code; a stop by request is that of SIGTERM, so that no launcher takes it for the end."""
    from fourfold.train.worker import STOPPED, run_worker

    code = run_worker(folder.path)
    return _SIGTERM_CODE if code == STOPPED else code
