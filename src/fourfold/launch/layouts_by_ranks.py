"""A run on fewer ranks than it was given, and back: the same batch and samples under another layout, which the planner picks."""

from collections.abc import Iterator
from contextlib import suppress
from functools import cache

from fourfold.config import RunConfig, UserError
from fourfold.config.layout_section import LayoutSection
from fourfold.hardware import THIS
from fourfold.launch.automatic import automatic_layout
from fourfold.launch.changes import forget_ranks
from fourfold.launch.ready import ReadyRun
from fourfold.launch.resolve import ResolvedRun, resolve_run
from fourfold.launch.run_folder import RunFolder
from fourfold.launch.stages import require_batches
from fourfold.plan.request import kept_keys


class RunSizes:
    """The layouts of one run by the number of its ranks. `full`: those that it was given. `start`: as in `data_table`."""

    def __init__(self, folder: RunFolder, ready: ReadyRun, start: str | None = None) -> None:
        self._folder, self._ready, self._start = folder, ready, start
        self._resolved = ready.resolved
        self.full = ready.resolved.layout.world_size
        self._of = cache(self._find)

    @property
    def saves_regularly(self) -> bool:
        return self._resolved.config.checkpoint.every_steps is not None

    def fit(self, slots: int) -> ResolvedRun | None:
        """The run on as many of these slots as a layout takes; None where there is none of `faults.min_ranks` ranks or more."""
        least = self._resolved.config.faults.min_ranks
        found = (self._of(ranks) for ranks in range(min(slots, self.full), least - 1, -1))
        return next((resolved for resolved in found if resolved is not None), None)

    def take(self, resolved: ResolvedRun) -> None:
        """Makes it the run that ranks start from now on. Raises `RunFailure` where the folder cannot be written."""
        full_run = self._ready.staged.config
        if resolved.layout.world_size != self.full:  # stages to come find their layouts when they are launched
            stages = [section.model_copy(update={"layout": {}}) for section in full_run.stage]
            full_run = full_run.model_copy(update={"layout": resolved.config.layout, "stage": stages})
        self._folder.write(full_run, self._ready.data_table(self._start))
        forget_ranks(self._folder, resolved.layout.world_size)

    def _find(self, ranks: int) -> ResolvedRun | None:
        if ranks == self.full:
            return self._resolved
        for section in self._sections(ranks):
            config = self._resolved.config.model_copy(update={"layout": section})
            try:
                found = resolve_run(config, ranks, self._resolved.model.vocab_size, self._resolved.spec.transport)
                require_batches(self._ready.staged.course, self._ready.stage, found)
            except UserError:
                continue
            if not found.faults():
                return found
        return None

    def _sections(self, ranks: int) -> Iterator[LayoutSection]:
        """Layouts to try: the planner's best, where the cluster is known; else the run's own with less data parallelism, then with
        one axis after another left out, and what those divided sharded over all ranks."""
        config: RunConfig = self._resolved.config
        own = config.layout
        if config.cluster.preset != THIS:
            open_layout = kept_keys(own).model_copy(update={"auto": True})
            with suppress(UserError):
                yield automatic_layout(config.model_copy(update={"layout": open_layout}), self._resolved.model, ranks)
        fewer = own.model_copy(update={"dp_shard": None})
        flat = {"pp": 1, "schedule": "1f1b", "virtual_stages": None, "zero": max(own.zero, 3 if own.pp > 1 else 0)}
        alone = {"tp": 1, "cp": 1, "ep": 1, "etp": 1, "sequence_parallel": None, "zero": 3}
        for change in (
            {},
            {"dp_replicate": 1},
            flat,
            {**flat, "dp_replicate": 1},
            {**flat, **alone, "dp_replicate": 1},
        ):
            for rows in sorted({own.microbatch_sequences, 1}, reverse=True):
                yield fewer.model_copy(update={**change, "microbatch_sequences": rows})
