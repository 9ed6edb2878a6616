"""The training loop of one rank, from a prepared run folder to a finished run."""

import math
import os
import time
from enum import Enum
from functools import partial
from typing import Any

import torch

from fourfold.checkpoint import step_of
from fourfold.checkpoint.waiting import BEST
from fourfold.config import RunFailure
from fourfold.config.json_lines import finite
from fourfold.data.skipped import LEFT_OUT, begin_rollback, left_out_by, left_out_since
from fourfold.model.counts import step_flops_per_token
from fourfold.program import Program
from fourfold.runtime.corruption import Corruption
from fourfold.runtime.first_bad_tensor import FirstBadTensor
from fourfold.runtime.progress import COPYING, READING, SAVING, TRAINING
from fourfold.runtime.step import Observer, StepFailure, StepResult
from fourfold.runtime.tracker import MemoryTracker
from fourfold.runtime.units import watch_units
from fourfold.train.certificate import certificate, extend
from fourfold.train.divergence import tell_corruption
from fourfold.train.ending import end_training
from fourfold.train.feed import RowFeed
from fourfold.train.garbage import StepGarbage, collected_together
from fourfold.train.measured import check_sent, rank_measured, write_measured
from fourfold.train.metrics import RunLog
from fourfold.train.peak import Peak
from fourfold.train.spikes import Spike, target_of
from fourfold.train.start import RankStart
from fourfold.train.state import finish_rollback, own_steps
from fourfold.train.step_failure import explained, save_barrier
from fourfold.train.step_values import Rates, step_values


class Leg(Enum):
    """How the ranks of a launch ended: the run has finished; it was stopped by request; the same launch goes on with others, in the
    next stage or from an earlier step."""

    FINISHED = "finished"
    STOPPED = "stopped"
    GOES_ON = "goes on"


class Training(RankStart):
    """The steps of one rank."""

    def run(self) -> Leg:
        """Trains until the run has finished, or its launch has to go on with other ranks."""
        log = RunLog(self.out, self.config, self.step) if self.context.rank == 0 else None
        try:
            with collected_together(self.config.run.gc_every_steps) as garbage:
                return self._run(log, garbage)
        except RunFailure as error:
            if isinstance(error, Corruption):
                tell_corruption(error, self.out, self.step, self.context.rank)
            if log is not None and "FOURFOLD_GENERATION" not in os.environ:  # else the supervisor says so
                log.event("failure", step=self.step, message=str(error))
            raise
        finally:
            self.ahead.close()
            if log is not None:
                log.close()

    def _run(self, log: RunLog | None, garbage: StepGarbage) -> Leg:
        config, rank = self.config, self.context.rank
        kind, source = ("resume", {"source": self.resumed_from}) if self.step else ("start", {})
        _event(log, kind, step=self.step, ranks=self.context.world_size, **source, **self.left_out)
        for choice, fields in self.choices.events():
            _event(log, choice, **fields)
        peak = Peak(self.spec.compute, self.context, self.out, partial(_event, log))
        flops = step_flops_per_token(self.spec.model, config.batch.sequence_length)
        rates = Rates(lambda step: self.course.batch_at(step).step_tokens, flops, self.context.world_size, peak)
        if self.step >= self.steps:
            self.validation_loss = self._evaluate()
        while self.step < self.steps:
            if self.stop.stops_before(self.step) or self.step == self.stop_at:
                if self.step:
                    self._save(log, last=True)
                _event(log, "stop", step=self.step)
                return Leg.STOPPED
            garbage.before(self.step)
            before = {axes: group.sent_bytes for axes, group in self.groups.items()}
            start = time.perf_counter()
            lr = self.course.learning_rate(self.step)
            result = self._train_step(lr)
            seconds = time.perf_counter() - start
            self.clock.finish(seconds)
            self.sent_bytes = {axes: group.sent_bytes - before[axes] for axes, group in self.groups.items()}
            if not self.spec.model.num_experts:  # with experts the router decides who sends
                ran = self.programs.at(self.step)
                check_sent(ran.program, ran.declared_bytes, self.sent_bytes, rank, self.step)
            self.tokens += self.course.batch_at(self.step).step_tokens
            self.skipped += result.skipped
            self.chain = extend(self.chain, self.step, result)
            spike = self.spikes.look(result)
            is_bad = result.skipped and not math.isfinite(result.grad_norm)
            diverged = self.skips.count(is_bad)
            if result.skipped and not is_bad:
                _event(log, "skip", step=self.step, message=str(spike))
            elif spike is not None:
                _event(log, "spike", step=self.step, message=str(spike))
            if is_bad:
                tensor = self.skips.locate(self.executor.own_gradients, self.context)
                _event(log, "skip", step=self.step, tensor=tensor)
            self.step += 1
            self.sums.take(self.step)
            counted: dict[str, Any] = {"comm_bytes": self.sent_bytes, "skipped_steps": self.skipped}
            if self.peak_bytes is not None:
                counted["peak_memory_bytes"] = self.peak_bytes
            if self.memory is not None and not result.skipped and self.step % self.memory.every_steps == 0:
                taken = self.memory.take(self.step, self._info(), self.units, self.executor.routers)
                counted["memory_copy_seconds"] = taken
            timed = rates.of(self.step, seconds)
            values = step_values(self.step - 1, result, lr, self.tokens, timed, counted)
            every, last = config.run.evaluate_every, self.step == self.steps
            saves = last or (config.checkpoint.every_steps and self.step % config.checkpoint.every_steps == 0)
            if last or (every is not None and self.step % every == 0):
                begun = time.perf_counter()
                self.validation_loss = values["validation_loss"] = self._evaluate()
                named = {"validation_losses": self.validation_losses} if self.validation_losses else {}
                values |= named
                took = time.perf_counter() - begun
                if saves and (self.best is None or self.validation_loss <= self.best[1]):
                    self.best = self.step, self.validation_loss
                _event(log, "evaluate", step=self.step, validation_loss=self.validation_loss, **named, seconds=took)
            if rank == 0 and log is not None:
                log.step(finite(values))
                if self.sample is not None:
                    log.layers(self.step - 1, self.sample)
            if diverged:
                self._newest_saved(log)
                raise self._diverged(lr)
            if spike is not None and config.spikes.policy == "rollback" and self._rolls_back(log, spike):
                return Leg.GOES_ON
            if saves:
                self._save(log, last)
            self._tell_saves(log)
        if self.stage is self.course.stages[-1]:
            end_training(log, self.board, self.memory, self.step, self.validation_loss)
            return Leg.FINISHED
        follows = self.course.stages[self.stage.number + 1]
        _event(log, "stage", step=self.step, message=f"{follows} begins", validation_loss=self.validation_loss)
        end_training(None, self.board, self.memory, self.step, None)
        return Leg.GOES_ON

    def _rolls_back(self, log: RunLog | None, spike: Spike) -> bool:
        """Goes back to a checkpoint before the spike and past the data since then, where there is one; whether it did."""
        self._newest_saved(log)
        text = ""
        if self.context.rank == 0:
            ends = {stage.end for stage in self.course.stages}
            every = self.config.checkpoint.every_steps
            paths = own_steps(self.config, self.out)
            found = [step for path in paths if (step := step_of(path)) is not None]
            saved = [step for step in found if step in ends or (every and step % every == 0)]  # not those of a stop
            target = target_of(saved, self.step, self.config.spikes, left_out_by(self.out).rollbacks)
            text = str(target or "")
        told = self.context.tell(text, 0)
        if not told:
            return False
        target = int(told)
        if self.context.rank == 0:
            entries = left_out_since(
                target,
                self.step,
                self.batches.begin,
                self.course.samples_before,
                left_out_by(self.out).skipped,
                self.config.data.skip_sequences,
            )
            begin_rollback(self.out, target, entries)
            finish_rollback(self.config, self.out)
            _event(
                log,
                "rollback",
                step=self.step,
                to=target,
                skipped=[entry.model_dump() for entry in entries],
                message=f"{spike}: back to step {target}, without the data of steps {target} to {self.step - 1}",
            )
        end_training(None, self.board, self.memory, self.step, None)
        return True

    def _diverged(self, lr: float) -> RunFailure:
        """Runs the last step once more to find the tensor that is to blame; the message. The state is of no use afterwards."""
        self.step -= 1
        finder = FirstBadTensor(self.executor)
        self._train_step(lr, finder)
        self.step += 1
        return self.skips.failure(self.step, finder.found, self.saved_step, self.context)

    def _train_step(self, lr: float, observer: Observer | None = None) -> StepResult:
        """Runs step number `self.step`, timed where nobody else observes it."""
        self.board.enter(READING, self.step)
        feed = self.ahead.take(self.step)
        ran = self.programs.at(self.step)
        program = ran.program
        self.sample = None
        self.executor.largest_norm = self.spikes.largest_norm()
        self.executor.routers.sequences = self.course.batch_at(self.step).sequences
        self.board.enter(TRAINING, self.step, program)
        try:
            if (
                self._tracks_memory
                and self.peak_bytes is None
                and not ran.spec.sampled
                and ran.spec.layout == self.spec.layout
            ):
                return self._tracked_step(program, feed, lr)
            observer = observer or self.sums.before_update(self.step)
            plain = observer is None and program is self.program
            self.executor.samples.begin(ran.spec)
            if plain and self.config.run.cuda_graphs:
                result = self.graph.run(feed, lr)
            else:
                if plain:
                    self.clock.begin(self.step)
                result = self.executor.run(program, feed, lr, self.clock if plain else observer)
        except StepFailure as error:
            raise self._explain(error, program) from error
        if ran.spec.sampled:
            self.sample = self.executor.samples.read()
        if self.context.device.type == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated(self.context.device)
        return result

    def _tracked_step(self, program: Program, feed: RowFeed, lr: float) -> StepResult:
        """One step with every tensor followed: the measured peak of live tensor bytes, which every later step repeats."""
        tracker = MemoryTracker()
        watch_units(tracker, self.units.values(), self.tables)
        with tracker:
            result = self.executor.run(program, feed, lr)
        self.peak_bytes = tracker.peak_bytes
        return result

    def _evaluate(self) -> float:
        try:
            loss = self.evaluation.run(self.executor, self.board, self.step)
            self.validation_losses = self.evaluation.run_named(self.executor, self.board, self.step)
            return loss
        except StepFailure as error:
            raise self._explain(error, self.evaluation.program) from error

    def _explain(self, error: StepFailure, program: Program) -> RunFailure:
        spec = self.evaluation.spec if program is self.evaluation.program else self.programs.at(self.step).spec
        return explained(error, program, self.config, spec, self.context, self.step, self.out)

    def _save(self, log: RunLog | None, last: bool) -> None:
        """Saves the state, beside training unless it is the `last` save of this launch, which must succeed; not where the latest
        steps were skipped: the checkpoints of a run that diverges are those from before."""
        if self.skips.in_a_row:
            _event(log, "withhold", step=self.step, skipped=self.skips.in_a_row)
        else:
            self._save_state(log, last)
        failed = self._tell_saves(log)
        if last and failed is not None:
            raise failed
        if self.clock.steps:
            rank, device, timed = self.context.rank, self.context.device.type, self.clock.steps
            measured = rank_measured(self.view, self.program, rank, device, timed, self.sent_bytes, self.peak_bytes)
            write_measured(self.out, measured)

    def _newest_saved(self, log: RunLog | None) -> int | None:
        """The step of the newest checkpoint, once the save under way has ended."""
        self.saver.wait()
        self._tell_saves(log)
        return self.saved_step

    def _save_state(self, log: RunLog | None, last: bool) -> None:
        self.skips.require_finite(self.units.values(), lambda: self._newest_saved(log), self.context)
        if self.config.faults.checksum_every_steps:
            self.sums.verify()
            self.executor.replicas.compare()
        info = self._info()
        self.board.enter(SAVING, self.step)
        if self.saver.beside_training and not last:
            self.saver.begin(self.step, info, partial(self.board.enter, COPYING, self.step))
        else:
            meet = partial(save_barrier, self._last_save, self.context.rank, self.step, self.out)
            self.saver.save(self.step, info, meet, self._last_save.advance)

    def _info(self) -> dict[str, Any]:
        """The counters that are saved beside the tensors."""
        counters = {"step": self.step, "tokens": self.tokens, "skipped_steps": self.skipped}
        made_by = self._certificate = self._certificate or certificate(
            self.config, self.program, "", self.choices.recorded
        )
        found = {**counters, "updates": self.executor.updates, **made_by, **self.provenance, "chain": self.chain}
        left_out = [skip.model_dump() for skip in self.left_out_data if skip.step < self.step]
        more = {
            LEFT_OUT: left_out,
            "recent": self.spikes.recent,
            "skipped_in_a_row": self.spikes.in_a_row,
            BEST: self.best,
        }
        return {**found, **{key: value for key, value in more.items() if value}}

    def _tell_saves(self, log: RunLog | None) -> Exception | None:
        """Records the saves that ended; the error of the newest, where it failed."""
        error = None
        for end in self.saver.ended():
            if log is not None:
                _event(log, "save" if end.path is not None else "save_failed", **end.event())
            self.saved_step, error = self.saved_step if end.path is None else end.step, end.error
        return error


def _event(log: RunLog | None, name: str, **values: Any) -> None:
    if log is not None:
        log.event(name, **values)
