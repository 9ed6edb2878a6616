"""A run's folder as one document that is asked for again and again while the run trains: what is new is read, nothing twice."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fourfold.config import RunConfig, UserError, num_steps
from fourfold.config.run_file import named_code
from fourfold.config.run_rows import clean_row, finite_number, newest_rows, quantity
from fourfold.launch.machine import num_cuda_devices, transport_of
from fourfold.launch.resolve import ResolvedRun
from fourfold.launch.run_folder import RunFolder
from fourfold.launch.shown import resolve_shown
from fourfold.report.format_run import layout_line, model_line
from fourfold.report.history import History
from fourfold.report.layer_strips import LayerStrips
from fourfold.report.run_files import RunRecord, check_files
from fourfold.report.run_state import describe_event
from fourfold.report.step_metrics import rounded
from fourfold.results.comparison import Comparison
from fourfold.results.record import document, shown
from fourfold.results.run import CurveDocument, EventDocument, RankPlace, RunDocument
from fourfold.results.step_timeline import comparison_document
from fourfold.runtime.progress import ACTIVITIES, read_positions
from fourfold.supervise.blame import Blame, Sighting
from fourfold.supervise.doctor import process_states
from fourfold.train.measured import FOLDER

_SHOWN_TEXT = 2_000
_SHOWN_RANKS = 1024
_NUMBERS = ("time", "seconds", "held_seconds", "stood_still_seconds", "validation_loss", "ratio", "peak_flops")
_ENDS = {"finish": "finished", "stop": "stopped", "failure": "failed"}


class RunFeed(RunRecord):
    """Follows a run's folder. `trust`: its run file may name Python code, which is then imported to name instructions.

    Ranks stand at instructions without a name until `prepare` has compiled the programs: that of a long pipeline takes seconds.
    """

    def __init__(self, path: Path, trust: bool = False) -> None:
        self._folder, self._trust = RunFolder(path), trust
        super().__init__(self._folder, _clean)
        self.layers = LayerStrips(self._folder.layers)
        self._read_of, self._problem = -1.0, ""
        self._resolved: ResolvedRun | None = None
        self._blame: Blame | None = None

    def _restart_events(self) -> None:
        super()._restart_events()
        self._stands, self.history = "", History()

    def take(self, event: dict[str, Any]) -> None:
        """Adds an event, the newest, to the time line too."""
        super().take(event)
        self.history.add(event)
        if event["event"] in (*_ENDS, "launch", "restart", "start", "resume"):
            self._stands = event["event"]

    def refresh(self, most_blocks: int = 0) -> bool:
        """Reads what is new; whether there was anything. Raises `UserError` where the folder holds files that no run leaves."""
        check_files(self._folder.path)
        self.layers.refresh()
        return super().refresh(most_blocks)

    def prepare(self) -> None:
        """Compiles the run's programs, where that is not done. Another thread may ask for documents meanwhile."""
        self._resolve(self._folder.stage_config(trust=True))
        resolved = self._resolved
        if resolved is not None and self._blame is None:
            blame = Blame(resolved)
            blame.compile()
            if resolved is self._resolved:
                self._blame = blame

    @property
    def is_prepared(self) -> bool:
        """Whether there is nothing to compile."""
        return self._resolved is None or self._blame is not None

    def document(self, first: int = 0, last: int | None = None) -> dict[str, Any]:
        """The run as it stands: curves from step `first` to `last`, events, goodput, ranks. Call `refresh` before. Raises
        `UserError`."""
        config = self._folder.require_config(trust=True)
        self._resolve(self._folder.stage_config(trust=True))
        now, metrics, resolved = time.time(), self.metrics, self._resolved
        ranks = where_ranks_stand(
            self._folder.path, self._blame, now, resolved.layout.world_size if resolved else _SHOWN_RANKS
        )
        alive = any(rank.state not in ("", "Z") for rank in ranks)
        steps = num_steps(config)
        newest, latest, behind = self._newest()
        end = metrics.last_step if last is None else last
        spent = self.launches.goodput(metrics.step_times(), now if alive else 0.0)
        found = RunDocument(
            name=Path(os.path.realpath(self._folder.path)).name,
            folder=str(self._folder.path),
            model=model_line(resolved) if resolved is not None else None,
            layout=layout_line(resolved) if resolved is not None else None,
            num_steps=steps,
            step=newest.get("step", -1) + 1,
            alive=alive,
            state=self._state(alive),
            seconds_left=(metrics.seconds_left(steps) or None) if alive else None,
            now=now,
            measured_time=_newest(self._folder.path / FOLDER),
            latest=latest,
            curves={key: shown(CurveDocument, curve) for key, curve in self.curves(first, end).items()},
            events=[
                EventDocument(time=event.get("time"), event=event["event"], step=event.get("step"), text=event["text"])
                for event in self.events
            ],
            num_events=self.num_events,
            history=self.history.entries,
            num_history=self.history.num_events,
            goodput=spent.record(),
            ranks=ranks[:_SHOWN_RANKS],
            num_ranks=len(ranks),
            notes=[*([self._problem] if self._problem else []), *behind],
            num_samples=self.layers.num_samples,
        )
        return dict(document(found))

    def _newest(self) -> tuple[Mapping[str, Any], dict[str, float], list[str]]:
        """The newest row, the newest value of every number, and where the rows before are still being read a line on that."""
        metrics = self.metrics
        latest = {key: rounded(column.last[1]) for key, column in metrics.columns.items() if column.last}
        if not self.behind:
            return {"step": metrics.last_step}, latest, []
        row = next((row for row in newest_rows(self._folder.metrics) if row.get("step") is not None), {})
        found = {key: quantity(key, value) for key, value in row.items() if key in latest}
        latest |= {key: rounded(value) for key, value in found.items() if value is not None}
        return (
            row,
            latest,
            [f"the metrics are still being read: curves and goodput have steps to {metrics.last_step:,} so far"],
        )

    def _state(self, alive: bool) -> str:
        if self._stands in _ENDS:
            return _ENDS[self._stands]
        if self._stands in ("launch", "restart"):
            return "starting" if alive else "not running on this machine"
        if self._stands in ("start", "resume"):
            return "training" if alive else "not running on this machine"
        return "training" if alive else "not started"

    def _resolve(self, config: RunConfig) -> None:
        """Compiles the run that the folder's run file states, again where the file is a newer one."""
        written = self._folder.run_file.stat().st_mtime
        if written == self._read_of:
            return
        self._read_of, self._resolved, self._blame, self._problem = written, None, None, ""
        code = named_code(config)
        if code and not self._trust:
            names = ", ".join(f"{key} = {value!r}" for key, value in code.items())
            self._problem = f"{names}: this run names Python code, which is not imported to show it"
            return
        try:
            self._resolved = resolve_shown(config, transport_of(config, num_cuda_devices(config)))
        except UserError as error:
            self._problem = str(error)


_MOST_WAITED = 8
_MOST_TRACED = 512
"""Ranks of a run beyond which nobody is told who waits for whom: `fourfold doctor` does."""


def where_ranks_stand(folder: Path, blame: Blame | None, now: float, ranks: int) -> list[RankPlace]:
    """A row a rank, of the first `ranks`: its process's `state` in /proc (empty: gone), step, instruction `index` of
    `num_instructions`, `seconds` since it last got on, `waits_for` as (rank, group). Without `blame`, or where the file is not that
    run's, places have no names."""
    positions = read_positions(folder, ranks=ranks)
    seen = [Sighting(p, state) for p, state in zip(positions, process_states(positions), strict=True)]
    if blame is not None:
        try:
            return [_place(rank, seen, now, blame) for rank in range(len(seen))]
        except (LookupError, ValueError):
            pass
    return [_place(rank, seen, now, None) for rank in range(len(seen))]


def _place(rank: int, seen: Sequence[Sighting], now: float, blame: Blame | None) -> RankPlace:
    position = seen[rank].position
    known = blame is not None and position.pid > 0
    waits = blame.held_up_by(rank, seen) if blame is not None and known and len(seen) <= _MOST_TRACED else []
    return RankPlace(
        rank=rank,
        state=seen[rank].state,
        activity=ACTIVITIES[position.kind].removesuffix(",").removesuffix(" of"),
        step=position.step,
        index=position.at,
        num_instructions=blame.num_instructions(position, rank) if blame is not None and known else 0,
        instruction=blame.instruction(position, rank) if blame is not None and known else "",
        seconds=finite_number(now - position.time) if position.pid > 0 else None,
        waits_for=[(wait.member, wait.group) for wait in waits[:_MOST_WAITED]],
    )


def _clean(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event whose numbers are numbers and whose texts are short, with its line of text."""
    event = clean_row(event)
    found: dict[str, Any] = {"event": str(event.get("event", "?"))[:80]}
    found |= {key: event[key] for key in ("step", *_NUMBERS) if event.get(key) is not None}
    words = ("message", "what", "name", "path", "rank", "skipped", "backend", "slot", "machine", "tensor", "source")
    found |= {key: str(event[key])[:_SHOWN_TEXT] for key in words if event.get(key) is not None}
    return {**found, "text": describe_event(found)[:_SHOWN_TEXT]}


def _newest(folder: Path) -> float | None:
    """When the newest file of a folder was written."""
    return max((path.stat().st_mtime for path in folder.glob("rank-*.json")), default=None)


def run_documents(feed: RunFeed, found: Comparison) -> dict[str, Any]:
    """The documents of a run's page: the run as it stands, its comparison with the prediction, its metrics, and those of its layers
    where steps were sampled. Call `refresh` before."""
    feed.prepare()
    found_layers = {"layers": document(feed.layers.record())} if feed.layers.num_samples else {}
    documents = {"run": feed.document(), "comparison": comparison_document(found), "metrics": feed.metrics.table()}
    return {**documents, **found_layers}
