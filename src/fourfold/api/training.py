"""`fourfold.train`: prepares a run, starts its ranks on this machine, and returns what the run left behind."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any

from fourfold.api.inputs import RunInput, TrainOptions, answers, config_of
from fourfold.api.run_feed import RunFeed, run_documents
from fourfold.config import RunConfig, RunFailure, UserError, num_steps
from fourfold.config.errors import error_text
from fourfold.config.run_file import named_code
from fourfold.config.run_rows import read_rows, step_rows
from fourfold.data.skipped import inherit
from fourfold.launch.branch import with_branch
from fourfold.launch.changes import begin_changes
from fourfold.launch.copied import claimed_copies, fetch_from_copies
from fourfold.launch.external import Member, member_of, start_token
from fourfold.launch.layouts_by_ranks import RunSizes
from fourfold.launch.machine import require_packages
from fourfold.launch.ready import ReadyRun, finished_at, prepare_run, settle_rollback, with_decay
from fourfold.launch.run_folder import EVENTS, METRICS, RunFolder, usual_folder
from fourfold.launch.shares import all_ranks, check_spares, here_of, threads_of
from fourfold.layout.resolve import check_ranks
from fourfold.plain_text import plain
from fourfold.rendezvous.ownership import claimed
from fourfold.report.corpus import bytes_per_token
from fourfold.report.display import LiveDisplay, PlainDisplay, Terminal, preparing
from fourfold.report.ending import Command, program_word
from fourfold.report.format_run import layout_line, model_line
from fourfold.report.page_file import REPORT, write_page
from fourfold.report.run_state import RunInfo, RunState
from fourfold.report.run_trace import TRACE, write_run_trace
from fourfold.results.comparison import compare
from fourfold.supervise.blame import Blame
from fourfold.supervise.signals import LaunchOutcome
from fourfold.supervise.supervisor import GOES_ON, Machines, supervise
from fourfold.supervise.watch import Watch
from fourfold.train.fork_server import Started
from fourfold.upkeep.start import Upkeep


@dataclass(frozen=True)
class TrainingEnd:
    """How a launch ended. `outcome` None: the run had finished before, and no rank was started."""

    ready: ReadyRun
    state: RunState
    outcome: LaunchOutcome | None


@dataclass(frozen=True, repr=False)
class TrainResult:
    """A run that finished. `report`: the page that compares the run with its prediction, or why there is none. Metrics and events
    are read from its folder when they are first asked for: those of a long run take much memory."""

    folder: Path
    config: RunConfig
    validation_loss: float | None
    report: str

    @cached_property
    def metrics(self) -> tuple[dict[str, Any], ...]:
        """One row a step, as in `metrics.jsonl`."""
        return tuple(step_rows(self.folder / METRICS).values())

    @cached_property
    def events(self) -> tuple[dict[str, Any], ...]:
        """The events of all launches, as in `events.jsonl`."""
        return tuple(read_rows(self.folder / EVENTS))

    @property
    def steps(self) -> int:
        """Number of steps that the run made, over all its launches."""
        return len(self.metrics)

    @property
    def losses(self) -> list[float]:
        """The training loss of every step, in nats per token."""
        return [float(row["loss"]) for row in self.metrics if row.get("loss") is not None]

    def to_json(self) -> dict[str, Any]:
        """Folder, report, losses, metrics and events as one document."""
        return {
            "folder": str(self.folder),
            "report": self.report,
            "steps": self.steps,
            "validation_loss": self.validation_loss,
            "metrics": list(self.metrics),
            "events": list(self.events),
        }

    def __repr__(self) -> str:
        loss = f", validation loss {self.validation_loss:.4f}" if self.validation_loss is not None else ""
        return f"TrainResult({self.folder}: {self.steps} steps{loss})"

    def _repr_html_(self) -> str:
        from fourfold.api.notebook import train_html

        return train_html(self)


@answers(TrainOptions)
def train(asked: TrainOptions) -> TrainResult:
    """Train a model on this machine, as `fourfold train` does; returns when the run has finished. A folder that holds this run
    already is resumed, under another layout too.

    `ranks`: processes to start, by default as many as the layout asks for, or one a CUDA device. `out`: the run's folder, by
    default runs/NAME for a run file NAME.toml. `change`: a resumed run may go on with another learning rate or schedule.
    `from_`: a new run begins at another's checkpoint, "runs/main@120000".
    `allow_other_code`: it may go on under other code of fourfold than saved it. `quiet`: print nothing.

    Raises `UserError` and `RunFailure` with the command's messages, and `KeyboardInterrupt` where a signal stopped the run, which
    is saved first. Call it from the main thread, in one process: it starts the ranks itself.
    """
    config = config_of(asked.run, asked.overrides)
    member = member_of(os.environ)
    if member is not None:
        raise UserError(
            f"this process is {member} of {member.count} of another launcher; fourfold.train starts all ranks "
            f"itself; what works: fourfold train RUN.toml under that launcher, or this script without it"
        )
    folder = RunFolder(_folder(asked.run, asked.out))
    fetch_from_copies(config, folder)
    config = with_decay(with_branch(config, folder, asked.from_), folder, asked.decay)
    end = train_locally(
        config, asked.ranks, folder, asked.quiet, change=asked.change, allow_other_code=asked.allow_other_code
    )
    if end.outcome is not None and end.outcome.exit_code:
        raise KeyboardInterrupt(
            how_it_stopped(end.outcome, end.state, folder, config, Command(folder.run_file, out=folder.path))
        )
    end.state.refresh()
    loss = end.state.validation
    return TrainResult(
        folder.path,
        folder.require_config(trust=True),
        loss[0] if loss is not None else None,
        write_report(folder),
    )


def _folder(run: RunInput, out: str | os.PathLike[str] | None) -> Path:
    if out is not None:
        return Path(out)
    if not isinstance(run, str | os.PathLike):
        raise UserError("out is missing: a run that is no file names no folder; a value that works: out='runs/first'")
    return usual_folder(run)


def train_locally(
    config: RunConfig,
    ranks: int | None,
    folder: RunFolder,
    quiet: bool = False,
    worker: tuple[str, ...] | None = None,
    grace_seconds: float = 10.0,
    change: bool = False,
    spares: int = 0,
    member: Member | None = None,
    server: Started | None = None,
    allow_other_code: bool = False,
) -> TrainingEnd:
    """Prepares a run, starts its ranks, and shows them until they end, stage after stage. `worker`: a program that stands in for a
    rank. Ranks have `grace_seconds` to end once another ended the run. `spares`: devices or processes of this machine that stay
    free for ranks that lose theirs. `member`: others take part, and this supervisor leads. `server`: what forks ranks, started
    before. Raises `UserError` and `RunFailure`."""
    check_request(config, ranks)
    check_spares(spares)
    if not quiet:
        say_what_is_imported(config)
    upkeep = Upkeep(folder.path)
    try:
        for part in count():
            end = _train_stage(
                config,
                ranks,
                folder,
                quiet,
                worker,
                grace_seconds,
                change,
                spares,
                member,
                server if part == 0 else None,
                part,
                allow_other_code,
                upkeep,
            )
            if end.outcome is None or end.outcome.exit_code or folder.finished_step() is not None:
                return end
    finally:
        upkeep.end(_ignore if quiet else write_plain)
    raise AssertionError("a run ends")


def _train_stage(
    config: RunConfig,
    ranks: int | None,
    folder: RunFolder,
    quiet: bool,
    worker: tuple[str, ...] | None,
    grace_seconds: float,
    change: bool,
    spares: int,
    member: Member | None,
    server: Started | None,
    part: int,
    allow_other_code: bool,
    upkeep: Upkeep,
) -> TrainingEnd:
    """The stage that is due. `part`: how many stages this launch has trained before it."""
    start = start_token(config, member, part) if member is not None else None
    with ExitStack() as locks:
        if stands := folder.config() is not None:
            locks.enter_context(folder.locked())
            settle_rollback(folder)
        with nullcontext(_ignore) if quiet else preparing("preparing the data") as report:
            ready = prepare_run(
                config, all_ranks(config, ranks, member), folder, report, member, spares, change, allow_other_code
            )
        if stands and finished_at(folder, config) is not None:
            return TrainingEnd(ready, RunState(run_info(ready, folder), begun=0.0), None)
        complete, former = ready.staged.config, folder.stage()
        locks.enter_context(claimed(folder.checkpoint_root(complete), ready.owner, is_known=stands))
        unreached = locks.enter_context(claimed_copies(complete, ready.owner, is_known=stands))
        if stands:
            folder.write(complete, ready.data_table(start))
        else:
            locks.enter_context(folder.created(complete, ready.data_table(start)))
        state, size = RunState(run_info(ready, folder)), ready.resolved.layout.world_size
        if not stands:
            inherit(folder.path, ready.inherited)
        upkeep.begin(complete)
        begin_changes(folder, ready.changes, ready.step, is_other_stage=stands and former != ready.stage.number)
        if (
            complete.model.initial is not None
            and (failed := _keep_origin(complete.model.initial, folder))
            and not quiet
        ):
            write_plain(failed)
        seconds = complete.run.timeout_seconds
        watch = Watch(complete.faults, seconds, Blame(ready.resolved))
        launch = partial(
            supervise,
            folder,
            size,
            threads_of(complete, member, here_of(size, member)),
            complete.faults,
            newest_saved(folder, complete, state, ready.step),
            watch,
            command=worker,
            grace_seconds=grace_seconds,
            spares=spares,
            sizes=RunSizes(folder, ready, start),
            keeps_memory=complete.checkpoint.memory_every_steps > 0,
            machines=Machines(member, start, seconds) if member is not None and start is not None else None,
            server=server,
            finished=lambda: "" if folder.finished_step() is not None else GOES_ON,
        )
        if quiet:
            return TrainingEnd(ready, state, launch())
        for line in (*ready.warnings, *filter(None, [unreached]), *watch.notes()):
            write_plain(line)
        with _display(state) as shown:
            return TrainingEnd(ready, state, launch(on_tick=shown.update, on_notice=shown.notice))


def _keep_origin(initial: str, folder: RunFolder) -> str | None:
    from fourfold.checkpoint import keep_origin

    return keep_origin(Path(initial), folder.path)


def check_request(config: RunConfig, ranks: int | None) -> None:
    """Raises `UserError` for what can be known at once."""
    num_steps(config)
    check_ranks(ranks)
    require_packages("train", "torch", "safetensors", "tokenizers")


def say_what_is_imported(config: RunConfig) -> None:
    """A line on each key that names Python code: training runs it."""
    for key, value in named_code(config).items():
        write_plain(f"{key} = {value!r}: this run imports that code")


def _ignore(text: str) -> None:
    pass


@contextmanager
def _display(state: RunState) -> Iterator[LiveDisplay | PlainDisplay]:
    console = Terminal()
    if console.is_terminal:
        with LiveDisplay(state, console) as live:
            yield live
    else:
        plain = PlainDisplay(state, write_plain)
        plain.begin()
        yield plain


def write_plain(text: str) -> None:
    """A line at once, also into a pipe or a file. A terminal or a reader that is gone, or a full disk, ends no run."""
    try:
        print(plain(text), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        with suppress(OSError):
            print(
                "nobody reads the output any more; the run goes on (Ctrl-C saves and stops)",
                file=sys.stderr,
                flush=True,
            )
    except OSError:
        return


def run_info(ready: ReadyRun, folder: RunFolder) -> RunInfo:
    """Figures that displays show of a run beside its metrics."""
    return RunInfo(
        name=folder.path.name,
        folder=short_path(folder.path),
        model=model_line(ready.resolved),
        layout=layout_line(ready.resolved),
        num_steps=ready.staged.course.steps,
        unigram_entropy_nats=ready.prepared[ready.stage.number].unigram_entropy_nats,
        bytes_per_token=bytes_per_token(ready.prepared[ready.stage.number]),
        predicted_peak_bytes=ready.peak_bytes,
    )


def short_path(path: Path) -> Path:
    """Relative where it lies below the current folder, as a person would type it."""
    return path.relative_to(Path.cwd()) if path.is_absolute() and path.is_relative_to(Path.cwd()) else path


def write_report(folder: RunFolder) -> str:
    """Writes the run's page and its trace; where they are, or why there are none."""
    page = folder.path / REPORT
    try:
        found = compare(folder, trust=True)
        write_run_trace(found, folder.path / TRACE)
        feed = RunFeed(folder.path, trust=True)
        feed.refresh()
        write_page(page, folder.path.resolve().name, run_documents(feed, found))
    except UserError as error:
        return f"none: {error}"
    except Exception as error:  # a run has finished whether or not its page can be written
        return f"none: {error_text(error)}; this writes it: {program_word()} report {folder.path}"
    return str(short_path(page))


def how_it_stopped(
    outcome: LaunchOutcome, state: RunState, folder: RunFolder, config: RunConfig, command: Command
) -> str:
    """The line on a run that a signal stopped, and the command that resumes it. Raises `UserError` or `RunFailure` with the message
    of a rank that failed."""
    state.refresh()
    saved = {}
    with suppress(RunFailure):
        saved = {
            step: path for step, path in folder.saved_checkpoints(config).items() if step not in state.refused_steps
        }
    newest = _newest_readable(saved, was_saved=outcome.stopped and not outcome.killed)
    resume = "nothing was saved: the same command begins again"
    if newest is not None:
        resume = f"the same command goes on from step {newest}"
    elif not folder.run_file.exists():
        resume = "once the folder is back, the same command goes on"
    elif saved or state.refused_steps:
        resume = "when a checkpoint can be read again, the same command goes on from it"
    if outcome.stopped:
        how = "ended at once" if outcome.killed else "stopped"
        return f"{how} at step {state.step} of {state.info.num_steps}; {resume}:\n  {command.line()}"
    kind = UserError if outcome.exit_code == 2 else RunFailure
    raise kind(f"{outcome.message}\n{resume}: {command.line()}\nlogs of the ranks: {folder.log(0).parent}")


def newest_saved(folder: RunFolder, config: RunConfig, state: RunState, first: int) -> Callable[[], int]:
    """Tells the step of the newest checkpoint that no rank refused; what it told before while a remote store does not answer.
    `first`: the step without one."""
    told = first

    def newest() -> int:
        nonlocal told
        with suppress(RunFailure):
            told = max(set(folder.saved_steps(config)) - state.refused_steps, default=first)
        return int(told)

    return newest


def _newest_readable(saved: Mapping[int, Path], was_saved: bool) -> int | None:
    """The step of the newest checkpoint that can be read. `was_saved`: the ranks have just written the newest."""
    if not saved or was_saved:
        return max(saved, default=None)
    from fourfold.checkpoint.saved_state import can_be_read

    return next((step for step in sorted(saved, reverse=True) if can_be_read(saved[step])), None)
