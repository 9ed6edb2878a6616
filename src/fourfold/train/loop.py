"""The training loop of one rank, from a prepared run folder to a finished run."""

import os
import time
from functools import partial
from typing import Any

import torch

from fourfold.config import RunFailure
from fourfold.config.json_lines import finite
from fourfold.config.optimizers import learning_rate
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
from fourfold.train.start import RankStart
from fourfold.train.step_failure import explained, save_barrier
from fourfold.train.step_values import Rates, step_values


class Training(RankStart):
    """The steps of one rank. `run` returns whether the run is finished (False: stopped by request)."""

    def run(self) -> bool:
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

    def _run(self, log: RunLog | None, garbage: StepGarbage) -> bool:
        config, rank = self.config, self.context.rank
        kind, source = ("resume", {"source": self.resumed_from}) if self.step else ("start", {})
        _event(log, kind, step=self.step, ranks=self.context.world_size, **source, **self.left_out)
        for choice, fields in self.choices.events():
            _event(log, choice, **fields)
        peak = Peak(self.spec.compute, self.context, self.out, partial(_event, log))
        flops = step_flops_per_token(self.spec.model, config.batch.sequence_length)
        rates = Rates(config.batch, flops, self.context.world_size, peak)
        if self.step >= self.steps:
            self.validation_loss = self._evaluate()
        while self.step < self.steps:
            if self.stop.stops_before(self.step) or self.step == self.stop_at:
                if self.step:
                    self._save(log, last=True)
                _event(log, "stop", step=self.step)
                return False
            garbage.before(self.step)
            before = {axes: group.sent_bytes for axes, group in self.groups.items()}
            start = time.perf_counter()
            lr = learning_rate(config.optimizer, self.step, self.steps)
            result = self._train_step(lr)
            seconds = time.perf_counter() - start
            self.clock.finish(seconds)
            self.sent_bytes = {axes: group.sent_bytes - before[axes] for axes, group in self.groups.items()}
            if not self.spec.model.num_experts:  # with experts the router decides who sends
                ran = self.programs.at(self.step)
                check_sent(ran.program, ran.declared_bytes, self.sent_bytes, rank, self.step)
            self.tokens += config.batch.global_sequences * config.batch.sequence_length
            self.skipped += result.skipped
            self.chain = extend(self.chain, self.step, result)
            diverged = self.skips.count(result.skipped)
            if result.skipped:
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
            if last or (every is not None and self.step % every == 0):
                begun = time.perf_counter()
                self.validation_loss = values["validation_loss"] = self._evaluate()
                took = time.perf_counter() - begun
                _event(log, "evaluate", step=self.step, validation_loss=self.validation_loss, seconds=took)
            if rank == 0 and log is not None:
                log.step(finite(values))
            if diverged:
                self._newest_saved(log)
                raise self._diverged(lr)
            if last or (config.checkpoint.every_steps and self.step % config.checkpoint.every_steps == 0):
                self._save(log, last)
            self._tell_saves(log)
        end_training(log, self.board, self.memory, self.step, self.validation_loss)
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
        program = self.programs.at(self.step).program
        self.board.enter(TRAINING, self.step, program)
        try:
            if self._tracks_memory and self.peak_bytes is None:
                return self._tracked_step(program, feed, lr)
            observer = observer or self.sums.before_update(self.step)
            plain = observer is None and program is self.program
            if plain and self.config.run.cuda_graphs:
                result = self.graph.run(feed, lr)
            else:
                if plain:
                    self.clock.begin(self.step)
                result = self.executor.run(program, feed, lr, self.clock if plain else observer)
        except StepFailure as error:
            raise self._explain(error, program) from error
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
            return self.evaluation.run(self.executor, self.board, self.step)
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
        return {**counters, "updates": self.executor.updates, **made_by, **self.provenance, "chain": self.chain}

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
