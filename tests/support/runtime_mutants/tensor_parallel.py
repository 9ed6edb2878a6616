"""Tensor parallelism with one collective, factor or part wrong."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from fourfold.model.tensor_parallel import Arriving, ColumnInput
from fourfold.runtime.compute import SegmentRunner
from tests.support import parity_ranks
from tests.support.runtime_mutants.edits import everywhere, mutant, part_of, reductions_without, replaced


@mutant
def row_parallel_outputs_are_not_summed() -> Iterator[None]:
    def partial(x: Any, parallel: Any) -> Arriving:
        full = parallel.tp is None or not parallel.sequence
        return Arriving(x if full else part_of(x, parallel.tp))

    with everywhere("sum_partial", lambda original: partial):
        yield


@mutant
def row_parallel_outputs_are_summed_twice() -> Iterator[None]:
    def make(original: Any) -> Any:
        def partial(x: Any, parallel: Any) -> Arriving:
            result = original(x, parallel).wait()
            return Arriving(result, parallel.tp.all_reduce(result))

        return partial

    with everywhere("sum_partial", make):
        yield


@mutant
def parts_of_the_sequence_are_gathered_in_reverse() -> Iterator[None]:
    def make(original: Any) -> Any:
        def gather(x: Any, parallel: Any) -> Arriving:
            full = original(x, parallel).wait()
            return Arriving(full.view(parallel.tp.size, *x.shape).flip(0).view(full.shape))

        return gather

    with everywhere("gather_tokens", make):
        yield


@mutant
def inputs_for_weight_gradients_are_this_ranks_tokens() -> Iterator[None]:
    def gather(self: ColumnInput) -> None:
        tp = self._env.parallel.tp
        assert tp is not None
        self._full = Arriving(self._local.repeat(tp.size, 1))

    with patch.object(ColumnInput, "_gather", gather):
        yield


@mutant
def gradients_of_full_parameters_are_not_summed() -> Iterator[None]:
    with reductions_without(lambda flat, axes: axes == "tp"):
        yield


@mutant
def gradients_of_copied_heads_are_not_summed() -> Iterator[None]:
    with reductions_without(lambda flat, axes: axes == "tp_copy"):
        yield


@mutant
def tokens_of_other_vocabularies_are_embedded_too() -> Iterator[None]:
    def make(original: Any) -> Any:
        def rows(*args: Any) -> Any:
            index, elsewhere = original(*args)
            return index, elsewhere & ~elsewhere

        return rows

    with everywhere("_local_rows", make):
        yield


@mutant
def exponentials_of_different_maxima_are_added() -> Iterator[None]:
    def make(original: Any) -> Any:
        def combine(env: Any, local: Any, tp: Any) -> Any:
            local = env.ops.stack(local)
            every = local.new_empty((tp.size, *local.shape))
            tp.all_gather(every, local).wait()
            maxima, sums, picked = (every[:, place] for place in range(3))
            return maxima.amax(0), sums.sum(0), picked.sum(0)

        return combine

    with everywhere("_combine", make):
        yield


@mutant
def targets_in_other_vocabularies_have_no_logit() -> Iterator[None]:
    def make(original: Any) -> Any:
        def combine(env: Any, local: Any, tp: Any) -> Any:
            highest, total, _ = original(env, local, tp)
            return highest, total, local[2]

        return combine

    with everywhere("_combine", make):
        yield


@mutant
def every_rank_takes_its_last_column_for_the_target() -> Iterator[None]:
    def make(original: Any) -> Any:
        def exponentiate(*args: Any) -> Any:
            softmax = original(*args)
            return replace(softmax, here=softmax.valid)

        return exponentiate

    with everywhere("exponentiate", make):
        yield


@mutant
def every_tensor_rank_records_the_loss() -> Iterator[None]:
    def make(original: Any) -> Any:
        def init(self: SegmentRunner, *args: Any) -> None:
            original(self, *args)
            self._records_loss = True

        return init

    with replaced(SegmentRunner, "__init__", make):
        yield


@mutant
def every_rank_has_the_first_part_of_the_weights() -> Iterator[None]:
    def make(original: Any) -> Any:
        def fill(flat: Any, index: int, seed: int, coordinates: Any, out: Any) -> None:
            original(flat, index, seed, dict.fromkeys(coordinates, 0), out)

        return fill

    with replaced(parity_ranks, "initialize_shard", make):
        yield
