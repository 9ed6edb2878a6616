"""Context parallelism with one mask, order, collective or position wrong."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from fourfold.model.context import attention, ulysses
from fourfold.model.context.placement import ContextShare, Placement
from fourfold.runtime.collectives import AxisGroup
from tests.support.parity_runs import RankData
from tests.support.runtime_mutants.edits import everywhere, mutant, part_of, reductions_without, replaced


@mutant
def documents_leak_over_the_split() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda batch, length, lengths, *placed: original(batch, length, None, *placed)

    with replaced(attention, "Documents", make):
        yield


@mutant
def merging_forgets_the_new_log_sum_exp() -> Iterator[None]:
    def make(original: Any) -> Any:
        return lambda out, lse, *rest: original(out, lse.clone(), *rest)

    with everywhere("merge_output", make):
        yield


@mutant
def the_ring_turns_the_other_way() -> Iterator[None]:
    def make(original: Any) -> Any:
        def shift(self: AxisGroup, received: Any, sent: Any, back: bool) -> Any:
            mirrored = copy.copy(self)
            mirrored.ranks, mirrored.index = self.ranks[::-1], self.size - 1 - self.index
            yield from original(mirrored, received, sent, back)

        return shift

    with replaced(AxisGroup, "_shift", make):
        yield


@mutant
def half_of_a_ranks_own_keys_get_no_gradient() -> Iterator[None]:
    def make(original: Any) -> Any:
        def in_two(*args: Any) -> Any:
            first, second = original(*args)
            return first, ((), second[1])

        return in_two

    with everywhere("own_work_in_two", make):
        yield


@mutant
def gradients_of_gathered_keys_are_not_summed() -> Iterator[None]:
    def scatter(self: AxisGroup, full: Any, into: Any) -> Any:
        into.copy_(part_of(full, self))
        return SimpleNamespace(wait=lambda: None)

    with patch.object(AxisGroup, "sum_scatter", scatter):
        yield


@mutant
def rotary_positions_are_counted_from_each_ranks_last() -> Iterator[None]:
    def make(original: Any) -> Any:
        def load(self: Any, microbatch: int) -> Any:
            batch = original(self, microbatch)
            first = {rope: tuple(each.flip(0) for each in both) for rope, both in batch.rope.items()}
            return replace(batch, rope=first)

        return load

    with replaced(RankData, "load", make):
        yield


@mutant
def ranks_have_consecutive_positions() -> Iterator[None]:
    def positions(self: ContextShare, placement: Placement, row: int, sequence_length: int) -> list[int]:
        part = sequence_length // self.ranks
        first = (self.ring_index * self.ulysses + self.ulysses_index) * part
        return list(range(first, first + part))

    with patch.object(ContextShare, "positions", positions):
        yield


@mutant
def heads_travel_to_each_others_ranks() -> Iterator[None]:
    with everywhere("split_heads", lambda original: lambda x, ranks: original(x, ranks).flip(1)):
        yield


@mutant
def copies_of_keys_that_travelled_give_one_gradient() -> Iterator[None]:
    def backward(env: Any, grads: Any, group: Any, kv_heads: int) -> None:
        ulysses._travel(env.ops, grads, [ulysses.split_tokens(x, group.size) for x in grads], group)
        grads[:] = map(ulysses.join_heads, grads)
        grads[1:] = [x.unflatten(2, (kv_heads, -1))[:, :, :, 0] for x in grads[1:]]

    with everywhere("sequence_to_heads_backward", lambda original: backward):
        yield


@mutant
def gradients_are_not_summed_over_the_sequence() -> Iterator[None]:
    with reductions_without(lambda flat, axes: axes == "cp"):
        yield
