"""The start of one rank: its program, data, groups, kernels and state, new or from a checkpoint, until the first step."""

from pathlib import Path
from typing import Any

from fourfold.checkpoint.waiting import BEST
from fourfold.config import FinalFailure
from fourfold.config.own_code import own_code
from fourfold.data.batches import Batch, GlobalBatches
from fourfold.data.prepared import open_prepared
from fourfold.data.skipped import skipped_data
from fourfold.data.stage_place import place_of
from fourfold.data.validation import named_sets
from fourfold.huggingface import resolve_model
from fourfold.kernels.kinds import choose_for_run
from fourfold.layout import resolve_layout
from fourfold.model.torch_scaled import check_kernels
from fourfold.program import digest
from fourfold.program.resolve import resolve_step
from fourfold.program.spec import transport_on
from fourfold.program.view import rank_view
from fourfold.rendezvous.ownership import run_in
from fourfold.runtime.clock import StepClock
from fourfold.runtime.device_progress import open_board
from fourfold.runtime.executor import Executor
from fourfold.runtime.graph import StepGraph, capture_cuda, check_graphs
from fourfold.runtime.sampling import LayerSample
from fourfold.runtime.units import FillShard, build_units, share_parameters
from fourfold.train import state
from fourfold.train.batches_ahead import BatchesAhead
from fourfold.train.connections import connected_groups
from fourfold.train.divergence import SkippedSteps
from fourfold.train.evaluation import Evaluation
from fourfold.train.feed import RowFeed, feed_tables, rank_feed, rank_rows
from fourfold.train.memory_plan import MemoryCopy
from fourfold.train.metrics import append_event
from fourfold.train.peer_memory import open_peer_memory
from fourfold.train.provenance import ALLOWED, lineage_from, provenance, require_same_code, tell_origin
from fourfold.train.resume import Resumption
from fourfold.train.saver import Saver
from fourfold.train.session import RankContext, StopSignal
from fourfold.train.spikes import SpikeDetector
from fourfold.train.state_sums import StateSums
from fourfold.train.step_programs import StepPrograms

_ALIKE = ("dp_replicate", "dp_shard", "cp", "tp")
"""Axes along which all ranks run one program."""


class RankStart:
    """Everything one rank holds while it trains."""

    def __init__(self, out: Path, context: RankContext, stop: StopSignal) -> None:
        self.out, self.context, self.stop = out, context, stop
        self.board, self.progress = open_board(out, context.rank, context.device)
        self.course, self.stage = state.run_stage(out)
        self.config, table = self.stage.config, state.run_data(out)
        model = resolve_model(self.config.model)
        layout = resolve_layout(self.config, model, context.world_size)
        self.spec = resolve_step(self.config, model, layout, transport_on(context.device.type))
        check_kernels(self.spec.recipe, context.device)
        layout = self.spec.layout
        self.view = rank_view(self.spec, layout.coordinates(context.rank)["pp"])
        self.programs = StepPrograms(self.view, self.config, lambda step: self.course.batch_at(step).sequences)
        self.program = self.programs.plain.program
        self.steps = self.stage.end
        self.tables = feed_tables(self.spec, context.device)
        require_same_code(table)
        if not table.get(ALLOWED):
            context.agree("code", own_code().digest, 0)
        self.stop_at: int | None = table.get("stop_at")  # of a replay
        if context.rank == 0:  # one that was cut short
            context.store.set("rollback", str(state.finish_rollback(self.config, out) or ""))
        went_back = context.store.get("rollback").decode()
        prepared = open_prepared(table["prepared"])
        self.left_out = prepared.left_out()
        if "tokens" in table:
            prepared.require(table["tokens"])
        self.left_out_data = skipped_data(self.config, out)
        self.batches = GlobalBatches.of_run(
            prepared, self.config, place_of(self.course, self.stage, self.left_out_data)
        )
        sets = {name: open_prepared(path) for name, path in table.get("validation", {}).items()}
        named, sequences = named_sets(self.config, prepared, sets), self.config.run.evaluate_sequences
        self.evaluation = Evaluation(self.view, context.rank, self.batches, sequences, self._feed, named)
        self.ahead = BatchesAhead(self.batches, self._own_rows, self._feed, self.steps, context.device)
        first = layout.group_of(context.rank, _ALIKE)[0]
        context.agree(f"program of pp {self.view.pp_rank}", digest(self.program), first)
        programs = (self.program, self.evaluation.program)
        self.groups = connected_groups(self.config, self.spec, programs, context, self.board, out)
        self.memory = open_peer_memory(self.config, out, context, self.view)
        copy = self.memory.find() if self.memory is not None else None
        if went_back and copy is not None and copy.step > int(went_back):
            copy = None
        starting = self._starting = context.barrier("parameters", self.board.record)
        resumption = Resumption(lambda: state.saved_steps(self.config, out), context, copy, starting.meet)
        released = state.initial_folder(self.config, self.spec) if resumption.is_new else None
        fill: FillShard = state.no_fill
        if resumption.is_new:
            fill = state.initial_fill(released, self.config.run.seed, layout, context.rank, starting.advance)
        section = self.config.optimizer
        saved = copy.manifest if copy is not None else None
        self.choices = choose_for_run(*(self.config, self.spec, self.program, context, resumption.newest, saved), out)
        self.units = build_units(self.view, context.rank, section, context.device, fill)
        self.executor = Executor(
            *(self.view, self.units, self.groups, section, context.device, context.rank, self.progress.record),
            operations=self.choices.operations,
            locate_nan=self.config.faults.locate_nan,
            fixed=self.config.run.cuda_graphs,
        )
        check_graphs(self.config, self.spec, context.device, self.choices.recorded["attention"])
        self.graph = StepGraph(self.executor, self.program, capture_cuda, before_replay=self.progress.replay)
        self.step = self.tokens = self.skipped = 0
        self.saved_step: int | None = None
        self.skips = SkippedSteps(self.config)
        self.chain, self.resumed_from = "", ""
        self._certificate: dict[str, Any] = {}
        self.spikes = SpikeDetector(self.config.spikes)
        self.best: tuple[int, float] | None = None
        self.validation_loss: float | None = None
        self.validation_losses: dict[str, float] = {}
        if not resumption.is_new:
            info = resumption.restore(self._restore, self._refuse)
            self.spikes = SpikeDetector(self.config.spikes, info.get("recent", ()), info.get("skipped_in_a_row", 0))
            self.best = tuple(found) if (found := info.get(BEST)) is not None else None
            self.step, self.tokens, self.skipped = info["step"], info["tokens"], info["skipped_steps"]
            self._require_stage()
            self.executor.updates, self.chain = info["updates"], info.get("chain", "")
            self.saved_step = self.step
            self.resumed_from = (
                "memory" if resumption.memory is not None else state.kind_of_place(self._restored, table)
            )
            run = run_in(out).get("run", "")
            lineage = lineage_from(info, run, self._restored)
            if context.rank == 0:
                tell_origin(out, info, lineage, run)
        else:
            lineage = []
            state.initial_biases(released, self.view, self.executor.routers)
            starting.meet()
        self.provenance = provenance(table, lineage)
        if self.memory is not None:
            self.memory.begin(resumption.memory)
        share_parameters(self.spec, self.units, self.groups)
        own, ends = (self.units, self.executor.routers, context.rank), [each.end for each in self.course.stages]
        self.saver = Saver(self.config, out, self.view, *own, context.barrier("save"), self.board.saves, ends)
        self._last_save = context.barrier("last save", self.board.record)
        self.sums = StateSums(self.config, self.steps, self.units, context.rank)
        self.peak_bytes: int | None = None
        self.sample: LayerSample | None = None
        self.sent_bytes: dict[str, int] = {}
        self.clock = StepClock(context.device, events=self.progress.events)
        self._tracks_memory = self.config.run.track_memory and context.device.type == "cpu"

    def _restore(self, path: Path, copy: MemoryCopy | None) -> dict[str, Any]:
        """Fills this rank's state from a checkpoint, or from a copy in memory."""
        place = self.view, self.units, self.executor.routers, self.context.rank
        self._restored = path
        if copy is None or self.memory is None:
            return state.restore(path, *place, advance=self._starting.advance)
        shards = state.unit_shards(self.spec.layout, self.units, self.context.rank)
        sources = self.memory.fetch(copy, shards, state.extra_tensors(self.view, self.executor.routers))
        return state.restore(path, *place, copy.manifest, sources, self._starting.advance)

    def _refuse(self, step: int, problem: str) -> None:
        """Says at once that a checkpoint is passed over, whether or not the run then goes on."""
        if self.context.rank == 0:
            append_event(self.out, "refuse", step=step, message=problem)

    def _require_stage(self) -> None:
        """Raises `FinalFailure` where the state that could be read is of another stage than the newest checkpoint."""
        found = self.course.stage_at(min(self.step, self.course.steps - 1))
        if found.number != self.stage.number:
            raise FinalFailure(
                f"the newest checkpoint that can be read is that of step {self.step}, in {found}, and the run had come to "
                f"{self.stage} "
                f"(from step {self.stage.begin}); move the checkpoints from step {self.stage.begin} on away, and the same "
                f"command goes on from step {self.step}"
            )

    def _own_rows(self, step: int) -> list[int]:
        """This rank's rows of a step's global batch."""
        return rank_rows(self.programs.at(step).spec.layout, self.context.rank)

    def _feed(self, rows: Batch) -> RowFeed:
        return rank_feed(self.spec, rows, self.context.rank, self.tables)
