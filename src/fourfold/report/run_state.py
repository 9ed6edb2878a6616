"""The state of a run as its folder tells it: metrics and events, in one object that displays read."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fourfold.config.run_rows import clean_row
from fourfold.launch.run_folder import RunFolder
from fourfold.plain_text import plain
from fourfold.report.run_files import RunRecord
from fourfold.report.step_metrics import RECENT_STEPS
from fourfold.report.units import format_flops
from fourfold.results.goodput import MeasuredGoodput


@dataclass(frozen=True)
class RunInfo:
    """The part of a run that does not change while it trains. Sizes in bytes, entropy in nats per token."""

    name: str
    folder: Path
    model: str
    layout: str
    num_steps: int
    unigram_entropy_nats: float | None
    bytes_per_token: float | None
    predicted_peak_bytes: int


@dataclass
class RunState:
    """A run, and its record so far. `begun`: when this launch did, in Unix time."""

    info: RunInfo
    begun: float = field(default_factory=time.time)
    notice: str = ""
    record: "_DisplayRecord" = field(init=False)

    def __post_init__(self) -> None:
        self.record = _DisplayRecord(RunFolder(self.info.folder))

    def refresh(self, most_blocks: int = 0) -> bool:
        """Reads what is new; whether there was anything. `most_blocks`: as of a `RunRecord`."""
        return self.record.refresh(most_blocks)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The newest events of all launches, in order."""
        return self.record.events

    @property
    def last(self) -> Mapping[str, Any]:
        """The newest metrics; empty before the first step."""
        return clean_row(self.record.metrics.last_row)

    @property
    def step(self) -> int:
        """Steps completed: metrics count steps from 0."""
        return self.record.metrics.last_step + 1

    @property
    def new_events(self) -> list[dict[str, Any]]:
        """Events of this launch."""
        return [event for event in self.events if _number(event.get("time"), 0.0) >= self.begun - 1]

    @property
    def losses(self) -> list[float]:
        """The mean loss of each of at most 16,384 parts of the run; of a short run every step's."""
        return self.record.metrics.means("loss")

    @property
    def validation(self) -> tuple[float, int] | None:
        """(validation loss in nats, its step), the newest."""
        if self.record.validation is not None:
            loss, step = self.record.validation
            return loss, step or self.step
        column = self.record.metrics.columns.get("validation_loss")
        return (column.last[1], column.last[0] + 1) if column and column.last else None

    @property
    def validation_losses(self) -> dict[str, float]:
        """Loss of each named validation set in nats, the newest."""
        return next((named_losses(event) for event in reversed(self.events) if event.get("event") == "evaluate"), {})

    @property
    def tokens_per_second(self) -> float | None:
        """Over the last steps together, so that one slow step does not make the display jump."""
        rates, times = (self.record.metrics.latest(key, RECENT_STEPS) for key in ("tokens_per_second", "step_seconds"))
        known = [(rate, seconds) for rate, seconds in zip(rates, times, strict=False) if seconds]
        total = sum(seconds for _, seconds in known)
        return sum(rate * seconds for rate, seconds in known) / total if total else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation over the same steps, of the peak that the run measured."""
        mfu, rate, smooth = self.number("mfu"), self.number("tokens_per_second"), self.tokens_per_second
        return min(1.0, mfu * smooth / rate) if mfu is not None and rate and smooth else None

    @property
    def seconds_left(self) -> float | None:
        """Time that the remaining steps take at the recent pace, evaluations and saves not counted."""
        return self.record.metrics.seconds_left(self.info.num_steps)

    @property
    def finish(self) -> Mapping[str, Any]:
        """This launch's `finish` event; empty while there is none."""
        return next((event for event in reversed(self.new_events) if event.get("event") == "finish"), {})

    @property
    def sample(self) -> Mapping[str, Any]:
        """This launch's `sample` event, with a `text`, or a `message` why there is none; empty while there is none."""
        return next((event for event in reversed(self.new_events) if event.get("event") == "sample"), {})

    @property
    def goodput(self) -> MeasuredGoodput:
        """Seconds of all launches so far by what they went to."""
        return self.record.launches.goodput(self.record.metrics.step_times(), time.time())

    @property
    def refused_steps(self) -> set[float]:
        """Steps of the checkpoints that could not be read, and were not saved again since."""
        return self.record.refused

    def number(self, key: str) -> float | None:
        """A number of the newest metrics that has one."""
        return _number(self.last.get(key))


def _number(value: Any, default: float | None = None) -> Any:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default


class _DisplayRecord(RunRecord):
    """A run's record, with what its displays ask of all events. `validation`: the newest loss, and the steps before it, 0 where its
    event has none. `refused`: steps of checkpoints that could not be read, and were not saved again since."""

    validation: tuple[float, int] | None
    refused: set[float]

    def _restart_events(self) -> None:
        super()._restart_events()
        self.validation, self.refused = None, set()

    def take(self, event: dict[str, Any]) -> None:
        super().take(event)
        kind, step = event.get("event"), _number(event.get("step"), -1.0)
        if kind == "refuse":
            self.refused.add(step)
        elif kind == "save":
            self.refused.discard(step)
        elif kind in ("evaluate", "finish") and (loss := _number(event.get("validation_loss"))) is not None:
            self.validation = loss, int(event.get("step") or 0)


CHOICES = {"loss": "cross-entropy", "pointwise": "SwiGLU and rotary embedding", "recurrence": "gated delta rule"}
"""The work that a back end was chosen for, where the event's kind does not say it (`kernels.kinds`)."""


def named_losses(event: Mapping[str, Any]) -> dict[str, float]:
    """Losses of the named validation sets of an event, in nats."""
    stated = event.get("validation_losses")
    found = {str(name): _number(loss) for name, loss in stated.items()} if isinstance(stated, dict) else {}
    return {name: loss for name, loss in found.items() if loss is not None}


def _losses(event: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{name} {loss:.4f}" for name, loss in named_losses(event).items())
    return f" ({listed})" if listed else ""


def describe_event(event: Mapping[str, Any]) -> str:
    """Plain text, in one line unless a message has several."""
    return plain(_described(event))


def _described(event: Mapping[str, Any]) -> str:
    kind = str(event.get("event", "?"))
    step = event.get("step")
    at = f" at step {step}" if step is not None else ""
    loss = _number(event.get("validation_loss"))
    if kind == "phase":
        return str(event.get("name") or event.get("what") or kind)
    if "backend" in event:
        return f"{CHOICES.get(kind, kind)} by {event['backend']}: {event.get('message', '')}"
    sources = {"memory": "in memory", "copy": "of the copies"}
    texts = {
        "launch": "starting the ranks",
        "machine": f"MFU counts from {format_flops(_number(event.get('peak_flops'), 0.0))}/s a rank, its best matmul{at}",
        "preflight": f"links: {event.get('message', '')}",
        "start": "training starts",
        "resume": f"resumed from step {step} {sources[source]}"
        if (source := event.get("source")) in sources
        else f"resumed{at}",
        "fetch": str(event.get("message", "")),
        "copy": f"the checkpoint of step {step} is copied to {event.get('to')}",
        "copy_failed": f"no copy{at and f' of step {step}'}: {event.get('message', '')}",
        "export": f"the checkpoint of step {step} is exported to {event.get('to')}",
        "export_failed": f"no export{at and f' of step {step}'}: {event.get('message', '')}",
        "memory_refused": f"a copy in memory is not used: {event.get('message', '')}",
        "memory_failed": f"no copies in memory: {event.get('message', '')}",
        "refuse": f"the checkpoint of step {step} is not used: {event.get('message', '')}",
        "evaluate": f"validation loss {loss:.4f}{at}{_losses(event)}" if loss is not None else f"evaluated{at}",
        "save": f"checkpoint saved{at}{'; ' if event.get('message') else ''}{event.get('message') or ''}",
        "withhold": f"no checkpoint{at}: the last {event.get('skipped')} steps were skipped",
        "skip": f"the gradients of step {step} are not finite: first {event.get('tensor') or 'that of no rank alone'}",
        "corruption": f"found{at}: {event.get('message', '')}",
        "save_failed": f"no checkpoint{at}: {event.get('message', '')}",
        "stop": f"stopped{at}",
        "code": f"goes on{at} under other code: {event.get('message', '')}",
        "branch": f"branched{at} from {event.get('message', '')}",
        "change": f"goes on{at} with {event.get('message', '')}",
        "wait": f"waiting for {event.get('message', '')}",
        "lose": f"{event.get('message', '')}; it takes no rank any more",
        "find": f"device {event.get('slot')} of machine {event.get('machine')} works again",
        "restore": str(event.get("message", "")),
        "resize": f"goes on{at} with {event.get('message', '')}",
        "failure": f"failed{at}: {event.get('message', '')}",
        "straggler": f"rank {event.get('rank')} is slow: its own work takes {_number(event.get('ratio'), 0.0):.1f} x its peers'",
        "restart": f"starting all ranks again{' from step ' + str(step) if step else ''}",
        "finish": f"finished{at}",
        "sample": f"no sample: {event.get('message')}" if event.get("message") else "the model wrote a sample",
        "log_failed": f"a tracker missed the end of the run: {event.get('message', '')}",
    }
    extra = event.get("message") or event.get("path") or ""
    return texts.get(kind, f"{kind}{at}{': ' + str(extra) if extra else ''}")
