"""Evaluation: the forward-only program over the validation rows, which every rank runs on its share of them."""

from collections.abc import Callable, Sequence

from fourfold.data.batches import Batch, GlobalBatches
from fourfold.data.validation import NamedSet
from fourfold.program import lower_evaluation
from fourfold.program.view import RankView, rank_view
from fourfold.runtime.executor import Executor
from fourfold.runtime.progress import EVALUATING, ProgressBoard
from fourfold.train.feed import RowFeed, rank_rows


class Evaluation:
    """One rank's share. `spec`: the training step's, with an evaluation's microbatches. A named set is run by the same program, as
    often as its sequences fill the rows of that."""

    def __init__(
        self,
        view: RankView,
        rank: int,
        batches: GlobalBatches,
        sequences: int,
        feed: Callable[[Batch], RowFeed],
        named: Sequence[NamedSet] = (),
    ) -> None:
        """`sequences`: of the validation data. `feed`: from this rank's rows to what its step reads."""
        spec = view.spec.for_evaluation(sequences)
        layout = spec.layout
        self.spec = view.spec.with_microbatches(layout.num_microbatches)
        num_rows = layout.num_microbatches * layout.data_degree * layout.microbatch_sequences
        rows = rank_rows(layout, rank)
        self.program = lower_evaluation(rank_view(spec, view.pp_rank))
        self._feed = feed(batches.validation(sequences, num_rows).select(rows))
        self._named = {
            each.name: [
                (batch.valid_tokens, feed(batch.select(rows)))
                for batch in each.batches(layout.sequence_length, num_rows)
            ]
            for each in named
        }

    def run(self, executor: Executor, board: ProgressBoard, step: int) -> float:
        """The validation loss before step `step`, in nats per token. Raises `StepFailure`."""
        return self._loss(self._feed, executor, board, step)

    def run_named(self, executor: Executor, board: ProgressBoard, step: int) -> dict[str, float]:
        """The loss of each named set, in nats per token: the mean over its targets. Raises `StepFailure`."""
        losses = {}
        for name, feeds in self._named.items():
            total = sum(targets * self._loss(feed, executor, board, step) for targets, feed in feeds)
            losses[name] = total / sum(targets for targets, _ in feeds)
        return losses

    def _loss(self, feed: RowFeed, executor: Executor, board: ProgressBoard, step: int) -> float:
        board.enter(EVALUATING, step, self.program)
        return executor.run(self.program, feed).loss
