"""Evaluation: the forward-only program over the validation rows, which every rank runs on its share of them."""

from collections.abc import Callable

from fourfold.data.batches import Batch, GlobalBatches
from fourfold.program import lower_evaluation
from fourfold.program.view import RankView, rank_view
from fourfold.runtime.executor import Executor
from fourfold.runtime.progress import EVALUATING, ProgressBoard
from fourfold.train.feed import RowFeed, rank_rows


class Evaluation:
    """One rank's share. `spec`: the training step's, with an evaluation's microbatches."""

    def __init__(
        self, view: RankView, rank: int, batches: GlobalBatches, sequences: int, feed: Callable[[Batch], RowFeed]
    ) -> None:
        """`sequences`: of the validation data. `feed`: from this rank's rows to what its step reads."""
        spec = view.spec.for_evaluation(sequences)
        layout = spec.layout
        self.spec = view.spec.with_microbatches(layout.num_microbatches)
        num_rows = layout.num_microbatches * layout.data_degree * layout.microbatch_sequences
        rows = batches.validation(sequences, num_rows).select(rank_rows(layout, rank))
        self.program = lower_evaluation(rank_view(spec, view.pp_rank))
        self._feed = feed(rows)

    def run(self, executor: Executor, board: ProgressBoard, step: int) -> float:
        """The validation loss before step `step`, in nats per token. Raises `StepFailure`."""
        board.enter(EVALUATING, step, self.program)
        return executor.run(self.program, self._feed).loss
